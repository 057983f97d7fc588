"""Determine why a script failed or reported nothing, from its output, its exit status and its source."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
from collections.abc import Mapping
from pathlib import Path

from hpsearch.config.masking import mask_words
from hpsearch.errors import UnwritableError
from hpsearch.trainable.failures import failure_of_message
from hpsearch.trainable.metrics import example
from hpsearch.trainable.storage import writing
from hpsearch.trial import Failure
from hpsearch.worker.child_process import PREEMPTION
from hpsearch.worker.gang import Ending
from hpsearch.worker.job import CommandLine

_TRACEBACK = "Traceback (most recent call last):"

_FROM_OUTSIDE = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM, *PREEMPTION})
"""Signals with which a batch system or a person ends processes; they aren't the script's failure."""

_TAIL = 8192
"""Last bytes of a failed script's output that its failure keeps."""
LONGEST_TRACEBACK = 1 << 18
"""Last bytes in which the traceback is looked for: those of compiled code have hundreds of lines."""

_PROBE = 1 << 16
"""Bytes to write, to check whether the disk is full."""


def end_of_log(log: Path, most: int = _TAIL) -> str:
    """Return the end of the script's output, at most so many bytes."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most))
        text = file.read().decode("utf-8", "replace")
    return text if size <= most else "...\n" + text.partition("\n")[2]


def failed(argv: list[str], status: int, output: str) -> Failure:
    """Describe a script that exited with a status, or was killed, by the end of its output."""
    tail = output if len(output) <= _TAIL else "...\n" + output[-_TAIL:].partition("\n")[2]
    command = shlex.join(mask_words(argv))
    if len(command) > 200:
        command = command[:197] + "..."
    ended = f"exited with status {status}" if status > 0 else f"was killed by {_name_of(-status)}"
    last = tail.strip().rpartition("\n")[2].strip()
    if status == 1:  # Python's after an exception; output of libraries at exit follows it
        last = _last_exception(output) or last
    message, output_end = f"the script {ended}: {last or 'it printed nothing'}"[:500], f"{command}\n{tail}"
    if -status in _FROM_OUTSIDE:
        return Failure("died", message, output_end)
    return failure_of_message(message, output_end)


def _last_exception(text: str) -> str | None:
    """Return the line that names the exception of the last traceback; None without a traceback."""
    lines = text.splitlines()
    for at in reversed(range(len(lines))):
        before, traceback, after = lines[at].partition(_TRACEBACK)
        if not traceback or after.strip():
            continue
        for line in lines[at + 1 :]:
            text_of_line = line.removeprefix(before)  # launchers prefix each line with the rank
            if text_of_line.strip() and not text_of_line.startswith(" "):
                return text_of_line.strip()
    return None


def no_report(names: tuple[str, ...], command: CommandLine) -> str:
    """Return the failure of a script that exited with 0 and without a report.

    Args:
        names: The sweep's metrics.
        command: The command.
    """
    lines = f"append a line such as {example(names)} to $HPSEARCH_REPORTS, or use hpsearch.current_trial()"
    wandb = ""
    if mirrors_wandb(command, os.environ) and "wandb" in f"{_text_of(command)} {' '.join(command.command)}":
        wandb = (
            "; what it logs to W&B is reported if hpsearch is installed in the Python that runs it, and WANDB_MODE "
            "isn't disabled"
        )
    return f"a script must report at least once in a segment, but ended without: {lines}{wandb}"


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"


def lost(ending: Ending, tail: str) -> Failure:
    """Describe a script that ended because another one of its gang was lost."""
    return Failure("peer", f"the script of rank {ending.rank} failed first: {ending.message}"[:500], tail)


def probe(directory: Path) -> None:
    """Check that the disk has free space, since a full disk may have made a script fail.

    Raises:
        StorageError: The disk is full or failing.
    """
    file = directory / ".probe"
    with contextlib.suppress(UnwritableError), writing(f"the attempt's directory {directory}"):
        try:
            file.write_bytes(bytes(_PROBE))
        finally:
            file.unlink(missing_ok=True)


def mirrors_wandb(command: CommandLine, environment: Mapping[str, str]) -> bool:
    """Return whether what the script logs to W&B is reported: unless it mentions hpsearch, or HPSEARCH_WANDB is off."""
    return environment.get("HPSEARCH_WANDB") != "off" and "hpsearch" not in _text_of(command).lower()


def _text_of(command: CommandLine) -> str:
    if command.program is None:
        return ""
    try:
        return Path(command.directory, command.program).read_text("utf-8", "replace")
    except OSError:
        return ""
