"""The commands of the command line: where each is, and what it does in a line."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import hpsearch

__all__ = ["COMMANDS", "build_parser"]

COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("run:run", "run a sweep"),
    "plan": ("plan:plan", "show what a sweep would run, without running it"),
    "check": (
        "check:check",
        "run a trial of a sweep for two iterations, restored and on a warm worker, too, and say what differs",
    ),
    "convert": (
        "convert:convert",
        "write a W&B sweep file so that it runs, with a comment above each line that was changed",
    ),
    "rerun": ("rerun:rerun", "run the best configurations of a study again, with other seeds: mean and spread decide"),
    "resume": ("resume:resume", "go on with a study that was interrupted, stopped or killed, or is paused"),
    "retry": ("resume:retry", "let failed trials of a study run again, and go on with it"),
    "design": (
        "design:design_network",
        "make a network for a data set: search, train the best on all rows, and test it",
    ),
    "pause": ("steer:pause", "let a running sweep rest: its trials end at their next reports, and go on with resume"),
    "stop": ("steer:stop", "end a running sweep at the next reports of its trials"),
    "cancel": ("steer:cancel", "end a running sweep at once; what ran since the last checkpoints runs again on resume"),
    "extend": ("steer:extend", "give a study more to do, while it runs or before"),
    "add": ("steer:add", "let points of your own be tried next"),
    "prune": ("steer:prune", "end trials, and go on without them"),
    "history": ("history:history", "show who ran and steered a study, when, and what came of it"),
    "ask": ("ask:ask", "print trials to run elsewhere, a line of JSON for each"),
    "tell": ("ask:tell", "tell what came of a trial that was asked for"),
    "give-up": ("ask:give_up", "give up an open trial, which is then asked for again"),
    "status": ("status:status", "show how a study stands"),
    "watch": (
        "watch:watch",
        "watch a sweep that runs elsewhere: its trials as they go on, with keys to sort, open, pause and stop",
    ),
    "trials": ("trials:trials", "list a study's trials"),
    "best": ("best:best", "show a study's best trial, or its front"),
    "trial": (
        "trial:trial",
        "show all that is known of a trial: why it stopped, its segments, its curve, the end of its log",
    ),
    "logs": ("logs:logs", "print what a trial printed, or all trials, with the trial before each line"),
    "show": ("show:show", "show a trial's network and what it costs; write a file that builds it without hpsearch"),
    "lineage": ("lineage:lineage", "show a forked trial's parameters over its training"),
    "export": (
        "export:export",
        "write CSV, Parquet and an Optuna storage, or fill what observers such as mlflow write",
    ),
    "benchmark": ("benchmark:benchmark", "compare search methods over recorded tables"),
    "completion": ("completion:completion", "print what a shell needs to complete commands, options and files"),
    "doctor": ("doctor:doctor", "look at this machine and its installation"),
    "compare": (
        "compare:compare",
        "show studies beside each other; those that differ in their seed alone are runs of one side",
    ),
    "report": ("report:report", "write a study on one HTML page; several that search for the same are compared first"),
    "tensorboard": (
        "tensorboard:tensorboard",
        "open TensorBoard on a study, or on several beside each other, also while they run",
    ),
    "list": ("list:list_studies", "list the studies of a folder, the newest first"),
    "tag": ("labels:tag", "put tags on a study; without any, show them"),
    "note": ("labels:note", "write a study's note, in place of the former; without a text, show it"),
    "rm": ("removing:rm", "delete studies, after a question"),
    "clean": (
        "removing:clean",
        "delete the checkpoints and event files of a study that nothing needs, after a question",
    ),
    "predict": (
        "predict:predict",
        "predict for new examples with a designed network: CSV, the probability of each class in it",
    ),
}
"""Each command's function, as `module:function` of `hpsearch.cli`, and what it does.

What the command takes is added by the function `<function>_arguments` of the same module.
"""

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


def build_parser(word: str | None = None) -> argparse.ArgumentParser:
    """Make the parser of `hpsearch`.

    Args:
        word: The only command that is imported, as what another command needs may take long; None: all.
    """
    parser = argparse.ArgumentParser(
        prog="hpsearch",
        description="Hyperparameter and architecture search for PyTorch.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the versions of hpsearch, torch and Ray")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, (path, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        if word in (name, None):
            module, _, function = path.partition(":")
            imported = import_module(f"hpsearch.cli.{module}")
            getattr(imported, f"{function}_arguments")(command)
            command.set_defaults(command=getattr(imported, function))
    return parser


_BESIDE = {"torch": "torch", "ray": "Ray"}


class _ShowVersion(argparse.Action):
    """Prints the installed versions of hpsearch and its main dependencies, without importing them."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: object,
        values: str | Sequence[Any] | None,
        option: object = None,
    ) -> None:
        """Print it and end."""
        import importlib.metadata

        versions = [f"Python {platform.python_version()}"]
        for package, name in _BESIDE.items():
            try:
                versions.append(f"{name} {importlib.metadata.version(package)}")
            except importlib.metadata.PackageNotFoundError:
                versions.append(f"no {name}")
        print(f"hpsearch {hpsearch.__version__} ({', '.join(versions)})")
        parser.exit()
