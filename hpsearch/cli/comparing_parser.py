"""The words of commands that put a study, or several, before a person."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpsearch.cli.arguments import Commands, add_command, positive, target

__all__ = ["add_comparing"]


def add_comparing(commands: Commands) -> None:
    """Add the commands that compare studies, and write them on a page."""
    text = "show studies beside each other; those that differ in their seed alone are runs of one side"
    command = add_command(commands, "compare", "compare:compare", text)
    command.add_argument("dirs", type=Path, nargs="+", metavar="DIR")
    text = "csv: every change of each study's best, with what it had cost"
    command.add_argument("--format", choices=("table", "csv", "json"), default="table", help=text)
    command.add_argument(
        "--plots", type=target, metavar="FOLDER", help="draw the best over trials, iterations and time"
    )

    text = "write a study on one HTML page; several that search for the same are compared first"
    command = add_command(commands, "report", "report:report", text)
    command.add_argument("dirs", type=Path, nargs="*", metavar="DIR", help="(default: the newest study in runs)")
    command.add_argument("--output", type=target, metavar="FILE", help="(default: report.html in the first DIR)")
    command.add_argument("--svg", type=target, metavar="FOLDER", help="write each picture there, too")
    command.add_argument("--png", help=argparse.SUPPRESS)

    text = "open TensorBoard on a study, or on several beside each other, also while they run"
    command = add_command(commands, "tensorboard", "tensorboard:tensorboard", text)
    command.add_argument("dirs", type=Path, nargs="*", metavar="DIR", help="(default: the newest study in runs)")
    text = "show the best N trials, as many of each study (default: %(default)s)"
    command.add_argument("--top", type=positive, default=20, metavar="N", help=text)
    command.add_argument("--all", action="store_true", help="show all trials")
    text = "write what TensorBoard reads to this folder, and leave it there"
    command.add_argument("--output", type=target, metavar="FOLDER", help=text)
    command.add_argument("--no-browser", action="store_true", help="print the address alone")
    command.add_argument("--host", default="localhost")
    command.add_argument("--port", type=int, default=6006, help="0: any free port (default: %(default)s)")
