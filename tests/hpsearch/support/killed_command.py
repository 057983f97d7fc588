"""The command line, in a process that is killed by SIGKILL where its journal holds so many events."""

from __future__ import annotations

import sys

from hpsearch.cli import main
from tests.hpsearch.support.killed_lanes import die_after_event

if __name__ == "__main__":
    die_after_event(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
