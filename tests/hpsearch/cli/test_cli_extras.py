"""Where a package of an extra isn't installed, the command that needs it says how to install it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import hpsearch
from hpsearch.results.importance import importance_of
from tests.hpsearch.support.command_line import Call, write_sweep
from tests.hpsearch.support.pages import simulated


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an environment in which no extra is installed."""
    for package in ("sklearn", "joblib", "textual", "pyarrow", "starlette"):
        monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        (["design", "flowers.csv", "--target", "species"], "scikit-learn", "design"),
        (["watch", "study"], "textual", "watch"),
        (["serve"], "starlette", "serve"),
        (["run", "spectral.yaml"], "scikit-learn", "design"),
        (["run", "learns.yaml", "--from", "earlier.parquet", "--backend", "inline"], "pyarrow", "parquet"),
        (["run", "curves.yaml", "--backend", "simulated", "--workers", "2"], "pyarrow", "parquet"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_names_its_extra(command: list[str], package: str, extra: str, here: Path, hpsearch_command: Call):
    write_sweep(here / "spectral.yaml", method="spectral")
    write_sweep(here / "learns.yaml", method="evolution")
    (here / "earlier.parquet").write_bytes(b"PAR1")
    (here / "table.yaml").write_text("{table: t.parquet, parameters: {x: x}, iteration: i, metrics: {loss: loss}}")
    (here / "t.parquet").write_bytes(b"PAR1")
    path = write_sweep(here / "curves.yaml", None, max_iter=1)
    path.write_text(f"trainable: table.yaml\n{path.read_text()}")
    answer = hpsearch_command(*command)
    assert answer.code == 1
    assert f"{package}, which isn't installed" in answer.err
    assert f'pip install "hpsearch[{extra}]"' in answer.err
    assert not (here / "runs").exists()


def test_an_export_without_pyarrow_has_all_but_parquet(study: Path, without: None, hpsearch_command: Call):
    answer = hpsearch_command("export", study, "--to", "out")
    assert answer.code == 0
    assert sorted(path.name for path in Path("out").iterdir()) == ["optuna.log", "reports.csv", "trials.csv"]
    assert len(Path("out/trials.csv").read_text().splitlines()) == 5
    assert "note: out/trials.parquet isn't written, as Parquet needs pyarrow" in answer.err
    assert 'pip install "hpsearch[parquet]"' in answer.err


def test_a_report_without_scikit_learn_says_what_importance_needs(without: None):
    study = simulated(
        lambda params, seed: hpsearch.Curve({"loss": [params["x"]]}),
        parameters={"x": hpsearch.Uniform(0, 1)},
        max_iter=1,
        run_cap=30,
    )
    assert importance_of(study).missing == (
        'This needs scikit-learn, which isn\'t installed: pip install "hpsearch[design]".'
    )
