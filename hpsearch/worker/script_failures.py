"""Determine why a script failed or reported nothing, from its output, its exit status and its source."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
from pathlib import Path
from typing import Literal

from hpsearch.config.masking import mask_words
from hpsearch.errors import UnwritableError
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
    kind: Literal["died", "raised"] = "died" if -status in _FROM_OUTSIDE else "raised"
    return Failure(kind, f"the script {ended}: {last or 'it printed nothing'}"[:500], f"{command}\n{tail}")


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
    mend = logs_to_wandb(command) or lines
    return f"a script must report at least once in a segment, but ended without: {mend}"


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


_LINES = "append lines to $HPSEARCH_REPORTS as well, or report by hpsearch.current_trial()"

_WAYS = (
    (
        r"\bWandbLogger\b",
        "Lightning's WandbLogger logs to W&B itself: "
        "call hpsearch.integrations.lightning.fit(trainer, model) in place of trainer.fit(model)",
    ),
    (
        r"\breport_to\b(.*|\s*=\s*\[?\s*[\"'])\bwandb\b",
        "report_to=wandb makes transformers log to W&B itself: "
        "call hpsearch.integrations.transformers.train(trainer) in place of trainer.train()",
    ),
    (
        r"\blog_with\b.*\bwandb\b|\bWandb(Callback|MetricsLogger|Writer)\b",
        f"a library of the script logs to W&B itself: {_LINES}",
    ),
    (
        r"^[ \t]*(import ([\w. ]+,[ \t]*)*|from )wandb\b",
        "write `import hpsearch.compat.wandb as wandb` in place of `import wandb`, whose logs go elsewhere",
    ),
)
"""Patterns in a script or its command, and the advice for each."""


def logs_to_wandb(command: CommandLine) -> str | None:
    """Return advice for a script that logs to W&B itself; None if it doesn't seem to."""
    text = f"{_text_of(command)}\n{' '.join(command.command)}"
    return next((advice for pattern, advice in _WAYS if re.search(pattern, text, re.MULTILINE)), None)


def wandb_note(command: CommandLine) -> str | None:
    """Return a note on a script that logs to W&B and doesn't mention hpsearch; None for any other."""
    advice = logs_to_wandb(command)
    if advice is None or "hpsearch" in _text_of(command).lower():
        return None
    return f"{command.program} seems to report nothing to hpsearch: {advice}"


def _text_of(command: CommandLine) -> str:
    if command.program is None:
        return ""
    try:
        return Path(command.directory, command.program).read_text("utf-8", "replace")
    except OSError:
        return ""
