"""The picture of `hpsearch watch` in docs/images: a sweep in its midst, whose trials follow known curves."""

from __future__ import annotations

import asyncio
import math
import random
import re
import tempfile
from pathlib import Path
from typing import Any

import hpsearch
from hpsearch.study.directory import StudyDirectory
from hpsearch.watch.app import WatchApp
from hpsearch.watch.live_study import LiveStudy
from hpsearch.watch.tail import Tail
from tests.hpsearch.support.played import played

__all__ = ["watch"]

_LATER = 4e9
"""Seconds since the epoch: while its newest event is in times to come, it is now what it was at that event."""

_EVENTS = 121


class Digits(hpsearch.Curves):
    """Accuracies as a small network has them; one trial in twenty runs out of memory."""

    def curve(self, params: dict[str, Any], seed: int) -> hpsearch.Curve:
        """Give a trial's curve."""
        chance = random.Random(seed)
        if chance.random() < 0.05:
            return hpsearch.Curve({"accuracy": [0.1]}, 2.0, "RuntimeError: CUDA out of memory")
        best = 0.985 - 0.05 * abs(math.log10(params["lr"]) + 2.0) - 0.1 * (params["dropout"] - 0.2) ** 2
        curve = [best - 0.5 / (1 + iteration) + 0.01 * chance.random() for iteration in range(1, 28)]
        return hpsearch.Curve({"accuracy": curve}, [3.0 + chance.random() for _ in curve])


def watch() -> str:
    """The screen of a sweep that runs."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        hpsearch.search(
            Digits,
            parameters={
                "lr": hpsearch.LogUniform(1e-4, 1.0),
                "hidden": hpsearch.Categorical([32, 64, 128]),
                "dropout": hpsearch.Uniform(0.0, 0.5),
            },
            metric="accuracy",
            goal="maximize",
            early_terminate=hpsearch.Hyperband(max_iter=27),
            backend="simulated",
            workers=4,
            name="digits",
            directory=source,
            tensorboard=False,
            progress=False,
        )
        with played(source, Path(folder) / "digits-1", end=_LATER) as player:
            player.play(_EVENTS)
            return asyncio.run(_screen(Path(folder) / "digits-1"))


async def _screen(directory: Path) -> str:
    place = StudyDirectory(directory)
    tail = Tail(place)
    app = WatchApp(place, "runs/digits-1", tail, LiveStudy(tail.look()))
    async with app.run_test(size=(100, 26)) as pilot:
        await pilot.press("down", "down")
        while not any("quit" in segment.text for strip in app.screen._compositor.render_strips() for segment in strip):
            await pilot.pause()
        svg = app.export_screenshot()
    # Without its fonts from elsewhere: the picture is looked at offline, too.
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
