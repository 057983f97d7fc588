"""A script of Horovod's that goes on without ranks that die, and the end that it must come to."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

TRAINS = """
    import json, os, signal, sys
    from pathlib import Path

    import torch
    from torch import nn

    import hpsearch_comm.horovod as hvd

    started_as = int(os.environ["RANK"])
    deaths = json.loads(sys.argv[1])[started_as]

    def die(where):
        if deaths == where:
            os.kill(os.getpid(), signal.SIGKILL)

    die("start")
    hvd.init()
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(range(40))
    state = hvd.elastic.TorchState(model, optimizer, step=0, sizes=[], sampler=sampler)

    @hvd.elastic.run
    def train(state):
        while state.step < 8:
            die(state.step)
            optimizer.zero_grad()
            # The same on all ranks, so that their mean doesn't depend on how many there are.
            rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(state.step))
            (model(rows) - rows.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
            state.sizes.append(hvd.size())
            state.step += 1
            sampler.record_batch(state.step, 1)
            state.commit()

    train(state)
    places = hvd.allgather_object([hvd.rank(), *(int(os.environ[name]) for name in ("RANK", "LOCAL_RANK"))])
    told = {
        "weights": model.weight.tolist(),
        "sizes": state.sizes,
        "places": places,
        "sizes at the end": [hvd.size(), hvd.local_size()],
        "sizes by the environment": [int(os.environ[name]) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")],
        "rows done": sampler.processed_num,
    }
    Path(f"told.{started_as}").write_text(json.dumps(told) + "\\n")
"""


def trained_alone() -> torch.Tensor:
    """Return the weights that `TRAINS` must have, however many ranks it had."""
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(8):
        optimizer.zero_grad()
        rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
        (model(rows) - rows.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    return model.weight.detach()


def check(folder: Path, survivors: list[int], sizes: list[int], local_size: int | None = None) -> None:
    """See that the survivors have trained to the end, and to the same end, with so many ranks in each step."""
    count = len(survivors)
    for rank in survivors:
        told = json.loads((folder / f"told.{rank}").read_text())
        torch.testing.assert_close(torch.tensor(told["weights"]), trained_alone())
        assert (told["sizes"], told["rows done"]) == (sizes, sum(sizes))
        local = count if local_size is None else local_size
        assert told["places"] == [[number, number, number % local] for number in range(count)]
        assert told["sizes at the end"] == told["sizes by the environment"] == [count, local]
        assert len(list(folder.glob("told.*"))) == count
