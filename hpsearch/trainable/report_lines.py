"""The report file of a script: one JSON object per line.

Any program can write its metrics by name. It may add `"iteration"` (which must be the next one) and `"checkpoint"` (the
path of a directory or file, relative to the attempt's directory):

    {"accuracy": 0.91, "checkpoint": "model-3"}

`hpsearch.current_trial()` writes lines with their type under `"hpsearch"`. For these, the trial object in the script
has already checked the metrics and written the checkpoint.

    {"hpsearch": "report", "iteration": 3, "seconds": 0.2, "metrics": {"accuracy": 0.91}}
    {"hpsearch": "saved", "iteration": 3, "checkpoint": "hpsearch-checkpoint-3"}
    {"hpsearch": "cut"}
    {"hpsearch": "failed", "kind": "contract", "message": "every report must have ...", "key": "metric.loss"}
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from hpsearch.config.strict_json import parse_json
from hpsearch.errors import TrainableError

__all__ = ["KIND", "LineReader", "append_line"]

KIND = "hpsearch"
"""Key of the type of a line that hpsearch wrote."""

_BEGINNING = 256
"""Number of first bytes that are compared to detect that the file was overwritten."""


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Append a line, in one write."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


class LineReader:
    """Reads lines while they are appended to a file."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("rb")
        self._number = 0
        self._rest = b""
        self._beginning = b""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, ended: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the new complete lines, with their numbers from 1.

        Args:
            ended: Nothing more will be appended, so the last line needs no line feed.

        Raises:
            TrainableError: A line is not a JSON object, or the file was overwritten.
        """
        appended = self._file.read()
        if os.pread(self._file.fileno(), len(self._beginning), 0) != self._beginning:
            raise TrainableError(
                "lines must be appended to $HPSEARCH_REPORTS, but it was written over, and reports may be lost: "
                "write with >>, or open it to append"
            )
        self._beginning = self._beginning or appended[:_BEGINNING]
        *lines, self._rest = (self._rest + appended).split(b"\n")
        if ended:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._number += 1
            if line.strip():
                yield self._number, self._parsed(line)

    def _parsed(self, line: bytes) -> dict[str, Any]:
        value, reason = None, ""
        try:
            value = parse_json(line)
        except (json.JSONDecodeError, UnicodeDecodeError):
            pass  # the message shows the line, which is clearer
        except ValueError as error:
            reason = f": {error}"
        if not isinstance(value, dict):
            text = line.decode("utf-8", "backslashreplace").strip()
            raise TrainableError(
                f"line {self._number} of $HPSEARCH_REPORTS must be a JSON object such as "
                f'{{"accuracy": 0.9}}, but is {text if len(text) <= 80 else text[:77] + "..."!r}{reason}'
            )
        return value
