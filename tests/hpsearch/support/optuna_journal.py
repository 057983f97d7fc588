"""A journal file of Optuna's, read by Optuna."""

from __future__ import annotations

from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend


def optuna_storage(path: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(path)))


def optuna_study(path: Path) -> optuna.Study:
    """Load the only study of a file."""
    return optuna.load_study(study_name=None, storage=optuna_storage(path))
