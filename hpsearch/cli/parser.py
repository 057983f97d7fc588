"""The words of the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpsearch.cli import look, run

__all__ = ["build_parser"]

_EPILOG = """\
exit codes:
  0    done; a sweep ran to its end
  1    an error, said in one message
  2    the command line itself can't be read
  3    the sweep was ended before it was finished (hpsearch stop, limits.max_time); resume goes on
  4    the sweep is finished, but no trial has a value
  130  interrupted with Ctrl-C; resume goes on
"""


def build_parser() -> argparse.ArgumentParser:
    """Make the parser of `hpsearch`."""
    parser = argparse.ArgumentParser(
        prog="hpsearch",
        description="Hyperparameter and architecture search for PyTorch.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_running(commands)
    _add_looking(commands)
    return parser


def _add_running(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("run", help="run a sweep")
    _add_sweep(command)
    command.add_argument("--dir", type=Path, help="the study's directory (default: the next free runs/<name>-<n>)")
    _add_place(command, simulated=True)
    command.add_argument("--no-tensorboard", action="store_true", help="write no event files for TensorBoard")
    command.add_argument(
        "--durable",
        action="store_true",
        help="let the journal survive the loss of power, at some cost in speed",
    )
    command.set_defaults(command=run.run)

    command = commands.add_parser("plan", help="show what a sweep would run, without running it")
    _add_sweep(command)
    command.add_argument("--workers", type=_positive, metavar="N", help="predict for this many workers")
    command.set_defaults(command=run.plan)

    command = commands.add_parser("resume", help="go on with a study that was interrupted, stopped or killed")
    _add_going_on(command)
    command.set_defaults(command=run.resume)

    command = commands.add_parser("retry", help="let failed trials of a study run again, and go on with it")
    _add_going_on(command)
    command.add_argument("trials", type=_number, nargs="*", metavar="TRIAL", help="numbers (default: all that failed)")
    command.set_defaults(command=run.retry)

    command = commands.add_parser("stop", help="end a running sweep at the next reports of its trials")
    command.add_argument("dir", type=Path, metavar="DIR")
    command.set_defaults(command=look.stop)


def _add_going_on(command: argparse.ArgumentParser) -> None:
    command.add_argument("dir", type=Path, metavar="DIR")
    _add_place(command, simulated=False)
    command.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="extend or loosen it: run_cap, early_terminate.brackets, limits.*, resources.max_workers_per_trial, ...",
    )
    command.add_argument("--no-tensorboard", action="store_true", help="write no event files for TensorBoard")
    command.add_argument(
        "--durable",
        action="store_true",
        help="let the journal survive the loss of power, at some cost in speed",
    )


def _add_looking(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("status", help="show how a study stands")
    command.add_argument("dir", type=Path, metavar="DIR")
    command.set_defaults(command=look.status)

    command = commands.add_parser("trials", help="list a study's trials")
    command.add_argument("dir", type=Path, metavar="DIR")
    command.add_argument("--format", choices=("table", "csv", "json"), default="table")
    command.add_argument("--times", action="store_true", help="add each trial's running time in seconds")
    command.add_argument(
        "--metrics", action="store_true", help="add all metrics that were reported last (JSON always has them)"
    )
    command.add_argument(
        "--segments", action="store_true", help="list every started segment: its width, why, and how it ended"
    )
    command.set_defaults(command=look.trials)

    command = commands.add_parser("best", help="show a study's best trial")
    command.add_argument("dir", type=Path, metavar="DIR")
    command.add_argument("--format", choices=("table", "json"), default="table")
    command.set_defaults(command=look.best)

    command = commands.add_parser("export", help="write CSV, Parquet and an Optuna storage")
    command.add_argument("dir", type=Path, metavar="DIR")
    command.add_argument("--to", type=Path, help="where to (default: DIR/export)")
    command.set_defaults(command=look.export)

    command = commands.add_parser("tensorboard", help="open TensorBoard on a study")
    command.add_argument("dir", type=Path, metavar="DIR")
    command.add_argument("--host", default="localhost")
    command.add_argument("--port", type=int, default=6006, help="0: any free port (default: %(default)s)")
    command.set_defaults(command=look.tensorboard)

    command = commands.add_parser("doctor", help="look at this machine and its installation")
    command.set_defaults(command=look.doctor)


def _add_sweep(command: argparse.ArgumentParser) -> None:
    command.add_argument("sweep", type=Path, metavar="SWEEP.yaml")
    command.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key of the sweep, e.g. --set early_terminate.max_iter=9; may be repeated",
    )


def _add_place(command: argparse.ArgumentParser, *, simulated: bool) -> None:
    backends = ["ray", "inline", "simulated"] if simulated else ["ray", "inline"]
    command.add_argument("--workers", type=_positive, metavar="N", help="workers: each runs a trial, or a part of one")
    command.add_argument(
        "--backend",
        choices=backends,
        default="ray",
        help="inline runs in this process, for a debugger"
        + ("; simulated runs nothing and is the same as plan" if simulated else ""),
    )
    command.add_argument("--address", help="a Ray cluster to join (default: RAY_ADDRESS, or a local Ray)")


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be the number of a trial, got {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, got {text!r}")
    return int(text)
