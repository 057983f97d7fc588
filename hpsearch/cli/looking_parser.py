"""The words of commands that look at a study, at recorded tables, and at this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpsearch.cli import look, show
from hpsearch.cli.arguments import (
    Commands,
    add_command,
    add_study_command,
    add_weights,
    comma_list,
    number,
    positive,
)

__all__ = ["add_looking"]


def add_looking(commands: Commands) -> None:
    """Add the commands that look at studies and at this machine."""
    add_study_command(commands, "status", look.status, "show how a study stands")

    command = add_study_command(commands, "trials", look.trials, "list a study's trials")
    command.add_argument("--format", choices=("table", "csv", "json"), default="table")
    command.add_argument("--times", action="store_true", help="add each trial's running time in seconds")
    command.add_argument(
        "--metrics", action="store_true", help="add all metrics that were reported last (JSON always has them)"
    )
    command.add_argument(
        "--segments", action="store_true", help="list every started segment: its width, why, and how it ended"
    )

    text = "only those that no other one is better than, and that keep all constraints"
    command.add_argument("--front", action="store_true", help=text)
    add_weights(command, "the best first, by one number: what a unit of each metric is worth, e.g. accuracy=1,ms=0.01")

    command = add_study_command(commands, "best", look.best, "show a study's best trial, or its front")
    add_weights(command, "one of several metrics' best: what a unit of each is worth, e.g. accuracy=1,ms=0.01")
    command.add_argument("--format", choices=("table", "json"), default="table")

    text = "show a trial's network and what it costs; write a file that builds it without hpsearch"
    command = add_study_command(commands, "show", show.show, text)
    command.add_argument("trial", type=number, nargs="?", metavar="TRIAL", help="default: the best one")
    text = "write network.py, and weights.pt with the trial's weights, to this folder"
    command.add_argument("--output", type=Path, metavar="FOLDER", help=text)
    command.add_argument("--format", choices=("table", "json"), default="table")

    command = add_study_command(commands, "lineage", look.lineage, "show a forked trial's parameters over its training")
    command.add_argument("trial", type=number, nargs="?", metavar="TRIAL", help="default: the best one")
    command.add_argument("--format", choices=("table", "csv", "json"), default="table")

    command = add_study_command(commands, "export", look.export, "write CSV, Parquet and an Optuna storage")
    command.add_argument("--to", type=Path, help="where to (default: DIR/export)")

    command = add_study_command(commands, "tensorboard", look.tensorboard, "open TensorBoard on a study")
    command.add_argument("--host", default="localhost")
    command.add_argument("--port", type=int, default=6006, help="0: any free port (default: %(default)s)")

    command = add_command(commands, "benchmark", _benchmark, "compare search methods over recorded tables")
    command.add_argument("suite", type=Path, metavar="SUITE.yaml")
    comma_list(command, "--methods", str, "NAME", "which (default: all that there are); the first is compared with")
    command.add_argument("--seeds", type=positive, metavar="N", help="runs of each method on each task")
    comma_list(command, "--workers", positive, "N", "numbers of virtual workers, e.g. 1,4,16")
    command.add_argument("--quick", action="store_true", help="three seeds, and the first number of workers alone")
    command.add_argument("--jobs", type=positive, metavar="N", help="processes (default: one per CPU)")
    text = "where the tables' files are, if not beside their descriptions"
    command.add_argument("--data", type=Path, metavar="FOLDER", help=text)
    command.add_argument("--dir", type=Path, help="for the results (default: runs/benchmark-<suite>)")

    add_command(commands, "doctor", look.doctor, "look at this machine and its installation")


def _benchmark(given: argparse.Namespace) -> int:
    # NumPy, which no other command needs, takes as long to import as all of hpsearch.
    from hpsearch.cli.benchmark import benchmark

    return benchmark(given)
