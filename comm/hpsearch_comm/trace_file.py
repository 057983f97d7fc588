"""The files of a timeline: one part per rank while it runs, and one trace of all ranks at the end.

Both are Chrome's Trace Event Format, which chrome://tracing and https://ui.perfetto.dev load. A part is a JSON array
that lacks its closing bracket until the rank is done; the format allows that, so the parts of a crashed run load as
they are. Each event stands on a line of its own, which lets parts be joined without parsing them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import secrets
import socket
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hpsearch_comm.errors import ConfigurationError

__all__ = ["Exchange", "PartFile", "Sources", "bring", "holds", "merge_parts", "part_path"]

_log = logging.getLogger(__name__)

_TOKEN_WITHIN = 1024
"""Bytes at the start of a part among which its token stands."""

Sources = Iterable[Path | str | Sequence[Mapping[str, Any]]]
"""Parts to merge: files, their texts, or lists of events."""

_PIECE = 1 << 20
"""Bytes of a part that travel at once, before they are compressed."""


class Exchange(Protocol):
    """What a group does for its timeline."""

    def allgather_object(self, value: Any) -> list[Any]:
        """Give each rank's value to every rank, by rank."""

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Give the root's value to every rank."""


def part_path(path: Path, rank: int) -> Path:
    """Give the file of one rank's events: `trace.rank3.json` beside `trace.json`."""
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix or '.json'}")


class PartFile:
    """The events of one rank, appended as they come.

    Args:
        path: The trace that the user named; the part lies beside it.
        rank: Whose events these are.
        first: JSON texts of the first events: the names of the rank and of its threads.

    Raises:
        ConfigurationError: The trace or the part can't be written.
    """

    def __init__(self, path: Path, rank: int, first: Sequence[str]) -> None:
        self.path = part_path(path, rank)
        self.token = secrets.token_hex(8)
        """Stands in the part, so that rank 0 can tell the file that it sees from one of another run or another host."""
        self.lost = 0
        """Events that couldn't be written, because the disk was full for instance."""
        if path.is_dir():
            raise ConfigurationError(f"the timeline's path must be a file, got the directory {path} (rank {rank})")
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigurationError(
                f"the timeline's path must be writable: rank {rank} on {socket.gethostname()} can't write "
                f"{self.path}: {error.strerror}. Give a path in a directory that exists on each host"
            ) from error
        begin = json.dumps({"name": "token", "ph": "M", "pid": rank, "args": {"token": self.token}})
        self._write("[\n" + "".join(f"{event},\n" for event in (begin, *first)))

    def append(self, events: Sequence[str]) -> None:
        """Write JSON texts of events. A disk that fails costs events, never the training."""
        if self.lost or not self._write("".join([f"{event},\n" for event in events])):
            self.lost += len(events)

    def close(self, last: str) -> None:
        """Write the last event and the closing bracket. Calling it again does nothing."""
        if self._file >= 0:
            self._write(f"{last}\n]\n")
            os.close(self._file)
            self._file = -1

    def _write(self, text: str) -> bool:
        rest = memoryview(text.encode())
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            _log.warning("the timeline %s is cut short: %s", self.path, error.strerror)
            return False
        return True


def holds(path: Path, token: str) -> bool:
    """Say whether this is the part with that token, as this process sees it."""
    try:
        with path.open("rb") as part:
            return token.encode() in part.read(_TOKEN_WITHIN)
    except OSError:
        return False


def bring(group: Exchange, rank: int, sender: int, part: Path, target: Path) -> bool:
    """Bring the sender's part to rank 0's disk, in pieces; every rank calls it.

    Args:
        group: Carries the pieces.
        rank: This rank.
        sender: Whose part it is.
        part: This rank's part.
        target: Where rank 0 puts it.

    Returns:
        False where it couldn't be written. The exchange comes to its end all the same.
    """
    pieces = _packed(part) if rank == sender else iter(())
    unpacker = zlib.decompressobj()
    mode, well = "wb", True
    while (piece := group.broadcast_object(next(pieces, None), root=sender)) is not None:
        if rank == 0 and well:
            try:
                with target.open(mode) as file:
                    file.write(unpacker.decompress(base64.b64decode(piece)))
                mode = "ab"
            except OSError as error:
                _log.warning("rank %d's part of the timeline couldn't be written: %s", sender, error)
                well = False
    return well


def _packed(part: Path) -> Iterator[str]:
    packer = zlib.compressobj(1)
    with contextlib.suppress(OSError), part.open("rb") as file:
        while read := file.read(_PIECE):
            yield base64.b64encode(packer.compress(read)).decode()
    yield base64.b64encode(packer.flush()).decode()


def merge_parts(target: Path, parts: Sources, other: Mapping[str, object]) -> None:
    """Write one trace from the parts of several ranks; it replaces what stood there only once it is whole.

    Args:
        target: The file to write.
        parts: In any order.
        other: What to say of the whole trace; viewers show it as metadata.

    Raises:
        OSError: It can't be written.
    """
    scratch = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with scratch.open("w", encoding="utf-8") as trace:
            trace.write('{"displayTimeUnit": "ms", "otherData": ' + json.dumps(other) + ',\n"traceEvents": [\n')
            between = ""
            for part in parts:
                for event in _events(part):
                    trace.write(between + event)
                    between = ",\n"
            trace.write("\n]}\n")
        scratch.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise


def _events(part: Path | str | Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Give the JSON text of each whole event; the last line of a part that was cut off isn't one."""
    if isinstance(part, Path):
        with part.open(encoding="utf-8") as lines:
            yield from _whole(lines)
    elif isinstance(part, str):
        yield from _whole(part.splitlines(keepends=True))
    else:
        yield from map(json.dumps, part)


def _whole(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        event = line.strip().rstrip(",")
        if event.startswith("{") and line.endswith("\n"):  # where it was cut off, the last line has no end
            yield event
