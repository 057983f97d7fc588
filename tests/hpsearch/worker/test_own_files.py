"""Which files a trainable's code consists of, and whether they, or imported ones, were edited."""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpsearch.objective import Metric, Objective
from hpsearch.worker.job import CommandLine, Job
from hpsearch.worker.own_files import LoadedCode, OwnFiles

FILES = {
    "own_train.py": "import json, torch, own_lib.model\nfrom own_rates import rate\ndef train(trial): ...\n",
    "own_space/deep/nets.py": "import own_space.deep.more",
    "own_space/deep/more.py": "",
    "own_rates.py": "def late():\n    import own_late\nrate = 1\n",
    "own_late.py": "",
    "own_lib/__init__.py": "from . import blocks\n",
    "own_lib/model.py": "from .blocks import Block\ndef late(): from .. import beyond\n",
    "own_lib/blocks.py": "Block = 1\n",
    "own_lib/unused.py": "",
    "unused.py": "",
    "broken.py": "def (",
    "run.sh": "python own_train.py\n",
}
USED = {"own_train.py", "own_rates.py", "own_late.py", "own_lib/__init__.py", "own_lib/model.py", "own_lib/blocks.py"}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def own_files(folder: Path, trainable: Any) -> OwnFiles:
    return OwnFiles(Job(str(folder), "sweep", trainable, (str(folder),), Objective(Metric("loss")), None, 1))


def script(folder: Path, program: str | None, *command: str) -> CommandLine:
    return CommandLine(program, command, str(folder))


def imported(folder: Path) -> Any:
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("own_train").train
    finally:
        sys.path.remove(str(folder))


@pytest.mark.parametrize(
    ("make", "used"),
    [
        (lambda folder: "own_train:train", USED),
        (imported, USED),
        (lambda folder: functools.partial(imported(folder), lr=1), USED),
        (lambda folder: "own_lib.model:Model", {"own_lib/__init__.py", "own_lib/model.py", "own_lib/blocks.py"}),
        (lambda folder: "own_space.deep.nets:Net", {"own_space/deep/nets.py", "own_space/deep/more.py"}),
        (lambda folder: script(folder, "own_train.py", "python", "${program}"), USED),
        (lambda folder: script(folder, None, "python", "own_train.py", "${args}"), USED),
        (lambda folder: script(folder, "own_train", "python", "-m", "${program}"), USED),
        (lambda folder: script(folder, "run.sh", "sh", "${program}"), {"run.sh"}),
        (lambda folder: script(folder, "broken.py", "python", "${program}"), {"broken.py"}),
        (lambda folder: script(folder, "gone.py", "python", "${program}"), set()),
        (lambda folder: "hpsearch_trainers.Trainer:build", set()),
    ],
)
def test_the_files_are_the_users_own_that_the_trainable_imports(
    folder: Path, make: Callable[[Path], Any], used: set[str]
) -> None:
    found = own_files(folder, make(folder))
    assert {str(path.relative_to(folder)) for path in found._digests} == used
    assert (found.digest == "") == (not used)


def test_only_another_content_is_an_edit(folder: Path) -> None:
    before = own_files(folder, "own_train:train")
    (folder / "unused.py").write_text("changed = 1")
    os.utime(folder / "own_rates.py", (1, 1))
    (folder / "own_late.py").unlink()
    assert before.edit_note() is None
    (folder / "own_late.py").write_text("")  # as an editor may write it
    assert before.edit_note() is None
    assert own_files(folder, "own_train:train").digest == before.digest
    (folder / "own_late.py").write_text("late = 1")
    assert str(folder / "own_late.py") in (before.edit_note() or "")
    assert own_files(folder, "own_train:train").digest != before.digest


def test_the_file_of_a_function_that_is_given_as_it_is_may_be_edited(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials run what the process has in memory; a later run of the file is another version all the same."""
    train = imported(folder)
    monkeypatch.setattr(train, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(folder / "own_train.py"))
    before = own_files(folder, train)
    (folder / "own_train.py").write_text(FILES["own_train.py"] + "# edited")
    assert before.edit_note() is None
    assert own_files(folder, train).digest != before.digest
    (folder / "own_rates.py").write_text("rate = 2")
    assert (before.edit_note() or "").startswith(f"{folder / 'own_rates.py'} was edited")


_numbers = itertools.count()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Write a module, by default anew, and return its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = set()

    def written(text: str, name: str = "", seconds: float | None = None) -> str:
        name = name or f"edited_module_{next(_numbers)}"
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        if seconds is not None:
            os.utime(path, (seconds, seconds))
        names.add(name)
        return name

    yield written
    for name in names:
        sys.modules.pop(name, None)


def test_what_nobody_touches_is_never_edited(write):
    code = LoadedCode()
    importlib.import_module(write("value = 1", seconds=1.0))
    assert [code.edited() for _ in range(3)] == [None] * 3


def test_a_module_that_is_written_after_its_import_is_named_from_then_on(write):
    code = LoadedCode()
    assert code.edited() is None
    name = write("value = 1", seconds=1.0)
    importlib.import_module(name)
    write("value = 2", name)
    assert [code.edited() for _ in range(2)] == [name] * 2


@pytest.mark.parametrize(("text", "seconds"), [("value = 2", 5.0), ("value = 22", 1.0)])
def test_one_that_looks_old_is_another_one_too_if_it_was_looked_at_before(write, text, seconds):
    """As by `cp -p`, or by unpacking an archive."""
    code = LoadedCode()
    name = write("value = 1", seconds=1.0)
    importlib.import_module(name)
    assert code.edited() is None
    write(text, name, seconds)
    assert code.edited() == name


def test_one_that_was_written_before_the_look_that_came_before_its_import_is_not_edited(write):
    code = LoadedCode()
    name = write("value = 1")
    os.utime(sys.path[0] + f"/{name}.py", ns=(code._last_look + 1, code._last_look + 1))
    assert code.edited() is None
    importlib.import_module(name)
    assert code.edited() is None


def test_installed_modules_and_those_that_are_gone_are_not_looked_at(write, tmp_path):
    code = LoadedCode()
    name = write("value = 1", seconds=1.0)
    importlib.import_module(name)
    (tmp_path / f"{name}.py").unlink()
    code.edited()
    assert str(tmp_path / f"{name}.py") not in code._at_first_check
    own = {json.__file__, pytest.__file__, sys.modules[LoadedCode.__module__].__file__}
    assert not own & code._at_first_check.keys()
