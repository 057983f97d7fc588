"""The commands of the command line: the function and the help line of each, and shell completion."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import hpsearch

_GROUPS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "run": {
        "run": ("run:run", "run a sweep"),
        "demo": ("run:demo", "run a sweep that comes with hpsearch: Hyperband over a network for digits"),
        "init": ("init:init", "write a train.py and a sweep.yaml to start from"),
        "plan": ("plan:plan", "show what a sweep would run, without running it"),
        "check": (
            "plan:check",
            "run a trial of a sweep for two iterations, also restored and on a warm worker, and name what differs",
        ),
        "resume": ("run:resume", "resume a study that was interrupted, stopped, killed or paused"),
        "retry": ("run:retry", "run failed trials of a study again, and resume it"),
        "rerun": ("run:rerun", "run the best configurations of a study again with other seeds, and rank them by mean"),
        "agent": ("agent:agent", "run trials of a sweep that runs elsewhere with --backend agents"),
        "design": (
            "design:design_network",
            "find a network for a data set: search, train the best on all rows, and test it",
        ),
        "predict": (
            "design:predict",
            "predict new examples with a designed network, as CSV with the probability of each class",
        ),
    },
    "look": {
        "list": ("list:list_studies", "list the studies of a folder, the newest first"),
        "status": ("status:status", "show the state of a study"),
        "watch": (
            "status:watch",
            "watch a sweep that runs elsewhere: its trials live, with keys to sort, open, pause and stop",
        ),
        "serve": ("serve:serve", "show the studies of a folder in a browser, live, with buttons that steer them"),
        "trials": ("trials:trials", "list a study's trials"),
        "best": ("best:best", "show a study's best trial, or its Pareto front"),
        "trial": ("trial:trial", "show one trial: why it stopped, its segments, its curve, the end of its log"),
        "logs": ("logs:logs", "print what a trial printed, or all trials, with the trial before each line"),
        "show": ("show:show", "show a trial's network and its costs; write a file that builds it without hpsearch"),
        "lineage": ("trial:lineage", "show a forked trial's parameters over its training"),
        "compare": ("compare:compare", "compare studies; those that differ in their seed alone are repetitions"),
        "report": ("report:report", "write a study as one HTML page, or compare several"),
        "tensorboard": ("tensorboard:tensorboard", "open TensorBoard on one or several studies, also while they run"),
        "history": ("status:history", "show who ran and steered a study, when, and with what result"),
    },
    "steer": {
        "pause": ("steer:pause", "pause a running sweep: its trials stop at their next reports; resume continues"),
        "stop": ("steer:stop", "end a running sweep at the next reports of its trials"),
        "cancel": ("steer:cancel", "end a running sweep at once; work since the last checkpoints runs again on resume"),
        "extend": ("steer:extend", "extend a study, running or not"),
        "add": ("steer:add", "add configurations of your own, which are tried next"),
        "prune": ("steer:prune", "end trials, and continue without them"),
        "change": ("steer:change", "change the search space of a study that no process runs"),
        "ask": ("ask:ask", "print trials to run elsewhere, one line of JSON each"),
        "tell": ("ask:tell", "record a result of a trial that ask returned"),
        "give-up": ("ask:give_up", "release an open trial, which ask then returns again"),
    },
    "tools": {
        "convert": (
            "convert:convert",
            "write a W&B sweep file so that it runs, with a comment above each line that was changed",
        ),
        "export": (
            "export:export",
            "write CSV, Parquet and an Optuna storage, or fill what observers such as mlflow write",
        ),
        "benchmark": ("benchmark:benchmark", "compare search methods over recorded tables"),
        "completion": ("parser:completion", "print what a shell needs to complete commands, options and files"),
        "doctor": ("doctor:doctor", "check this machine and its installation"),
        "tag": ("labels:tag", "add tags to a study, or show them"),
        "note": ("labels:note", "write a study's note, or show it"),
        "rm": ("removing:rm", "delete studies, after a confirmation"),
        "clean": (
            "removing:clean",
            "delete checkpoints and event files of a study that nothing needs, after a confirmation",
        ),
    },
}
"""The groups of commands in the help: each command's function, as `module:function` of `hpsearch.cli`, and its help.

The function `<function>_arguments` of the same module adds the command's arguments.
"""

COMMANDS = {name: command for group in _GROUPS.values() for name, command in group.items()}


class _GroupedHelp(argparse.RawDescriptionHelpFormatter):
    """Lists commands in groups."""

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        commands = {command.dest: command for command in action._get_subactions()}
        text = ""
        for title, names in _GROUPS.items():
            text += f"{'':{self._current_indent}}{title}:\n"
            self._indent()
            for name in filter(commands.__contains__, names):
                text += self._format_action(commands[name])
            self._dedent()
        return text


_EPILOG = """\
exit codes:
  0    done; a sweep ran to its end, to its target, or out of patience
  1    an error, with one message
  2    the command line itself can't be read
  3    the sweep ended before it was finished (hpsearch stop, limits.max_time); resume continues
  4    the sweep is finished or out of patience, but no trial has a value
  5    ask: no trial to run now; first tell results of open trials
  6    ask: the sweep is finished, and there are no more trials to run
  130  interrupted with Ctrl-C; resume continues
"""


def build_parser(chosen: str | None = None, first: bool = False) -> argparse.ArgumentParser:
    """Build the parser of `hpsearch`.

    Args:
        chosen: The only command whose module is imported, as others may import slowly; None: all.
        first: Whether the command is the first argument. Then the help of other commands can't be requested.
    """
    parser = argparse.ArgumentParser(
        prog="hpsearch",
        description="Hyperparameter and architecture search for PyTorch.",
        epilog=_EPILOG,
        formatter_class=_GroupedHelp,
    )
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the versions of hpsearch, torch and Ray")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, (path, text) in COMMANDS.items():
        if first and chosen in COMMANDS and name != chosen:
            continue
        command = commands.add_parser(name, help=text)
        if chosen in (name, None):
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
        """Print the versions and exit."""
        import importlib.metadata

        versions = [f"Python {platform.python_version()}"]
        for package, name in _BESIDE.items():
            try:
                versions.append(f"{name} {importlib.metadata.version(package)}")
            except importlib.metadata.PackageNotFoundError:
                versions.append(f"no {name}")
        print(f"hpsearch {hpsearch.__version__} ({', '.join(versions)})")
        parser.exit()


_PATHS = frozenset({"DIR", "FOLDER", "FILE", "SWEEP.yaml", "SUITE.yaml", "SWEEP.yaml|DIR", "DATA", "NEW"})
"""Metavars of arguments that are paths."""


def completion_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch completion`."""
    command.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def completion(args: argparse.Namespace) -> int:
    """Print the completion script for a shell."""
    import shtab

    parser = build_parser()
    for command in _commands(parser):
        for action in command._actions:
            if action.metavar in _PATHS or action.dest == "dir":
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell=args.shell))
    return 0


def _commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Return the parsers of all commands."""
    choices = next(action.choices for action in parser._actions if isinstance(action.choices, dict))
    return list(choices.values())
