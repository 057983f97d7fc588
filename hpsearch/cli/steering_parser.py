"""The words of commands that steer a study."""

from __future__ import annotations

from pathlib import Path

from hpsearch.cli.arguments import Commands, add_format, add_study_command, number, positive

__all__ = ["add_steering"]


def add_steering(commands: Commands) -> None:
    """Add the commands that steer a study, and show how it was steered."""
    text = "let a running sweep rest: its trials end at their next reports, and go on with resume"
    add_study_command(commands, "pause", "steer:pause", text)
    add_study_command(commands, "stop", "steer:stop", "end a running sweep at the next reports of its trials")
    text = "end a running sweep at once; what ran since the last checkpoints runs again on resume"
    add_study_command(commands, "cancel", "steer:cancel", text)

    command = add_study_command(commands, "extend", "steer:extend", "give a study more to do, while it runs or before")
    command.add_argument("--run-cap", type=positive, metavar="N", help="trials in all")
    command.add_argument("--brackets", type=positive, metavar="N", help="brackets in all, of Hyperband and the like")
    text = "iterations of the best trials, where the scheduler can raise them"
    command.add_argument("--max-iter", type=positive, metavar="N", help=text)

    command = add_study_command(commands, "add", "steer:add", "let points of your own be tried next")
    text = "a point, its values in YAML; what it leaves out is drawn; may be repeated"
    command.add_argument("--params", action="append", default=[], metavar="NAME=VALUE,...", help=text)
    text = "a point, or an array of them (-: standard input)"
    command.add_argument("--json", type=Path, metavar="FILE", help=text)

    command = add_study_command(commands, "prune", "steer:prune", "end trials, and go on without them")
    command.add_argument("trials", type=number, nargs="+", metavar="TRIAL", help="numbers")

    text = "show who ran and steered a study, when, and what came of it"
    add_format(add_study_command(commands, "history", "steer:history", text), "json")
