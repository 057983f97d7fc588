"""Merges the parts of all ranks into one trace: `python -m hpsearch_comm.timeline merge OUT PART...`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hpsearch_comm.errors import CommError
from hpsearch_comm.timeline.merging import merge


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code, which is 2 if the parts can't be merged."""
    parser = argparse.ArgumentParser(prog="python -m hpsearch_comm.timeline", description=__doc__)
    command = parser.add_subparsers(required=True).add_parser("merge", help="write one trace from the parts of a group")
    command.add_argument("out", type=Path, metavar="OUT", help="the trace to write")
    command.add_argument("parts", type=Path, metavar="PART", nargs="+", help="the parts of the ranks: trace.rank*.json")
    arguments = parser.parse_args(argv)
    try:
        missing = merge(arguments.out, arguments.parts)
    except (CommError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if missing:
        print(f"the trace lacks the ranks {', '.join(map(str, missing))}: no part of theirs was given", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
