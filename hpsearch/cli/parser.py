"""The words of the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpsearch.cli.arguments import Commands, add_command, add_format, add_study_command, number, positive, target
from hpsearch.cli.comparing_parser import add_comparing
from hpsearch.cli.finding_parser import add_finding
from hpsearch.cli.looking_parser import add_looking
from hpsearch.cli.steering_parser import add_steering
from hpsearch.cli.version import ShowVersion

__all__ = ["build_parser"]

_EPILOG = """\
exit codes:
  0    done; a sweep ran to its end, to its target, or out of patience
  1    an error, said in one message
  2    the command line itself can't be read
  3    the sweep was ended before it was finished (hpsearch stop, limits.max_time); resume goes on
  4    the sweep is finished or out of patience, but no trial has a value
  5    ask: nothing to ask for now; first tell of some of the open trials
  6    ask: the sweep is finished, there is nothing more to ask for
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
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show the versions of hpsearch, torch and Ray")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_running(commands)
    add_steering(commands)
    _add_asking(commands)
    add_looking(commands)
    add_comparing(commands)
    add_finding(commands)
    _add_predicting(commands)
    return parser


def _add_running(commands: Commands) -> None:
    command = add_command(commands, "run", "run:run", "run a sweep")
    _add_sweep(command)
    command.add_argument("--dir", type=Path, help="the study's directory (default: the next free runs/<name>-<n>)")
    text = "begin with results that exist: a study's directory, a CSV file, or sqlite:///study.db#name of Optuna's"
    command.add_argument("--from", dest="warm_start", action="append", default=[], metavar="SOURCE", help=text)
    command.add_argument("--tag", action="append", default=[], metavar="TAG", help="put a tag on it; may be repeated")
    command.add_argument("--note", metavar="TEXT", help="write a note on it, such as why it is run")
    _add_place(command)
    _add_files(command)
    _add_loudness(command)
    command.set_defaults(failed=None)

    command = add_command(commands, "plan", "run:plan", "show what a sweep would run, without running it")
    _add_sweep(command)
    command.add_argument("--workers", type=positive, metavar="N", help="predict for this many workers")

    text = "run a trial of a sweep for two iterations, restored and on a warm worker, too, and say what differs"
    command = add_command(commands, "check", "check:check", text)
    _add_sweep(command)
    add_format(command, "json")

    text = "write a W&B sweep file so that it runs, with a comment above each line that was changed"
    command = add_command(commands, "convert", "convert:convert", text)
    command.add_argument("sweep", type=Path, metavar="FILE")
    command.add_argument("--output", type=target, metavar="FILE", help="a new file (default: print it)")

    text = "run the best configurations of a study again, with other seeds: mean and spread decide"
    command = add_command(commands, "rerun", "run:rerun", text)
    command.add_argument("study", type=Path, metavar="DIR")
    text = "configurations: the params of the best trials (default: %(default)s)"
    command.add_argument("--top", type=positive, default=5, metavar="N", help=text)
    command.add_argument("--seeds", type=positive, default=3, metavar="N", help="runs of each (default: %(default)s)")
    text = "of each run (default: as many as the study gives a trial at most)"
    command.add_argument("--iterations", type=positive, metavar="N", help=text)
    text = "the new study's directory (default: the next free runs/<name>-rerun-<n>)"
    command.add_argument("--dir", type=Path, help=text)
    _add_place(command)
    _add_files(command)
    _add_loudness(command)
    command.set_defaults(failed=None)

    text = "go on with a study that was interrupted, stopped or killed, or is paused"
    command = add_study_command(commands, "resume", "run:go_on", text)
    _add_going_on(command)
    command.set_defaults(failed=None)

    text = "let failed trials of a study run again, and go on with it"
    command = add_study_command(commands, "retry", "run:go_on", text)
    _add_going_on(command)
    text = "numbers (default: all that failed)"
    command.add_argument("failed", type=number, nargs="*", metavar="TRIAL", help=text)

    _add_design(commands)


def _add_design(commands: Commands) -> None:
    text = "make a network for a data set: search, train the best on all rows, and test it"
    command = add_command(commands, "design", "design:design_network", text)
    text = "a CSV or Parquet file, a folder with a folder of images for each class, an IDX or an NPZ file"
    command.add_argument("data", type=Path, nargs="?", metavar="DATA", help=text)
    command.add_argument("--target", metavar="NAME", help="the column, or the array, that is predicted")
    text = "accuracy, balanced_accuracy, f1 or log_loss; rmse, mae or r2 (default: accuracy, rmse)"
    command.add_argument("--goal", metavar="NAME", help=text)
    text = "bound the network: parameters, flops or latency_ms (for one row); e.g. parameters=1e6; may be repeated"
    command.add_argument("--limit", action="append", default=[], metavar="NAME=NUMBER", help=text)
    command.add_argument("--time", metavar="TIME", help="for all of it, such as 90s or 1h (default: 10m)")
    command.add_argument("--output", type=target, metavar="DIR", help="(default: runs/design-<name of DATA>)")
    text = "go on with a design that was interrupted, or whose sweep.yaml you have changed"
    command.add_argument("--resume", type=Path, metavar="DIR", help=text)
    command.add_argument("--sweep-only", action="store_true", help="end when the sweep is written, before it runs")
    text = "of the rows, which the search never sees (default: %(default)s)"
    command.add_argument("--test-share", type=float, default=0.2, metavar="SHARE", help=text)
    command.add_argument("--seed", type=number, default=0, metavar="N", help="of all that is random (default: 0)")
    command.add_argument("--workers", type=positive, metavar="N", help="trials at a time (default: one for each core)")
    text = "inline runs in this process, one trial at a time"
    command.add_argument("--backend", choices=("ray", "inline"), default="ray", help=text)
    command.add_argument("-q", "--quiet", action="store_true", help="print errors and the result alone")


