"""Recognize a script that logs to W&B itself, so that hpsearch sees none of its metrics."""

from __future__ import annotations

import re
from pathlib import Path

from hpsearch.worker.job import CommandLine

__all__ = ["logs_to_wandb", "wandb_note"]

_LINES = "append lines to $HPSEARCH_REPORTS as well, or report by hpsearch.current_trial()"

_WAYS = (
    (
        r"^[ \t]*(import|from) wandb\b",
        "write `import hpsearch.compat.wandb as wandb` in place of `import wandb`, whose logs go elsewhere",
    ),
    (
        r"\bWandbLogger\b",
        "Lightning's WandbLogger logs to W&B itself: "
        "call hpsearch.integrations.lightning.fit(trainer, model) in place of trainer.fit(model)",
    ),
    (
        r"\breport_to\b.*\bwandb\b",
        "report_to=wandb makes transformers log to W&B itself: "
        "call hpsearch.integrations.transformers.train(trainer) in place of trainer.train()",
    ),
    (
        r"\blog_with\b.*\bwandb\b|\bWandb(Callback|MetricsLogger|Writer)\b",
        f"a library of the script logs to W&B itself: {_LINES}",
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
