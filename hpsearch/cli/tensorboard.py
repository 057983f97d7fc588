"""The command that opens TensorBoard on studies."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpsearch.cli.which_study import each_a_study, newest
from hpsearch.errors import StorageError
from hpsearch.observers.tensorboard.address import COLOURS, MOST_RUNS, curves_address, studies_address
from hpsearch.observers.tensorboard.serving import serve
from hpsearch.observers.tensorboard.view import View
from hpsearch.tables.wording import counted

__all__ = ["tensorboard"]

_SECONDS = 2.0
"""Between two looks at the journals, at least."""

_SHARE = 20
"""As many times as long as a look took: it costs a twentieth of a core at most."""


def tensorboard(given: argparse.Namespace) -> int:
    """Write a view of the studies, serve it, and keep it up to date until Ctrl-C."""
    directories = each_a_study("tensorboard", given.dirs) or [newest()]
    with _ends_in_good_order(), _folder(given.output) as folder:
        try:
            view = View(directories, folder, every_trial=given.all)
            view.read()
            server = serve(folder, given.host, given.port)
            address = _tell(view, server, given)
            if not given.no_browser and sys.stdout.isatty() and _has_display():
                webbrowser.open(address)
            view.describe()  # while TensorBoard and the browser start
            _follow(view)
        except OSError as error:
            raise StorageError(f"{folder}: expected a folder that can be written, got: {error.strerror}") from error
        except KeyboardInterrupt:
            print()
    return 0


def _tell(view: View, server: str, given: argparse.Namespace) -> str:
    """Say where to look, and what is to be seen there; give the address of the curves."""
    top = None if given.all or view.trials <= given.top else given.top
    shown_runs = None if top is None else view.best(top)
    address = curves_address(server, shown_runs, view.study_runs, view.pinned(), view.alike)
    shown = counted(view.trials, "trial") if top is None else f"the best {top} of {view.trials} trials"
    studies = ", ".join(view.names)
    print(f"{studies}: {shown}" + ("" if top is None else "; --top N shows others, --all all"))
    if view.left_out:
        left_out = counted(view.left_out, "trial")
        print(
            f"{left_out} without a run, the worst ones: of more than {MOST_RUNS} runs TensorBoard ticks none; --all "
            "writes them"
        )
    if given.all and view.trials + len(view.study_runs) > MOST_RUNS:
        print(f"of more than {MOST_RUNS} runs TensorBoard ticks none by itself: choose some at the left")
    if (runs := len(view.study_runs)) > COLOURS:
        shared = any(len(folders) > 1 for folders in view.alike)
        told = "; curves have one for all seeds of a sweep" if shared else ""
        print(f"TensorBoard has {COLOURS} colours, which the {runs} studies and medians share{told}")
    print(f"curves   {address}")
    print(f"studies  {studies_address(server, view.study_runs)}")
    print("Ctrl-C ends it", flush=True)
    return address


def _follow(view: View) -> None:
    told: set[str] = set()
    pause = _SECONDS
    while True:
        time.sleep(pause)
        began = time.monotonic()
        view.read()
        pause = max(_SECONDS, _SHARE * (time.monotonic() - began))
        for problem in view.problems:
            if problem not in told:
                told.add(problem)
                print(f"hpsearch: {problem}", file=sys.stderr)


@contextmanager
def _folder(asked: Path | None) -> Iterator[Path]:
    """Give a folder for the view: an empty one that stays, or one that goes."""
    if asked is None:
        with tempfile.TemporaryDirectory(prefix="hpsearch-tensorboard-", ignore_cleanup_errors=True) as made:
            yield Path(made)
        return
    try:
        asked.mkdir(parents=True, exist_ok=True)
        taken = next(asked.iterdir(), None)
    except OSError as error:
        raise StorageError(f"--output {asked}: expected a folder that can be written, got: {error.strerror}") from error
    if taken is not None:
        raise StorageError(f"--output {asked}: expected an empty folder, or none, but {taken.name} is there")
    yield asked


@contextmanager
def _ends_in_good_order() -> Iterator[None]:
    """Let the first signal to end do what Ctrl-C does, and no second one keep it from leaving nothing behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    former = {number: signal.getsignal(number) for number in asked if signal.getsignal(number) is not signal.SIG_IGN}

    ends = False

    def end(*_: object) -> None:
        nonlocal ends
        if not ends:
            ends = True
            raise KeyboardInterrupt

    for number in former:
        signal.signal(number, end)
    try:
        yield
    finally:
        # Where it ends, a signal that comes late changes nothing, also when Python has put its own handlers away.
        for number, handler in former.items():
            signal.signal(number, signal.SIG_IGN if ends else handler)


def _has_display() -> bool:
    """Say whether a browser that opens would be seen by who runs this, and not take the terminal."""
    if "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform in ("darwin", "win32") or any(os.environ.get(key) for key in ("DISPLAY", "WAYLAND_DISPLAY"))
