"""`python -m hpsearch`: the `hpsearch` command, run by this Python interpreter."""

from __future__ import annotations

import sys

from hpsearch.cli import main

if __name__ == "__main__":
    sys.exit(main())
