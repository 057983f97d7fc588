from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpsearch.errors import TrainableError
from hpsearch.trainable.trainables import resolve_trainable


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    """A folder of the user's modules; what is imported from it is forgotten again."""
    package = tmp_path / "vision_models"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "digits.py").write_text(
        "def train(trial): ...\n"
        "def trial_less(): ...\n"
        "async def wait(trial): ...\n"
        "def steps(trial): yield\n"
        "rate = 0.1\n"
        "class Model:\n"
        "    def __init__(self, trial): ...\n"
        "    def step(self): ...\n"
        "    def of(self): ...\n"
        "class Stepless:\n"
        "    def __init__(self, trial): ...\n"
        "class Forgetful(Model):\n"
        "    def state_dict(self): ...\n"
    )
    (package / "broken.py").write_text("rate = 1\nrate / 0\n")
    (package / "quits.py").write_text("raise SystemExit('usage: ...')\n")
    (package / "slow.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    (package / "needs.py").write_text("import no_such_library\n")
    (package / "typo.py").write_text("def train(trial:\n")
    path, modules = list(sys.path), set(sys.modules)
    yield str(tmp_path)
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_ctrl_c_during_an_import_is_the_users_and_no_mistake_of_the_module(folder: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        resolve_trainable("vision_models.slow:train", (folder,))


def test_an_import_path_is_followed_in_the_search_path(folder: str) -> None:
    assert resolve_trainable("vision_models.digits:train", (folder,)).__name__ == "train"
    assert resolve_trainable("vision_models.digits:Model", (folder,)).__name__ == "Model"


def test_the_search_path_goes_to_the_front_once(folder: str) -> None:
    for _ in range(2):
        resolve_trainable("vision_models.digits:train", (folder,))
    assert sys.path[0] == folder
    assert sys.path.count(folder) == 1


def test_a_function_is_taken_as_it_is() -> None:
    def train(trial: object) -> None: ...

    assert resolve_trainable(train) is train


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("vision_models.digits", "must be written `package.module:name`"),
        (":train", "must be written `package.module:name`"),
        ("vision_models/digits.py:train", "names a file: write vision_models.digits:train"),
        ("train.py:train", "names a file: write train:train"),
        ("vision_model.digits:train", "the module 'vision_model', which isn't there (did you mean 'vision_models'?)"),
        ("vision_models.digit:train", "'vision_models.digit', which isn't there (did you mean 'digits'?)"),
        ("vision_models.digits:trian", "names 'trian', which isn't in "),
        ("vision_models.digits:trian", "did you mean 'train'?"),
        ("vision_models.digits:qqqq", "it has train, trial_less, wait, steps, Model, Stepless, Forgetful"),
        ("vision_models.digits:rate", "must be a function or class, but vision_models.digits:rate is a float"),
        ("vision_models.digits:trial_less", "is called as vision_models.digits:trial_less(trial), but"),
        ("vision_models.digits:wait", "is async or yields"),
        ("vision_models.digits:steps", "is async or yields"),
        ("vision_models.digits:Stepless", "must have step(self)"),
        ("vision_models.digits:Forgetful", "has state_dict only: add load_state_dict"),
        ("vision_models.broken:train", "raised ZeroDivisionError: division by zero, at "),
        ("vision_models.broken:train", "broken.py:2"),
        ("vision_models.quits:train", "raised SystemExit: usage: ..."),
        ("vision_models.needs:train", "raised ModuleNotFoundError: No module named 'no_such_library'"),
        ("vision_models.typo:train", "raised SyntaxError: '(' was never closed"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_by_the_part_that_fails(folder: str, spec: str, says: str) -> None:
    with pytest.raises(TrainableError) as raised:
        resolve_trainable(spec, (folder,))
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
