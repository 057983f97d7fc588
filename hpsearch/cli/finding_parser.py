"""The words of commands that find studies, label them and remove them."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpsearch.cli.arguments import Commands, add_command, add_format, add_study_command

__all__ = ["add_finding"]


def add_finding(commands: Commands) -> None:
    """Add the commands on many studies, and on what people wrote on one."""
    command = add_command(commands, "list", "listing:list_studies", "list the studies of a folder, the newest first")
    command.add_argument("folder", type=Path, nargs="?", default=Path("runs"), metavar="FOLDER", help="(default: runs)")
    text = "only those with this tag; may be repeated: with all of them"
    command.add_argument("--tag", action="append", default=[], metavar="TAG", help=text)
    text = "study, name, state, trials, best, begun, changed, took or size"
    command.add_argument("--sort", metavar="NAME[:desc]", help=text)
    add_format(command, "csv", "json")

    command = add_study_command(commands, "tag", "listing:tag", "put tags on a study; without any, show them")
    command.add_argument("tags", nargs="*", metavar="TAG", help="a word")
    command.add_argument("--remove", action="store_true", help="take these tags off")

    text = "write a study's note, in place of the former; without a text, show it"
    command = add_study_command(commands, "note", "listing:note", text)
    command.add_argument("text", nargs="?", metavar="TEXT")

    command = add_command(commands, "rm", "removing:rm", "delete studies, after a question")
    command.add_argument("dirs", type=Path, nargs="+", metavar="DIR")
    _add_yes(command)

    text = "delete the checkpoints and event files of a study that nothing needs, after a question"
    command = add_study_command(commands, "clean", "removing:clean", text)
    command.add_argument("--logs", action="store_true", help="also the logs of trials that ended well")
    _add_yes(command)


def _add_yes(command: argparse.ArgumentParser) -> None:
    command.add_argument("--yes", action="store_true", help="don't ask")
