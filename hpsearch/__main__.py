"""`python -m hpsearch`: the `hpsearch` command, with the Python that is named."""

from __future__ import annotations

import sys

from hpsearch.cli import main

if __name__ == "__main__":
    sys.exit(main())
