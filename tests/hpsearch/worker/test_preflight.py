"""What can be seen of a trainable without running any of its code."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hpsearch.config.checks import InvalidKey
from hpsearch.schedulers.bands import Bands
from hpsearch.trainable.macros import DEFAULT_COMMAND
from hpsearch.worker.job import CommandLine
from hpsearch.worker.preflight import check_end, is_class, missing_here
from tests.hpsearch.support.scripted import sweep_of

RAISES = "raise RuntimeError('it was imported')\n"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a script, a module in a package, and one that makes its names."""
    (tmp_path / "models" / "wide").mkdir(parents=True)
    for folder in ("models", "models/wide"):
        (tmp_path / folder / "__init__.py").write_text(RAISES)
    (tmp_path / "models" / "wide" / "nets.py").write_text(f"{RAISES}class Net: ...\nasync def train(trial): ...\n")
    (tmp_path / "bare" / "deep" / "deeper").mkdir(parents=True)  # packages without __init__.py
    (tmp_path / "bare" / "deep" / "deeper" / "nets.py").write_text(f"{RAISES}class Net: ...\n")
    (tmp_path / "models" / "made.py").write_text(f"{RAISES}globals()['Ne' + 't'] = 1\n")
    (tmp_path / "train.py").write_text(RAISES)
    return tmp_path


@pytest.mark.parametrize(
    ("trainable", "told"),
    [
        ("models.wide.nets:Net", None),
        ("models.wide.nets:train", None),
        ("models.wide.nets:Net.build", None),
        ("models.made:Net", None),
        ("bare.deep.deeper.nets:Net", None),
        ("json.decoder:JSONDecoder", None),
        ("math:sqrt", None),  # it has no source
        ("models.wide.nets:trian", "names 'trian', which isn't in {here}/models/wide/nets.py (did you mean 'train'?)"),
        ("models.wide.nets:Nett", "(did you mean 'Net'?)"),
        ("models.wide.net:Net", "names the module 'models.wide.net', which isn't there (did you mean 'nets'?)"),
        ("models.wider.nets:Net", "names the module 'models.wider', which isn't there (did you mean 'wide'?)"),
        ("bare.deep.deeper.nets:Nett", "names 'Nett', which isn't in {here}/bare/deep/deeper/nets.py (did you mean"),
        ("bare.deep.deper.nets:Net", "names the module 'bare.deep.deper', which isn't there"),
        ("model:Net", "(did you mean 'models'?)"),
        ("models.wide.nets", "must be written `package.module:name`"),
    ],
)
def test_an_import_path_is_followed_without_importing(here: Path, trainable: str, told: str | None) -> None:
    found = missing_here(trainable, [str(here)])
    if told is None:
        assert found is None
    else:
        assert told.format(here=here) in str(found)


def test_a_name_of_the_program_that_runs_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook, or a script: it has no module that others could find."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    assert missing_here("__main__:Net", ()) is None


def test_a_script_is_looked_for_where_it_is_to_run(here: Path) -> None:
    assert missing_here(CommandLine("train.py", DEFAULT_COMMAND, str(here)), ()) is None
    told = missing_here(CommandLine("trian.py", DEFAULT_COMMAND, str(here)), ())
    assert "no 'trian.py'" in str(told)
    assert "did you mean 'train.py'?" in str(told)


@pytest.mark.parametrize(
    ("trainable", "expected"),
    [
        ("models.wide.nets:Net", True),
        ("models.wide.nets:train", False),
        ("bare.deep.deeper.nets:Net", True),
        ("models.made:Net", False),  # nobody can know
        ("gone:Net", False),
        ("models.played:Net", False),
        (json.JSONDecoder, True),
        (functools.partial(json.JSONDecoder, strict=True), True),
        (json.dumps, False),
    ],
)
def test_a_class_is_known_without_an_import(here: Path, trainable: object, expected: bool) -> None:
    (here / "models" / "played.py").write_text(f"{RAISES}class Net(hpsearch.Curves): ...\n")
    assert is_class(trainable, (str(here),)) is expected


def test_a_class_needs_an_end(here: Path) -> None:
    def check(trainable: str = "models.wide.nets:Net", **more: Any) -> None:
        check_end(sweep_of(trainable=trainable, **more), None, (str(here),))

    check("models.wide.nets:train", early_terminate=None)
    check(max_iter=3, early_terminate=None)
    check(early_terminate=Bands(max_iter=9, min_iter=1))
    with pytest.raises(InvalidKey, match=r":Net is a class[^;]*\n .*max_iter: 27"):
        check(early_terminate=None)
    with pytest.raises(InvalidKey, match=r"as W&B's .*\n.*{type: bands, max_iter: 27, .*last_iter: 27"):
        check(early_terminate=Bands(last_iter=27, bands=2))
