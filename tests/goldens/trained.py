"""What the studies of the goldens train: by sums, products and quotients alone, which are the same on every CPU."""

from __future__ import annotations

import math
import signal
from typing import Any

import hpsearch


class Bands(hpsearch.Curves):
    """A loss that falls at the trial's own pace; some trials fail at once, and some end by themselves."""

    start_seconds = 2.0

    def curve(self, params: dict[str, Any], seed: int) -> hpsearch.Curve:
        """Return the losses, and how near they are to 0."""
        fails = params["x"] > 0.86
        pace = params["optimizer"]["momentum"] + (0.5 if params["optimizer"]["name"] == "adam" else 0.25)
        length = 0 if fails else 5 if params["depth"] == 1 else 9
        losses = [params["x"] + params["depth"] / (8 * pace * i) for i in range(1, length + 1)]
        metrics = {"loss": losses, "nearness": [1 / (1 + loss) for loss in losses]}
        return hpsearch.Curve(metrics, seconds=1.5, failure="the loss is no number" if fails else "")


class Goals(hpsearch.Curves):
    """Two goals against each other, and a time that is bounded."""

    def curve(self, params: dict[str, Any], seed: int) -> hpsearch.Curve:
        """Return the curves, which depend on how wide the layers are."""
        width = sum(layer["dense"]["units"] if "dense" in layer else 4 for layer in params["layers"])
        metrics = {
            "accuracy": [1 - 1 / (1 + i * width / 16) for i in (1, 2, 3)],
            "parameters": [float(width * width)] * 3,
            "ms": [width / 2] * 3,
        }
        return hpsearch.Curve(metrics, seconds=2.0)


def population(trial: hpsearch.RunningTrial) -> None:
    """Walk by the trial's own steps, from where its parent was if it is a fork; trial 2 fails."""
    place = 0.0 if trial.checkpoint is None else trial.checkpoint["place"]
    for iteration in trial.iterations():
        if trial.number == 2 and iteration == 3:
            raise ValueError(f"trial {trial.number} can't go on")
        place += trial.params["step"] * (2 if trial.params["kind"] == "long" else 1)
        trial.report({"place": place}, checkpoint={"place": place})


def nan(trial: hpsearch.RunningTrial) -> None:
    """Report no number."""
    for _ in trial.iterations():
        trial.report({"loss": math.nan})


def interrupted(trial: hpsearch.RunningTrial) -> None:
    """Press Ctrl-C."""
    for _ in trial.iterations():
        signal.raise_signal(signal.SIGINT)
        trial.report({"loss": 1.0})
