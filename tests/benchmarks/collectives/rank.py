"""One rank of a benchmark: `python -m tests.benchmarks.collectives.rank DIRECTORY [RANK]`, started by `launch`."""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

from tests.benchmarks.collectives.lifeline import follow


def main() -> int:
    """Measure what the plan says, and write what was seen into the directory."""
    directory = Path(sys.argv[1])
    # mpirun has no other way to say which rank this is.
    rank = int(sys.argv[2] if len(sys.argv) > 2 else os.environ["OMPI_COMM_WORLD_RANK"])
    stderr = os.open(directory / f"stderr.rank{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(stderr, 2)
    os.close(stderr)
    follow(directory)

    import torch

    from hpsearch_comm.errors import CommError
    from tests.benchmarks.collectives import bare_memory, collective, training
    from tests.benchmarks.collectives.meeting import Meeting
    from tests.benchmarks.collectives.plan import Plan
    from tests.benchmarks.collectives.stage import Stage

    torch.set_num_threads(1)
    plan = Plan.from_json((directory / "plan.json").read_text())
    measures = {
        "allreduce": collective.measure,
        "model": training.measure,
        "memory": bare_memory.measure,
    }
    try:
        with ExitStack() as exits:
            meeting = Meeting(directory / "meeting", rank, plan.ranks)
            meeting.wait()  # where cores are few, imports take the last rank longer than a group would wait for it
            stage = Stage(plan, rank, directory, meeting, exits)
            blocks, facts = measures[plan.kind](stage)
    except CommError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        _fail()
    except Exception:
        traceback.print_exc()
        _fail()
    result = {"blocks": [block.to_dict() for block in blocks], "facts": facts}
    (directory / f"result.{rank}.json").write_text(json.dumps(result))
    return 0


def _fail() -> NoReturn:
    """End at once: at Python's own exit Open MPI would wait for the other ranks, which wait for this one."""
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
