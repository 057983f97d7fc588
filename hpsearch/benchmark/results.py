"""The runs of a benchmark on disk: a line of JSON each, so that a killed benchmark resumes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from pathlib import Path

from hpsearch.benchmark.runs import RunCourse, RunKey
from hpsearch.benchmark.suite import Suite
from hpsearch.errors import StorageError

__all__ = ["Results"]

_FILE = "runs.jsonl"

_KEY = ("task", "method", "workers", "seed")
_COURSE = ("at", "regret", "hit", "trials")
"""Names in the file of the fields of `RunKey` and `RunCourse`, in order."""


class Results:
    """The results in a directory. Those of another suite, or of what was changed since, don't count."""

    def __init__(self, directory: Path, suite: Suite) -> None:
        self._path = directory / _FILE
        self._suite = suite
        self.courses: dict[RunKey, RunCourse] = {}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            lines = self._path.read_text("utf-8", "replace").splitlines() if self._path.exists() else []
        except OSError as error:
            raise StorageError(f"{directory}: expected a place for results that can be written: {error}") from error
        for line in lines:
            self._take(line)

    def _take(self, line: str) -> None:
        try:
            told = json.loads(line)
            key = RunKey(*(told[name] for name in _KEY))
            digest, course = told["digest"], RunCourse(*(told[name] for name in _COURSE))
        except (ValueError, LookupError, TypeError, AttributeError):
            return  # its process was killed as it wrote
        suite = self._suite
        if key.method in suite.known and key.task in suite.tasks and suite.digest(key.method, key.task) == digest:
            self.courses[key] = course

    def add(self, key: RunKey, course: RunCourse) -> None:
        """Store a run's result."""
        told = dict(zip(_KEY, key, strict=True)) | {"digest": self._suite.digest(key.method, key.task)}
        line = json.dumps(told | dict(zip(_COURSE, astuple(course), strict=True)))
        try:
            with self._path.open("a", encoding="utf-8") as file:
                # What a kill cut off stays a line of its own.
                file.write(f"{line}\n" if file.tell() == 0 or self._ends_in_newline() else f"\n{line}\n")
        except OSError as error:
            raise StorageError(f"{self._path}: expected a file that can be written: {error}") from error
        self.courses[key] = course

    def _ends_in_newline(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) == b"\n"

    def of(self, method: str, workers: int) -> Mapping[RunKey, RunCourse]:
        """Return the runs of a method."""
        return {key: course for key, course in self.courses.items() if key[1:3] == (method, workers)}

    def keep(self, keys: Iterable[RunKey]) -> None:
        """Return the results of the requested runs, without other tasks and seeds."""
        self.courses = {key: self.courses[key] for key in keys if key in self.courses}
