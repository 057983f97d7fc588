"""The folder of a design.

design.json     the request, findings before the search, and the seconds used so far
data/           search.npz, test.npz and task.json: the rows, split once; and the original test rows
sweep.yaml      the sweep
study/          the study
model/          preprocessing, network, weights and predict.py: everything for predictions
report.json     the results
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpsearch.errors import DesignError

__all__ = ["DesignFolder"]


class DesignFolder:
    """The paths, and the records that are JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()

    @property
    def record(self) -> Path:
        """The request."""
        return self.path / "design.json"

    @property
    def data(self) -> Path:
        """The rows."""
        return self.path / "data"

    @property
    def search_rows(self) -> Path:
        """The search rows."""
        return self.data / "search.npz"

    @property
    def test_rows(self) -> Path:
        """The test rows."""
        return self.data / "test.npz"

    @property
    def raw_test_rows(self) -> Path:
        """The original test rows: a table, an array, or a folder of images."""
        names = ("test.csv", "test_rows.npz", "test")
        return next((self.data / name for name in names if (self.data / name).exists()), self.data / names[0])

    @property
    def trees(self) -> Path:
        """The trees that the network is compared with; a copy is delivered if they are better."""
        return self.data / "trees.joblib"

    @property
    def sweep(self) -> Path:
        """The sweep file."""
        return self.path / "sweep.yaml"

    @property
    def study(self) -> Path:
        """The study."""
        return self.path / "study"

    @property
    def model(self) -> Path:
        """The delivered model."""
        return self.path / "model"

    @property
    def report(self) -> Path:
        """The report."""
        return self.path / "report.json"

    def begin(self, record: Mapping[str, Any]) -> None:
        """Make the folder.

        Raises:
            DesignError: Something is there, or it can't be made.
        """
        try:
            if self.path.is_dir() and not any(self.path.iterdir()):
                self.path.rmdir()
            self.path.mkdir(parents=True)
        except FileExistsError:
            go_on = (
                f"go on with `hpsearch design --resume {shlex.quote(str(self.path))}`, or n"
                if self.record.is_file()
                else "n"
            )
            raise DesignError(
                f"{self.path}: must be a folder that isn't there yet, or is empty; {go_on}ame another with --output"
            ) from None
        except OSError as error:
            raise DesignError(f"{self.path}: must be a place where a folder can be made, got: {error}") from error
        self.write(self.record, record)

    def clear(self) -> None:
        """Remove what `begin` and looking at the data have made."""
        for left in (self.data, self.model):
            shutil.rmtree(left, ignore_errors=True)
        self.record.unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def read(self) -> dict[str, Any]:
        """Read the request.

        Raises:
            DesignError: There is no design here.
        """
        try:
            found = json.loads(self.record.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DesignError(f"{self.path}: must be a folder that `hpsearch design` has made, got: {error}") from error
        if not isinstance(found, dict) or "asked" not in found:
            raise DesignError(f"{self.record}: must say what was asked for, as `hpsearch design` writes it")
        return found

    def write(self, path: Path, record: Mapping[str, Any]) -> None:
        """Write JSON, whole or not at all."""
        new = path.with_suffix(".new")
        try:
            new.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            new.replace(path)
        except OSError as error:
            raise DesignError(f"{path}: must be a place that can be written, got: {error}") from error
