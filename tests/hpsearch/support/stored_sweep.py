"""A sweep on the inline backend whose study is in a bucket, for tests that kill its process; for child processes."""

from __future__ import annotations

import os
from pathlib import Path

import hpsearch
from hpsearch.storage import mirror
from hpsearch.storage.studies import directory_to_resume
from tests.hpsearch.support.killed_sweep import train


def begin(study: str, storage: str, pid_file: str = "") -> None:
    """Run the sweep, or continue it in its directory.

    Args:
        study: Its directory.
        storage: Its folder in a bucket.
        pid_file: Where to write this process's number.
    """
    mirror._INTERVAL = 0.002
    if pid_file:
        Path(pid_file).write_text(str(os.getpid()))
    hpsearch.search(
        train(Path(study).parent / f"{Path(study).name}.txt"),
        parameters={"parameters": {"lr": hpsearch.LogUniform(1e-3, 1.0)}, "name": "stored", "storage": storage},
        metric="loss",
        early_terminate=hpsearch.Hyperband(9),
        checkpoints={"every": 2},
        directory=study,
        backend="inline",
        observers=[],
        progress=False,
    )


def resume(study: str, storage: str, name: str) -> None:
    """Continue the study of this name in a bucket, in a new directory."""
    directory_to_resume(f"{storage}/{name}", Path(study), lambda text: None)
    begin(study, storage)
