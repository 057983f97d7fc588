"""The words of commands that look at a study, at recorded tables, and at this machine."""

from __future__ import annotations

from pathlib import Path

from hpsearch.cli.arguments import (
    Commands,
    add_command,
    add_format,
    add_study_command,
    add_trial_command,
    add_weights,
    comma_list,
    number,
    positive,
    target,
)

__all__ = ["add_looking"]

_BEST = "(default: the best one)"


def add_looking(commands: Commands) -> None:
    """Add the commands that look at studies and at this machine."""
    command = add_study_command(commands, "status", "look:status", "show how a study stands", newest=True)
    command.add_argument("--json", action="store_true", help="for programs")

    text = "watch a sweep that runs elsewhere: its trials as they go on, with keys to sort, open, pause and stop"
    add_study_command(commands, "watch", "watch:watch", text, newest=True)

    command = add_study_command(commands, "trials", "trials:trials", "list a study's trials", newest=True)
    add_format(command, "csv", "json")
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

    command.add_argument(
        "--where", metavar="EXPRESSION", help="only those for which it holds: 'lr < 0.01 and width > 1'"
    )
    text = "by a column, a parameter or a metric; those that lack it come last"
    command.add_argument("--sort", metavar="NAME[:desc]", help=text)
    text = "the first N, of those that --sort sorts, or else the best"
    command.add_argument("--top", type=positive, metavar="N", help=text)
    text = "group them by a column, a parameter or a metric: how many, the best and the median of each value"
    command.add_argument("--by", metavar="NAME", help=text)
    comma_list(command, "--columns", str, "NAME", "these alone, in this order, of columns, parameters and metrics")

    text = "show a study's best trial, or its front"
    command = add_study_command(commands, "best", "look:best", text, newest=True)
    add_weights(command, "one of several metrics' best: what a unit of each is worth, e.g. accuracy=1,ms=0.01")
    add_format(command, "json")
    text = "write trial.json, with its parameters, and its checkpoint to this folder; or all to one file, NAME.pt"
    command.add_argument("--save", type=target, metavar="FOLDER|FILE.pt", help=text)
    command.add_argument("--force", action="store_true", help="replace what --save wrote there before")

    text = "show all that is known of a trial: why it stopped, its segments, its curve, the end of its log"
    command = add_trial_command(commands, "trial", "one_trial:one_trial", text, _BEST)
    text = "lines of its log (default: %(default)s)"
    command.add_argument("--tail", type=number, default=10, metavar="N", help=text)
    add_format(command, "json")

    text = "print what a trial printed, or all trials, with the trial before each line"
    command = add_trial_command(commands, "logs", "logs:logs", text, "(default: all)")
    text = "go on as it grows, until no process runs the study"
    command.add_argument("-f", "--follow", action="store_true", help=text)
    command.add_argument("--tail", type=number, metavar="N", help="begin with the last N lines of each log")

    text = "show a trial's network and what it costs; write a file that builds it without hpsearch"
    command = add_trial_command(commands, "show", "show:show", text, _BEST)
    text = "write network.py, and weights.pt with the trial's weights, to this folder"
    command.add_argument("--output", type=target, metavar="FOLDER", help=text)
    add_format(command, "json")

    text = "show a forked trial's parameters over its training"
    command = add_trial_command(commands, "lineage", "look:lineage", text, _BEST)
    add_format(command, "csv", "json")

    text = "write CSV, Parquet and an Optuna storage, or fill what observers such as mlflow write"
    command = add_study_command(commands, "export", "look:export", text, newest=True)
    command.add_argument("--to", type=target, help="where to (default: DIR/export)")
    text = "show the study to this observer, as if it had watched: csv, mlflow, ...; may be repeated"
    command.add_argument("--observer", action="append", default=[], metavar="NAME", help=text)

    command = add_command(commands, "benchmark", "benchmark:benchmark", "compare search methods over recorded tables")
    command.add_argument("suite", type=Path, metavar="SUITE.yaml")
    comma_list(command, "--methods", str, "NAME", "which (default: all that there are); the first is compared with")
    command.add_argument("--seeds", type=positive, metavar="N", help="runs of each method on each task")
    comma_list(command, "--workers", positive, "N", "numbers of virtual workers, e.g. 1,4,16")
    command.add_argument("--quick", action="store_true", help="three seeds, and the first number of workers alone")
    command.add_argument("--jobs", type=positive, metavar="N", help="processes (default: one per CPU)")
    text = "where the tables' files are, if not beside their descriptions"
    command.add_argument("--data", type=Path, metavar="FOLDER", help=text)
    command.add_argument("--dir", type=Path, help="for the results (default: runs/benchmark-<suite>)")

    text = "print what a shell needs to complete commands, options and files"
    command = add_command(commands, "completion", "completion:completion", text)
    command.add_argument("shell", choices=("bash", "zsh", "tcsh"))

    add_command(commands, "doctor", "look:doctor", "look at this machine and its installation")
