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
import math
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpsearch.config.checks import InvalidKey, nearest
from hpsearch.config.settings import read_duration
from hpsearch.errors import DesignError


class DesignFolder:
    """The paths in the folder, and reading and writing of its JSON files."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        self.record = self.path / "design.json"
        """The request and the findings."""
        self.data = self.path / "data"
        """The rows."""
        self.search_rows = self.data / "search.npz"
        self.test_rows = self.data / "test.npz"
        self.trees = self.data / "trees.joblib"
        """The trees that the network is compared with; a copy is part of the model if they are better."""
        self.sweep = self.path / "sweep.yaml"
        self.study = self.path / "study"
        self.model = self.path / "model"
        """The delivered model."""
        self.report = self.path / "report.json"

    @property
    def raw_test_rows(self) -> Path:
        """The original test rows: a table, an array, or a folder of images."""
        names = ("test.csv", "test_rows.npz", "test")
        return next((self.data / name for name in names if (self.data / name).exists()), self.data / names[0])

    def begin(self, record: Mapping[str, Any]) -> None:
        """Create the folder, and write the request.

        Raises:
            DesignError: The folder isn't empty, or can't be created.
        """
        try:
            if self.path.is_dir() and not any(self.path.iterdir()):
                self.path.rmdir()
            self.path.mkdir(parents=True)
        except FileExistsError:
            go_on = (
                f"continue with `hpsearch design --resume {shlex.quote(str(self.path))}`, or n"
                if self.record.is_file()
                else "n"
            )
            raise DesignError(
                f"{self.path}: must be a folder that isn't there yet, or is empty; {go_on}ame another with --output"
            ) from None
        except OSError as error:
            raise DesignError(f"{self.path}: must be a path where a folder can be created, got: {error}") from error
        self.write(self.record, record)

    def clear(self) -> None:
        """Remove the files that were written before the search."""
        for folder in (self.data, self.model):
            shutil.rmtree(folder, ignore_errors=True)
        self.record.unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def read(self) -> dict[str, Any]:
        """Read the request.

        Raises:
            DesignError: There is no design here.
        """
        try:
            record = json.loads(self.record.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DesignError(f"{self.path}: must be a folder that `hpsearch design` has made, got: {error}") from error
        if not isinstance(record, dict) or "asked" not in record:
            raise DesignError(f"{self.record}: must say what was asked for, as `hpsearch design` writes it")
        return record

    def write(self, path: Path, record: Mapping[str, Any]) -> None:
        """Write JSON atomically."""
        new = path.with_suffix(".new")
        try:
            new.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            new.replace(path)
        except OSError as error:
            raise DesignError(f"{path}: must be writable, got: {error}") from error


BOUNDED = ("parameters", "flops", "latency_ms")
"""Quantities of the delivered network that `--limit` bounds; `flops` and `latency_ms` are for one row."""

LEAST_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class DesignRequest:
    """The request of a design.

    Raises:
        DesignError: The request is invalid.
    """

    source: str
    """Absolute path of the data set."""
    target: str | None = None
    """The column or array to predict; None: the default for the kind of source."""
    goal: str | None = None
    """A name in `scores.SCORES`; None: the default for the kind of targets."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Upper bounds by name in `BOUNDED`."""
    seconds: float = 600.0
    """Total time, from reading the data to the test score."""
    workers: int | None = None
    """Number of concurrent trials; None: the number of cores."""
    seed: int = 0
    test_share: float = 0.2
    """Fraction of the rows for the test, which the search doesn't use."""

    def __post_init__(self) -> None:
        if not LEAST_SECONDS <= self.seconds < math.inf:
            raise DesignError(f"--time must be at least {LEAST_SECONDS:g}s, got {self.seconds:g}s")


def read_seconds(text: str) -> float:
    """Read a time such as 90s or 10m.

    Raises:
        DesignError: The text isn't a time.
    """
    try:
        return read_duration(float(text) if text.replace(".", "", 1).isdecimal() else text, ())
    except InvalidKey as error:
        raise DesignError(f"--time {text}: {error.problem}") from None


def read_limits(values: Sequence[str]) -> dict[str, float]:
    """Parse limits such as `parameters=1e6`.

    Raises:
        DesignError: A limit is unknown, appears twice, or isn't a number above 0.
    """
    limits: dict[str, float] = {}
    for item in values:
        name, equals, text = (part.strip() for part in item.partition("="))
        if name not in BOUNDED or not equals:
            raise DesignError(
                f"--limit {item}: must be NAME=NUMBER, and NAME one of {', '.join(BOUNDED)}; {nearest(name, BOUNDED)}"
            )
        if name in limits:
            raise DesignError(f"--limit {item}: {name} must be given once")
        try:
            limits[name] = float(text.replace("_", ""))
        except ValueError:
            limits[name] = math.nan
        if not 0 < limits[name] < math.inf:
            raise DesignError(f"--limit {item}: must be a number above 0, got {text!r}")
    return limits
