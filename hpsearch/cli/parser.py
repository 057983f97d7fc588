"""The words of the command line."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from hpsearch.cli import ask, convert, look, predict, run, show

__all__ = ["build_parser"]

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_Function = Callable[[argparse.Namespace], int]

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
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_running(commands)
    _add_asking(commands)
    _add_looking(commands)
    _add_predicting(commands)
    return parser


def _add_running(commands: _Commands) -> None:
    command = _add_command(commands, "run", run.run, "run a sweep")
    _add_sweep(command)
    command.add_argument("--dir", type=Path, help="the study's directory (default: the next free runs/<name>-<n>)")
    text = "begin with results that exist: a study's directory, a CSV file, or sqlite:///study.db#name of Optuna's"
    command.add_argument("--from", dest="warm_start", action="append", default=[], metavar="SOURCE", help=text)
    _add_place(command)
    _add_files(command)
    command.set_defaults(failed=None)

    command = _add_command(commands, "plan", run.plan, "show what a sweep would run, without running it")
    _add_sweep(command)
    command.add_argument("--workers", type=_positive, metavar="N", help="predict for this many workers")

    text = "write a W&B sweep file so that it runs, with a comment above each line that was changed"
    command = _add_command(commands, "convert", convert.convert, text)
    command.add_argument("sweep", type=Path, metavar="FILE")
    command.add_argument("--output", type=Path, metavar="FILE", help="a new file (default: print it)")

    text = "run the best configurations of a study again, with other seeds: mean and spread decide"
    command = _add_command(commands, "rerun", run.rerun, text)
    command.add_argument("study", type=Path, metavar="DIR")
    text = "configurations: the params of the best trials (default: %(default)s)"
    command.add_argument("--top", type=_positive, default=5, metavar="N", help=text)
    command.add_argument("--seeds", type=_positive, default=3, metavar="N", help="runs of each (default: %(default)s)")
    text = "of each run (default: as many as the study gives a trial at most)"
    command.add_argument("--iterations", type=_positive, metavar="N", help=text)
    text = "the new study's directory (default: the next free runs/<name>-rerun-<n>)"
    command.add_argument("--dir", type=Path, help=text)
    _add_place(command)
    _add_files(command)
    command.set_defaults(failed=None)

    text = "go on with a study that was interrupted, stopped or killed"
    command = _add_study_command(commands, "resume", run.go_on, text)
    _add_going_on(command)
    command.set_defaults(failed=None)

    text = "let failed trials of a study run again, and go on with it"
    command = _add_study_command(commands, "retry", run.go_on, text)
    _add_going_on(command)
    text = "numbers (default: all that failed)"
    command.add_argument("failed", type=_number, nargs="*", metavar="TRIAL", help=text)

    _add_design(commands)

    _add_study_command(commands, "stop", look.stop, "end a running sweep at the next reports of its trials")


def _add_design(commands: _Commands) -> None:
    text = "make a network for a data set: search, train the best on all rows, and test it"
    command = _add_command(commands, "design", _design, text)
    text = "a CSV or Parquet file, a folder with a folder of images for each class, an IDX or an NPZ file"
    command.add_argument("data", type=Path, nargs="?", metavar="DATA", help=text)
    command.add_argument("--target", metavar="NAME", help="the column, or the array, that is predicted")
    text = "accuracy, balanced_accuracy, f1 or log_loss; rmse, mae or r2 (default: accuracy, rmse)"
    command.add_argument("--goal", metavar="NAME", help=text)
    text = "bound the network: parameters, flops or latency_ms (for one row); e.g. parameters=1e6; may be repeated"
    command.add_argument("--limit", action="append", default=[], metavar="NAME=NUMBER", help=text)
    command.add_argument("--time", metavar="TIME", help="for all of it, such as 90s or 1h (default: 10m)")
    command.add_argument("--output", type=Path, metavar="DIR", help="(default: runs/design-<name of DATA>)")
    text = "go on with a design that was interrupted, or whose sweep.yaml you have changed"
    command.add_argument("--resume", type=Path, metavar="DIR", help=text)
    command.add_argument("--sweep-only", action="store_true", help="end when the sweep is written, before it runs")
    text = "of the rows, which the search never sees (default: %(default)s)"
    command.add_argument("--test-share", type=float, default=0.2, metavar="SHARE", help=text)
    command.add_argument("--seed", type=_number, default=0, metavar="N", help="of all that is random (default: 0)")
    command.add_argument("--workers", type=_positive, metavar="N", help="trials at a time (default: one for each core)")
    text = "inline runs in this process, one trial at a time"
    command.add_argument("--backend", choices=("ray", "inline"), default="ray", help=text)


def _add_asking(commands: _Commands) -> None:
    command = _add_command(commands, "ask", ask.ask, "print trials to run elsewhere, a line of JSON for each")
    command.add_argument("sweep", type=Path, metavar="SWEEP.yaml|DIR", help="a sweep file, or a study's directory")
    command.add_argument("--dir", type=Path, help="the study's directory, with a sweep file; made where there is none")
    command.add_argument("--count", type=_positive, default=1, metavar="N", help="most trials to ask for (default: 1)")
    text = "print those that were asked for and not told, and ask for none"
    command.add_argument("--open", action="store_true", help=text)
    _add_set(command, "change a key of the sweep, or extend the study's, e.g. --set run_cap=200; may be repeated")

    command = _add_study_command(commands, "tell", ask.tell, "tell what came of a trial that was asked for")
    _add_asked_trial(command)
    command.add_argument("metrics", nargs="*", metavar="NAME=VALUE", help="one report")
    text = "the iteration of the report: one after the other, or the last one alone"
    command.add_argument("--iteration", type=_positive, metavar="N", help=text)
    text = "the report, or an array of them, one per iteration (-: standard input)"
    command.add_argument("--json", type=Path, metavar="FILE", help=text)
    command.add_argument("--ended", action="store_true", help="it ended by itself, before the iteration that was asked")
    command.add_argument("--failed", metavar="TEXT", help="it failed, and why")

    text = "give up an open trial, which is then asked for again"
    _add_asked_trial(_add_study_command(commands, "give-up", ask.give_up, text))


def _add_asked_trial(command: argparse.ArgumentParser) -> None:
    command.add_argument("trial", type=_number, metavar="TRIAL", help="its number")
    text = "as `ask` printed it; needed from the trial's second attempt on"
    command.add_argument("--attempt", type=_positive, metavar="N", help=text)


def _add_looking(commands: _Commands) -> None:
    _add_study_command(commands, "status", look.status, "show how a study stands")

    command = _add_study_command(commands, "trials", look.trials, "list a study's trials")
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
    _add_weights(command, "the best first, by one number: what a unit of each metric is worth, e.g. accuracy=1,ms=0.01")

    command = _add_study_command(commands, "best", look.best, "show a study's best trial, or its front")
    _add_weights(command, "one of several metrics' best: what a unit of each is worth, e.g. accuracy=1,ms=0.01")
    command.add_argument("--format", choices=("table", "json"), default="table")

    text = "show a trial's network and what it costs; write a file that builds it without hpsearch"
    command = _add_study_command(commands, "show", show.show, text)
    command.add_argument("trial", type=_number, nargs="?", metavar="TRIAL", help="default: the best one")
    text = "write network.py, and weights.pt with the trial's weights, to this folder"
    command.add_argument("--output", type=Path, metavar="FOLDER", help=text)
    command.add_argument("--format", choices=("table", "json"), default="table")

    command = _add_study_command(
        commands, "lineage", look.lineage, "show a forked trial's parameters over its training"
    )
    command.add_argument("trial", type=_number, nargs="?", metavar="TRIAL", help="default: the best one")
    command.add_argument("--format", choices=("table", "csv", "json"), default="table")

    command = _add_study_command(commands, "export", look.export, "write CSV, Parquet and an Optuna storage")
    command.add_argument("--to", type=Path, help="where to (default: DIR/export)")

    command = _add_study_command(commands, "tensorboard", look.tensorboard, "open TensorBoard on a study")
    command.add_argument("--host", default="localhost")
    command.add_argument("--port", type=int, default=6006, help="0: any free port (default: %(default)s)")

    command = _add_command(commands, "benchmark", _benchmark, "compare search methods over recorded tables")
    command.add_argument("suite", type=Path, metavar="SUITE.yaml")
    _add_list(command, "--methods", str, "NAME", "which (default: all that there are); the first is compared with")
    command.add_argument("--seeds", type=_positive, metavar="N", help="runs of each method on each task")
    _add_list(command, "--workers", _positive, "N", "numbers of virtual workers, e.g. 1,4,16")
    command.add_argument("--quick", action="store_true", help="three seeds, and the first number of workers alone")
    command.add_argument("--jobs", type=_positive, metavar="N", help="processes (default: one per CPU)")
    text = "where the tables' files are, if not beside their descriptions"
    command.add_argument("--data", type=Path, metavar="FOLDER", help=text)
    command.add_argument("--dir", type=Path, help="for the results (default: runs/benchmark-<suite>)")

    _add_command(commands, "doctor", look.doctor, "look at this machine and its installation")


def _add_predicting(commands: _Commands) -> None:
    text = "predict for new examples with a designed network: CSV, the probability of each class in it"
    command = _add_study_command(commands, "predict", predict.predict, text)
    command.add_argument("new", type=Path, metavar="NEW", help="a file or folder like what it was designed for")
    command.add_argument("--output", type=Path, metavar="FILE", help="write there (default: standard output)")
    command.add_argument("--trees", action="store_true", help="with the trees that lie beside the network")


def _add_weights(command: argparse.ArgumentParser, text: str) -> None:
    command.add_argument("--weights", type=_weights, metavar="METRIC=WEIGHT,...", help=text)


def _weights(given: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for item in given.split(","):
        name, _, weight = (part.strip() for part in item.rpartition("="))
        if name in weights:
            raise argparse.ArgumentTypeError(f"must name each metric once, got {name} again")
        try:
            weights[name] = float(weight)
        except ValueError:
            name = ""
        if not name:
            raise argparse.ArgumentTypeError(f"must be METRIC=WEIGHT, such as accuracy=1,latency_ms=0.01, got {item!r}")
    return weights


def _add_command(commands: _Commands, name: str, function: _Function, text: str) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text)
    command.set_defaults(command=function)
    return command


def _add_study_command(commands: _Commands, name: str, function: _Function, text: str) -> argparse.ArgumentParser:
    command = _add_command(commands, name, function, text)
    command.add_argument("dir", type=Path, metavar="DIR")
    return command


def _add_sweep(command: argparse.ArgumentParser) -> None:
    command.add_argument("sweep", type=Path, metavar="SWEEP.yaml")
    _add_set(command, "change a key of the sweep, e.g. --set early_terminate.max_iter=9; may be repeated")


def _add_going_on(command: argparse.ArgumentParser) -> None:
    _add_place(command)
    loosened = "run_cap, early_terminate.brackets, limits.*, metric.target, resources.max_workers_per_trial, ..."
    _add_set(command, f"extend or loosen it: {loosened}")
    _add_files(command)


def _add_set(command: argparse.ArgumentParser, text: str) -> None:
    command.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help=text)


def _add_files(command: argparse.ArgumentParser) -> None:
    command.add_argument("--no-tensorboard", action="store_true", help="write no event files for TensorBoard")
    text = "let the journal survive the loss of power, at some cost in speed"
    command.add_argument("--durable", action="store_true", help=text)


def _add_place(command: argparse.ArgumentParser) -> None:
    backends = ["ray", "inline", "simulated"]
    text = "inline runs in this process, for a debugger; simulated plays a recorded table back, on a virtual clock"
    command.add_argument("--workers", type=_positive, metavar="N", help="workers: each runs a trial, or a part of one")
    command.add_argument("--backend", choices=backends, default="ray", help=text)
    command.add_argument("--address", help="a Ray cluster to join (default: RAY_ADDRESS, or a local Ray)")


def _add_list(
    command: argparse.ArgumentParser, name: str, kind: Callable[[str], object], metavar: str, text: str
) -> None:
    def listed(given: str) -> list[object]:
        return [kind(item.strip()) for item in given.split(",")]

    command.add_argument(name, type=listed, metavar=f"{metavar},...", help=text)


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number from 0, such as that of a trial, got {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, got {text!r}")
    return int(text)


def _design(given: argparse.Namespace) -> int:
    given.began = time.time()  # before torch and scikit-learn, whose import is a part of --time
    from hpsearch.cli.design import design_network

    return design_network(given)


def _benchmark(given: argparse.Namespace) -> int:
    # NumPy, which no other command needs, takes as long to import as all of hpsearch.
    from hpsearch.cli.benchmark import benchmark

    return benchmark(given)
