"""A rank under torchrun, with all of torch.distributed but TCPStore blocked: run by test_torchrun.

    torchrun ... torchrun_ranks.py FOLDER ATTEMPTS

All ranks meet twice, make two groups, and write what they found to FOLDER. In every attempt but the last, the last
rank then fails, and the others go on until they are restarted.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed

import hpsearch_comm as comm
from hpsearch_comm.bootstrap.address import Address
from hpsearch_comm.bootstrap.handshake import Credentials
from hpsearch_comm.environment import read_environment


def block_torch_distributed() -> None:
    """Make every other function and class of torch.distributed raise when it is called."""
    import torch.distributed.distributed_c10d as c10d

    for module in (torch.distributed, c10d, torch._C._distributed_c10d):
        for name, member in vars(module).items():
            if callable(member) and not name.startswith("__") and name not in ("TCPStore", "Any", "NoReturn"):
                setattr(module, name, _refuse(name))


def _refuse(name: str) -> Any:
    def refuse(*_args: object, **_kinds: object) -> NoReturn:
        raise AssertionError(f"torch.distributed.{name} was called")

    return refuse


def meet(start: int) -> dict[str, str | list[str]]:
    """Come together with the other ranks, no further."""
    arguments = read_environment(os.environ).for_group({"start_timeout": 120, "name": "meeting"})
    place, rank, size = arguments["rendezvous"], arguments["rank"], arguments["size"]
    credentials = Credentials(arguments["secret"], arguments["name"], arguments["epoch"])
    mine = Address("0" * 32, f"start {start}", os.getpid(), "127.0.0.1", 1 + rank, "none").to_text()
    return {
        "mine": mine,
        "addresses": place.exchange(rank, size, mine, credentials, time.monotonic() + 120),
        "secret": credentials.secret.hex(),
        "place": type(place).__name__,
        "restarts": os.environ["TORCHELASTIC_RESTART_COUNT"],
    }


def main() -> None:
    folder, attempts = Path(sys.argv[1]), int(sys.argv[2])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    block_torch_distributed()
    found = [meet(start) for start in range(2)]
    with comm.init(start_timeout=120) as group:
        # Several groups in turn, as in a program that makes one for each of its phases.
        assert group.allreduce(torch.full((5,), rank + 1.0), op="sum").tolist() == [size * (size + 1) / 2] * 5
    with comm.init(start_timeout=120) as group:
        assert (group.rank, group.size, group.local_rank) == (rank, size, int(os.environ["LOCAL_RANK"]) + first_rank())
        assert group.allgather_object(rank) == list(range(size))
    attempt = len(list(folder.glob(f"*.{rank}.json")))
    (folder / f"{attempt}.{rank}.json").write_text(json.dumps(found))
    if attempt + 1 < attempts:
        if rank == size - 1:
            sys.exit(3)
        while True:
            signal.pause()


def first_rank() -> int:
    """Return the first rank of this agent: all ranks are on one host, however many agents there are."""
    return int(os.environ["GROUP_RANK"]) * int(os.environ["LOCAL_WORLD_SIZE"])


if __name__ == "__main__":
    main()
