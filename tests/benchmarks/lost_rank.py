"""How long a training of four ranks stands still when one of them is killed, beside a new start of its script.

A script of Horovod's API under `hpsearch_comm.launch --min-np`, whose three other ranks go on from their last commit.
One time is from the kill to the end of the first step behind it, the other from the launcher's start to the end of the
first step of all: what a job that ends with a rank, and is started anew from a checkpoint, would take at least. Each is
that of the rank that comes first; ranks have one thread.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from tests.benchmarks.figures import Figure

_SCRIPT = """
    import os, signal, time
    from pathlib import Path

    import torch
    from torch import nn

    import hpsearch_comm.horovod as hvd

    def note(event):
        if not Path(event).exists():
            mine = Path(f"{event}.{os.getpid()}")
            mine.write_text(str(time.time()))
            mine.rename(event)

    hvd.init()
    dies = hvd.rank() == 1
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, step=0)

    @hvd.elastic.run
    def train(state):
        while state.step < 10:
            if dies and state.step == 5:
                note("killed")
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            model(torch.randn(32, 64)).square().mean().backward()
            optimizer.step()
            note(f"stepped {state.step}")
            state.step += 1
            state.commit()

    train(state)
"""


def measure(rounds: int) -> list[Figure]:
    """Lose a rank of a new job in each round."""
    ours, theirs = zip(*(_seconds() for _ in range(rounds)), strict=True)
    return [Figure("a rank is killed: until the next step", "s", ours, "", "a new start", theirs)]


def _seconds() -> tuple[float, float]:
    """Return the seconds from the kill to the next step, and from the start to the first one."""
    words = [sys.executable, "-m", "hpsearch_comm.launch", "-np", "4", "--min-np", "3", "train.py"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(textwrap.dedent(_SCRIPT))
        began = time.time()
        ended = subprocess.run(
            words, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
        )
        if ended.returncode != 0:
            raise RuntimeError(f"expected three ranks to go on behind the kill, got:\n{ended.stderr}")
        events = ("stepped 0", "killed", "stepped 5")
        begun, killed, gone_on = (float(Path(folder, event).read_text()) for event in events)
    return gone_on - killed, begun - began
