"""One rank of a benchmark: `python -m hpsearch_comm.benchmark.rank DIRECTORY [RANK]`, started by `launch`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
import threading
from contextlib import ExitStack
from pathlib import Path


def main() -> int:
    """Measure what the plan says, and write what was seen into the directory."""
    directory = Path(sys.argv[1])
    # mpirun has no other way to say which rank this is.
    rank = int(sys.argv[2] if len(sys.argv) > 2 else os.environ["OMPI_COMM_WORLD_RANK"])
    stderr = os.open(directory / f"stderr.rank{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(stderr, 2)
    os.close(stderr)
    _hold_on(directory)

    import torch

    from hpsearch_comm.benchmark import bare_memory, collective, fitting, training
    from hpsearch_comm.benchmark.meeting import Meeting
    from hpsearch_comm.benchmark.plan import Plan
    from hpsearch_comm.benchmark.stage import Stage
    from hpsearch_comm.errors import CommError

    torch.set_num_threads(1)
    plan = Plan.from_json((directory / "plan.json").read_text())
    measures = {
        "allreduce": collective.measure,
        "model": training.measure,
        "memory": bare_memory.measure,
        "fit": fitting.measure,
    }
    try:
        with ExitStack() as exits:
            stage = Stage(plan, rank, directory, Meeting(directory / "meeting", rank, plan.ranks), exits)
            blocks, facts = measures[plan.kind](stage)
    except CommError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    result = {"blocks": [block.to_dict() for block in blocks], "facts": facts}
    (directory / f"result.{rank}.json").write_text(json.dumps(result))
    return 0


def _hold_on(directory: Path) -> None:
    """End this process when the one that started the benchmark ends, and clear up for it if it was killed."""
    line = socket.socket(socket.AF_UNIX)
    line.connect(str(directory / "lifeline"))

    def wait() -> None:
        with contextlib.suppress(OSError):
            line.recv(1)
        shutil.rmtree(Path("/dev/shm", directory.name), ignore_errors=True)  # Open MPI's segments
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=wait, daemon=True, name="lifeline").start()


if __name__ == "__main__":
    sys.exit(main())
