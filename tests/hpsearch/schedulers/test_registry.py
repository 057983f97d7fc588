"""A scheduler is found by its word or its import path, and read by the fields of its settings."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpsearch
from hpsearch.cli import main
from hpsearch.errors import SweepError
from hpsearch.schedulers import KNOWN, Scheduler, SchedulerCapabilities, settings_named
from hpsearch.sweep.file import load_sweep
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.trials import rows_to_csv
from tests.hpsearch.support.doubling import Doubling

SWEEP = """\
trainable: hpsearch_trainers.noop:train
metric: {name: value}
method: random
parameters: {x: {min: 0.0, max: 1.0}}
early_terminate:
"""


def write(folder: Path, *lines: str) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(SWEEP + "".join(f"  {line}\n" for line in lines))
    return path


OURS = f"type: {Doubling.kind}"


def test_a_third_partys_scheduler_is_read_by_its_fields(tmp_path):
    sweep = load_sweep(write(tmp_path, OURS, "max_iter: 8", "trials: 3", "pace: hasty", "patience: 2"))
    assert sweep.early_terminate == Doubling(8, 3, "hasty", 2.0)
    assert Sweep.from_json(sweep.to_json()) == sweep
    assert load_sweep(write(tmp_path, OURS, "max_iter: 8"), ["early_terminate.trials=5"]).early_terminate == Doubling(
        8, 5
    )


def test_a_third_partys_scheduler_runs_is_extended_and_planned(tmp_path, capsys):
    def train(trial: hpsearch.RunningTrial) -> None:
        for iteration in trial.iterations():
            trial.report({"value": trial.params["x"] * iteration}, checkpoint={})

    def run(trials: int) -> hpsearch.Study:
        return hpsearch.search(
            train,
            parameters={"x": hpsearch.Uniform(0.0, 1.0)},
            metric="value",
            early_terminate=Doubling(5, trials),
            directory=tmp_path / "study",
            backend="inline",
            observers=[],
            progress=False,
        )

    study = run(2)
    assert [(row.iterations, row.state) for row in study.trials] == [(5, "complete")] * 2
    assert [segment.end for segment in study.segments()] == [1, 2, 4, 5] * 2
    before = rows_to_csv(study.trials, study.sweep.parameters.names)
    study = run(3)
    assert rows_to_csv(study.trials, study.sweep.parameters.names).startswith(before)
    assert len(study.trials) == 3
    with pytest.raises(SweepError, match=r"more of `run_cap` or `early_terminate.trials`"):
        run(1)
    assert main(["plan", str(write(tmp_path, OURS, "max_iter: 8"))]) == 0
    assert "doubling up to 8 iterations" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["type: hyperbandd", "max_iter: 9"], r"sweep.yaml:6: early_terminate.type: must be a known scheduler"),
        (
            ["type: no.such:Thing", "max_iter: 9"],
            r"sweep.yaml:6: early_terminate.type: `early.*no.such:Thing`",
        ),
        (["type: pathlib:Path", "max_iter: 9"], r"derived from hpsearch.EarlyTerminate"),
        ([OURS], r"sweep.yaml:5: early_terminate.max_iter: is required"),
        ([OURS, "max_iter: 8", "pace: slow"], r"sweep.yaml:8: early_terminate.pace: must be even or hasty"),
        ([OURS, "max_iter: 8", "trails: 8"], r"(?s)sweep.yaml:8: early_terminate.trails: isn't a known key.*trials"),
        ([OURS, "max_iter: 8", "brackets: 8"], r"belongs to hyperband and asha"),
    ],
)
def test_mistakes_name_file_line_and_key(tmp_path, lines, told):
    with pytest.raises(SweepError, match=told):
        load_sweep(write(tmp_path, *lines))


def test_the_known_ones_are_named_alike_everywhere():
    assert all(settings_named(kind) is cls and cls.kind == kind for kind, cls in KNOWN.items())
    page = Path(__file__).parents[3].joinpath("docs/sweep-file.md").read_text()
    assert all(f"`{kind}`" in page or f"type: {kind}" in page for kind in KNOWN)


def test_a_scheduler_defines_what_comes_next_and_what_an_outcome_decides():
    assert Scheduler.__abstractmethods__ == {"upcoming", "observe"}
    assert {type(settings.capabilities) for settings in KNOWN.values()} == {SchedulerCapabilities}
