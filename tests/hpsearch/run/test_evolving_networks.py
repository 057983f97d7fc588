"""A search over networks whose children are their parents, grown: what they begin with, and what they say of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import hpsearch as hp
from hpsearch_trainers.digits_network import ChainNetwork

_BEGUN: dict[int, tuple[int, dict[str, float]]] = {}


class Begun(ChainNetwork):
    """Keeps what it validates before it trains."""

    def __init__(self, trial: Any) -> None:
        self._number, self._of = trial.number, trial.parent
        super().__init__(trial)

    def inherit(self, state: Mapping[str, Any]) -> None:
        super().inherit(state)
        _BEGUN[self._number] = (self._of, self.validate())


@pytest.fixture(autouse=True)
def begun():
    _BEGUN.clear()
    yield
    _BEGUN.clear()


@pytest.mark.exhaustive
def test_a_child_that_says_it_is_its_parent_validates_as_its_parent_did_at_last(tmp_path) -> None:
    conv = {"channels": hp.Ordinal([2, 3, 4, 5]), "kernel": [1, 3, 5]}
    study = hp.search(
        Begun,
        directory=tmp_path / "s",
        parameters={"layers": hp.Chain({"conv": conv, "skip": {}}, max=3), "batch_size": hp.Constant(512)},
        metric={"name": "accuracy", "goal": "maximize"},
        method="evolution",
        search={"ahead": False, "options": {"population": 3, "sample": 2, "inherit": True}},
        max_iter=1,
        run_cap=12,
        seed=1,
        backend="inline",
        observers=[],
        progress=False,
    )
    children = [row for row in study.trials if row.parent is not None]
    assert len(children) == 9
    preserved = 0
    for row in children:
        (log,) = (study.directory / "trials" / f"{row.number:05d}").rglob("*.log")
        said = next(line for line in log.read_text().splitlines() if "inherited" in line)
        of, measured = _BEGUN[row.number]
        assert of == row.parent
        if "outputs are the parent's" in said:
            preserved += 1
            newest = study.trials[row.parent].metrics
            assert {name: newest[name] for name in measured} == pytest.approx(measured, rel=1e-4)
        else:
            assert "outputs differ from the parent's: " in said
    assert preserved >= 2
