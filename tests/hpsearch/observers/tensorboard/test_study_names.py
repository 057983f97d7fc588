"""What studies are called beside each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch.errors import HpsearchError
from hpsearch.observers.tensorboard.view import study_names


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/runs/digits-1"], ["digits-1"]),
        (["/runs/digits-1", "/runs/digits-2"], ["digits-1", "digits-2"]),
        (["/a/digits-1", "/b/digits-1", "/b/other"], ["a/digits-1", "b/digits-1", "other"]),
        (["/a/runs/s", "/b/runs/s", "/a/s"], ["a/runs/s", "b/runs/s", "a/s"]),
        (["/s", "/a/s"], ["s", "a/s"]),
        (["/"], ["study"]),
    ],
)
def test_a_name_is_as_much_of_the_path_as_tells_studies_apart(paths, names):
    assert study_names([Path(path) for path in paths]) == names


@given(st.sets(st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map(lambda parts: Path("/", *parts))))
def test_no_two_have_the_same_name(paths):
    directories = sorted(paths)
    names = study_names(directories)
    assert len(set(names)) == len(directories)
    assert all(str(path).endswith(f"/{name}") for path, name in zip(directories, names, strict=True))


def test_the_same_study_twice_is_refused_by_whatever_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HpsearchError, match=r"\.: expected different studies, got .* 2 times; name it once"):
        study_names([Path(), tmp_path])
