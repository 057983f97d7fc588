"""`hpsearch tensorboard`: open TensorBoard on studies, and keep it up to date."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hpsearch.cli.arguments import each_a_study, newest, positive, target
from hpsearch.cli.signals import ends_in_good_order
from hpsearch.errors import HpsearchError, StorageError
from hpsearch.journal.filesystem import writing
from hpsearch.observers.tensorboard.address import COLOURS, MOST_RUNS, curves_address, studies_address
from hpsearch.tables.wording import counted

if TYPE_CHECKING:
    from hpsearch.observers.tensorboard.view import View

_SECONDS = 2.0
"""Minimum seconds between two polls of the journals."""

_SHARE = 20
"""Pause between polls, relative to a poll's duration: polling uses at most a twentieth of a core."""


def tensorboard_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch tensorboard`."""
    command.add_argument("dirs", type=Path, nargs="*", metavar="DIR", help="(default: the newest study in runs)")
    text = "show the best N trials, as many of each study (default: %(default)s)"
    command.add_argument("--top", type=positive, default=20, metavar="N", help=text)
    command.add_argument("--all", action="store_true", help="show all trials")
    text = "write what TensorBoard reads to this folder, and leave it there"
    command.add_argument("--output", type=target, metavar="FOLDER", help=text)
    command.add_argument("--no-browser", action="store_true", help="print the address alone")
    command.add_argument("--host", default="localhost")
    command.add_argument("--port", type=int, default=6006, help="0: any free port (default: %(default)s)")


def tensorboard(args: argparse.Namespace) -> int:
    """Write a view of the studies, serve it, and keep it up to date until Ctrl-C."""
    from hpsearch.observers.tensorboard.view import View

    directories = each_a_study("tensorboard", args.dirs) or [newest()]
    with (
        ends_in_good_order(),
        _folder(args.output) as folder,
        writing(f"{folder}: expected a folder that can be written"),
    ):
        try:
            view = View(directories, folder, every_trial=args.all)
            view.read()
            server = _serve(folder, args.host, args.port)
            address = _print_addresses(view, server, args)
            if not args.no_browser and sys.stdout.isatty() and _has_display():
                webbrowser.open(address)
            view.describe()  # while TensorBoard and the browser start
            _follow(view)
        except KeyboardInterrupt:
            print()
    return 0


def _serve(folder: Path, host: str, port: int) -> str:
    """Serve a folder with TensorBoard on threads of this process, until the process ends. Return the URL.

    Args:
        folder: TensorBoard's `--logdir`.
        host: Address to listen on.
        port: The port; 0: any free port.

    Raises:
        HpsearchError: TensorBoard can't listen on the address or the port.
    """
    from tensorboard import program

    written = io.StringIO()  # hides TensorBoard's message about its new data server
    try:
        with contextlib.redirect_stderr(written):
            board = program.TensorBoard()
            board.configure(logdir=str(folder), host=host, port=port)
            address: str = board.launch()
    except program.TensorBoardServerException as error:
        raise HpsearchError(f"--host {host}, --port {port}: TensorBoard can't be reached there: {error.msg}") from error
    except (OSError, SystemExit) as error:
        raise HpsearchError(f"TensorBoard doesn't start: {written.getvalue().strip() or error}") from error
    return address


def _print_addresses(view: View, server: str, args: argparse.Namespace) -> str:
    """Print the URLs, and return the URL of the curves."""
    top = None if args.all or view.trials <= args.top else args.top
    shown_runs = None if top is None else view.best(top)
    address = curves_address(server, shown_runs, view.study_runs, view.pinned(), view.same_colour)
    shown = counted(view.trials, "trial") if top is None else f"the best {top} of {view.trials} trials"
    studies = ", ".join(view.names)
    print(f"{studies}: {shown}" + ("" if top is None else "; --top N shows others, --all all"))
    if view.left_out:
        left_out = counted(view.left_out, "trial")
        print(
            f"{left_out} without a run, the worst ones: of more than {MOST_RUNS} runs TensorBoard ticks none; --all "
            "writes them"
        )
    if args.all and view.trials + len(view.study_runs) > MOST_RUNS:
        print(f"of more than {MOST_RUNS} runs TensorBoard ticks none by itself: choose some at the left")
    if (runs := len(view.study_runs)) > COLOURS:
        shared = any(len(folders) > 1 for folders in view.same_colour)
        note = "; curves have one for all seeds of a sweep" if shared else ""
        print(f"TensorBoard has {COLOURS} colours, which the {runs} studies and medians share{note}")
    print(f"curves   {address}")
    print(f"studies  {studies_address(server, view.study_runs)}")
    print("Ctrl-C ends it", flush=True)
    return address


def _follow(view: View) -> None:
    reported: set[str] = set()
    pause = _SECONDS
    while True:
        time.sleep(pause)
        began = time.monotonic()
        view.read()
        pause = max(_SECONDS, _SHARE * (time.monotonic() - began))
        for problem in view.problems:
            if problem not in reported:
                reported.add(problem)
                print(f"hpsearch: {problem}", file=sys.stderr)


@contextmanager
def _folder(folder: Path | None) -> Iterator[Path]:
    """Yield a folder for the view: an empty permanent one, or a temporary one."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="hpsearch-tensorboard-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
        return
    with writing(f"--output {folder}: expected a folder that can be written"):
        folder.mkdir(parents=True, exist_ok=True)
        existing = next(folder.iterdir(), None)
    if existing is not None:
        raise StorageError(f"--output {folder}: expected an empty folder, or none, but {existing.name} is there")
    yield folder


def _has_display() -> bool:
    """Return whether a browser would open in a window that the user can see, and not in the terminal."""
    if "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform in ("darwin", "win32") or any(os.environ.get(key) for key in ("DISPLAY", "WAYLAND_DISPLAY"))
