"""`hpsearch predict`, over what a design left."""

from __future__ import annotations

import pytest

from tests.hpsearch.design.data_sets.designed import alone, prepared, write_csv


@pytest.mark.exhaustive
def test_it_prints_what_predict_py_prints(tmp_path, hpsearch_command):
    table = {"x": [number / 7 for number in range(40)], "y": ["no", "yes"] * 20}
    source = write_csv(tmp_path / "a.csv", table)
    prepared(source, "y", tmp_path / "o")
    new = write_csv(tmp_path / "b.csv", {"x": [1.0, "", 1e9]})
    answer, there = hpsearch_command("predict", tmp_path / "o", new), alone(tmp_path / "o", new)
    assert (answer.code, answer.out, answer.err) == (0, there.stdout, there.stderr)
    assert len(answer.out.splitlines()) == 4
    assert "column 'x': 1 rows have nothing there" in answer.err
    written = hpsearch_command("predict", tmp_path / "o", new, "--output", tmp_path / "p.csv")
    assert (written.code, written.out) == (0, "")
    assert (tmp_path / "p.csv").read_text() == answer.out

    mistaken = write_csv(tmp_path / "c.csv", {"x": ["many"]})
    answer = hpsearch_command("predict", tmp_path / "o", mistaken)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"hpsearch: {mistaken}, line 2: column 'x' must hold numbers")
    answer = hpsearch_command("predict", tmp_path / "o", new, "--trees")
    assert answer.code == 1
    assert "only where trees did better" in answer.err


def test_a_folder_without_a_model(tmp_path, hpsearch_command):
    answer = hpsearch_command("predict", tmp_path, tmp_path / "a.csv")
    assert answer.code == 1
    assert "must be what `hpsearch design` left, but there is no" in answer.err


def test_a_design_that_has_no_model_yet_is_to_be_resumed(tmp_path, hpsearch_command):
    (tmp_path / "o").mkdir()
    (tmp_path / "o/design.json").write_text("{}")
    answer = hpsearch_command("predict", tmp_path / "o", tmp_path / "new.csv")
    assert answer.code == 1
    assert "has left no model yet" in answer.err
    assert f"hpsearch design --resume {tmp_path / 'o'}" in answer.err
