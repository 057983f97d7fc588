"""The last fit: the best trial's network trained on all search rows, and written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hpsearch.design.designed_architectures import architecture
from hpsearch.design.designed_network import DesignedNetwork
from hpsearch.design.pace import one_thread, seeded
from hpsearch.design.prepared_rows import PreparedRows
from hpsearch.errors import DesignError
from hpsearch.results.study import Study
from hpsearch.trial import TrialRow
from hpsearch_trainers.architectures import standalone
from hpsearch_trainers.measures import latency, parameters

__all__ = ["Best", "Delivered", "best_of", "deliver"]


@dataclass(frozen=True, slots=True)
class Best:
    """Result of the search."""

    trial: int
    params: Mapping[str, Any]
    """Params, as the trainable saw them."""
    epochs: int
    """For the last fit: those after which its score was reported, less those left out."""
    left_out: int
    """Epochs for which the last fit has no time."""
    validation: float
    trials: int
    """Number of trials with a score."""


@dataclass(frozen=True, eq=False, slots=True)
class Delivered:
    """The network that was written."""

    cost: Mapping[str, float]
    """`parameters`, and `latency_ms` for one row."""
    training: DesignedNetwork

    def of(self, rows: PreparedRows) -> NDArray[np.float64]:
        """Return predictions for prepared rows: probabilities (rows, classes), or numbers (rows,)."""
        return self.training.predictions(rows)


def best_of(study: Study) -> Best | None:
    """Return the best trial that keeps all bounds; None where there is none.

    Where none keeps the bound on `fit_seconds`, and the nearest breaks no other, that one is trained for as many epochs
    as keep it: a network that has learned less is better than none.
    """
    row = study.leaders[0]
    params, reached = study.sweep.parameters.nest(row.params), row.value_iteration
    epochs = reached if row.feasible else min(reached, _epochs_in_time(study, row))
    if epochs < 1:
        return None
    count = sum(one.score is not None for one in study.trials)
    return Best(row.number, params, epochs, reached - epochs, row.values[0], count)


def _epochs_in_time(study: Study, row: TrialRow) -> int:
    """Return the epochs that keep the bound on the time of the last fit; 0 where another bound is broken."""
    broken = study.sweep.objective.broken(row.score)
    bounds = [one for one in study.sweep.objective.constraints if str(one) in broken]
    if any(one.metric != "fit_seconds" or not one.most for one in bounds):
        return 0
    each = study.metrics_of(row)["fit_seconds"] / float(row.params["epochs"])
    return int(min(one.bound for one in bounds) / each)


def deliver(best: Best, folder: Path, seed: int) -> Delivered:
    """Train the best trial's network on all search rows, for as many epochs, and write network.py and weights.pt.

    Everything but which rows it sees is as in that trial: parameters, schedule and threads.

    Args:
        best: Result of the search.
        folder: Where to write.
        seed: Of the weights and of the order of rows.

    Raises:
        DesignError: It became no network, or can't be written.
    """
    params = {**best.params, "validated": 0, "latency": False}
    with one_thread(), seeded(seed):
        training = DesignedNetwork(SimpleNamespace(params=params, seed=seed))
        for _ in range(best.epochs):
            training.step()
        network = training.delivered()
        cost = {
            "parameters": parameters(network),
            "latency_ms": latency(torch.zeros(1, *training.rows.task.inputs))(network),
        }
    state = network.state_dict()
    if not all(bool(torch.isfinite(value).all()) for value in state.values()):
        raise DesignError("the last fit must give weights that are numbers, got NaN or infinity: try another --seed")
    given = architecture(params, training.rows.task)
    try:
        folder.mkdir(exist_ok=True)
        (folder / "network.py").write_text(standalone(given.pop("value"), **given), encoding="utf-8")
        torch.save(state, folder / "weights.new")
        (folder / "weights.new").replace(folder / "weights.pt")
    except OSError as error:
        raise DesignError(f"{folder}: must be a place that can be written, got: {error}") from error
    return Delivered(cost, training)