def _add_asking(commands: Commands) -> None:
    command = add_command(commands, "ask", "ask:ask", "print trials to run elsewhere, a line of JSON for each")
    command.add_argument("sweep", type=Path, metavar="SWEEP.yaml|DIR", help="a sweep file, or a study's directory")
    command.add_argument("--dir", type=Path, help="the study's directory, with a sweep file; made where there is none")
    command.add_argument("--count", type=positive, default=1, metavar="N", help="most trials to ask for (default: 1)")
    text = "print those that were asked for and not told, and ask for none"
    command.add_argument("--open", action="store_true", help=text)
    _add_set(command, "change a key of the sweep, or extend the study's, e.g. --set run_cap=200; may be repeated")

    command = add_study_command(commands, "tell", "ask:tell", "tell what came of a trial that was asked for")
    _add_asked_trial(command)
    command.add_argument("metrics", nargs="*", metavar="NAME=VALUE", help="one report")
    text = "the iteration of the report: one after the other, or the last one alone"
    command.add_argument("--iteration", type=positive, metavar="N", help=text)
    text = "the report, or an array of them, one per iteration (-: standard input)"
    command.add_argument("--json", type=Path, metavar="FILE", help=text)
    command.add_argument("--ended", action="store_true", help="it ended by itself, before the iteration that was asked")
    command.add_argument("--failed", metavar="TEXT", help="it failed, and why")

    text = "give up an open trial, which is then asked for again"
    _add_asked_trial(add_study_command(commands, "give-up", "ask:give_up", text))


def _add_asked_trial(command: argparse.ArgumentParser) -> None:
    command.add_argument("trial", type=number, metavar="TRIAL", help="its number")
    text = "as `ask` printed it; needed from the trial's second attempt on"
    command.add_argument("--attempt", type=positive, metavar="N", help=text)


def _add_predicting(commands: Commands) -> None:
    text = "predict for new examples with a designed network: CSV, the probability of each class in it"
    command = add_study_command(commands, "predict", "predict:predict", text)
    command.add_argument("new", type=Path, metavar="NEW", help="a file or folder like what it was designed for")
    command.add_argument("--output", type=target, metavar="FILE", help="write there (default: standard output)")
    command.add_argument("--trees", action="store_true", help="with the trees that lie beside the network")


def _add_sweep(command: argparse.ArgumentParser) -> None:
    command.add_argument("sweep", type=Path, metavar="SWEEP.yaml")
    _add_set(command, "change a key of the sweep, e.g. --set early_terminate.max_iter=9; may be repeated")


def _add_going_on(command: argparse.ArgumentParser) -> None:
    _add_place(command)
    loosened = "run_cap, early_terminate.brackets, limits.*, metric.target, resources.max_workers_per_trial, ..."
    _add_set(command, f"extend or loosen it: {loosened}")
    _add_files(command)
    _add_loudness(command)


def _add_loudness(command: argparse.ArgumentParser) -> None:
    group = command.add_mutually_exclusive_group()
    group.add_argument("-q", "--quiet", action="store_true", help="print errors and the result alone")
    group.add_argument("-v", "--verbose", action="store_true", help="print what is decided on each trial, and why")


def _add_set(command: argparse.ArgumentParser, text: str) -> None:
    command.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help=text)


def _add_files(command: argparse.ArgumentParser) -> None:
    command.add_argument("--no-tensorboard", action="store_true", help="write no event files for TensorBoard")
    text = "let the journal and its checkpoints survive the loss of power, at some cost in speed"
    command.add_argument("--durable", action="store_true", help=text)


def _add_place(command: argparse.ArgumentParser) -> None:
    backends = ["ray", "inline", "simulated"]
    text = "inline runs in this process, for a debugger; simulated plays a recorded table back, on a virtual clock"
    command.add_argument("--workers", type=positive, metavar="N", help="workers: each runs a trial, or a part of one")
    command.add_argument("--backend", choices=backends, default="ray", help=text)
    command.add_argument("--address", help="a Ray cluster to join (default: RAY_ADDRESS, or a local Ray)")
