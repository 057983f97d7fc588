"""Takes the picture of `hpsearch watch` on a real sweep while it runs: `python -m tests.watch_pictures FOLDER`.

The sweep of `configs/digits.yaml`, with three of its parameters, runs in a process of its own on this machine's cores.
The screen is Textual's, without a terminal; it writes the picture itself, when half of the trials have ended.
Then the sweep is stopped, and its folder deleted. `--docs` puts the picture into docs/images.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from hpsearch.journal.directory import StudyDirectory
from hpsearch.trial import TrialState
from hpsearch.watch.app import WatchApp
from hpsearch.watch.live_study import LiveStudy, Tail
from tests.chromium import ENVIRONMENT, IMAGES, ROOT

_SIZE = 116, 26
"""Columns and lines of the terminal."""
_PAUSE = 0.1
"""Seconds between two looks: the sweep takes some seconds."""
_PATIENCE = 500.0
"""Seconds to wait at most; a busy machine starts Ray in some minutes."""
_PARAMETERS = "lr", "hidden", "dropout"
"""So few that there is room for the columns behind them."""
_COMMAND = "import socket, sys; socket.gethostname = lambda: 'box'; from hpsearch.cli import main; sys.exit(main())"
"""Shown as anyone's, and not as this machine's."""


@contextlib.contextmanager
def sweep(place: Path, max_iter: int, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the sweep, and stop it in the end; say what it printed where that came too early."""
    file = ROOT / "configs" / "digits.yaml"
    whole = yaml.safe_load(file.read_text(encoding="utf-8"))["parameters"]
    parameters = json.dumps({name: whole[name] for name in _PARAMETERS})
    words = ["run", str(file), "--dir", str(place), "--no-tensorboard", "--workers", "2"]
    words += ["--set", f"parameters={parameters}", "--set", f"early_terminate.max_iter={max_iter}"]
    words += more
    printed = place.with_suffix(".log")
    with printed.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, *words], stdout=log, stderr=log, env={**ENVIRONMENT, "LOGNAME": "ann"}
        )
    try:
        yield process
    except TimeoutError as error:
        raise TimeoutError(f"{error}; it printed:\n{printed.read_text()}") from None
    finally:
        process.terminate()
        process.wait()


def watch(folder: Path, is_ready: Callable[[LiveStudy], bool], max_iter: int = 27) -> str:
    """Return the screen of a sweep that runs, as SVG.

    Args:
        folder: Where the study lies meanwhile.
        is_ready: Whether this is what the picture is to show.
        max_iter: Iterations of a whole trial; the more, the longer the sweep goes on.

    Raises:
        TimeoutError: The sweep never came there, or wasn't seen when it did.
    """
    with sweep(folder / "digits-1", max_iter) as process:
        return asyncio.run(_screen(folder / "digits-1", process, is_ready))


async def _screen(directory: Path, process: subprocess.Popen[bytes], is_ready: Callable[[LiveStudy], bool]) -> str:
    began = time.monotonic()

    async def later() -> None:
        if process.poll() is not None or time.monotonic() - began > _PATIENCE:
            raise TimeoutError("the sweep was never seen in the state that is wanted")
        await asyncio.sleep(_PAUSE / 2)

    place = StudyDirectory(directory)
    while not place.journal.exists():
        await later()
    tail = Tail(place)
    app = WatchApp(place, "runs/digits-1", tail, LiveStudy(tail.look()), _PAUSE)
    svg = ""
    async with app.run_test(size=_SIZE) as pilot:
        while not svg:
            while not is_ready(app.study):
                await later()
            await pilot.press("home", "down", "down")
            if "quit" in _screen_text(app) and is_ready(app.study):
                svg = app.export_screenshot()
    # Without its fonts from elsewhere: the picture is looked at offline, too.
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)


def _screen_text(app: WatchApp) -> str:
    return "".join(segment.text for strip in app.screen._compositor.render_strips() for segment in strip)


def is_in_its_midst(study: LiveStudy) -> bool:
    """Whether half of the trials have ended, one of them complete, and one runs that went on from a rung."""
    counts, total = study.journaled.counts(), study.journaled.total
    ended = counts.get(TrialState.COMPLETE, 0) + counts.get(TrialState.STOPPED, 0)
    goes_on = any(row.state is TrialState.RUNNING and row.iterations >= 3 for row in study.rows)
    is_half = total is not None and 2 * ended >= total[0]
    return is_half and goes_on and TrialState.COMPLETE in counts and study.remaining() is not None


def main() -> None:
    """Take it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--docs", action="store_true", help="put it into docs/images")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as runs:
        svg = watch(Path(runs), is_in_its_midst)
    for folder in [given.folder, *([IMAGES] if given.docs else [])]:
        (folder / "watch.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
