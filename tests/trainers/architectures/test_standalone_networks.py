"""A network that is written down is the same network, to the bit, where nothing but torch is there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from hpsearch_trainers.architectures import OPERATIONS, ArchitectureError, network, operation, standalone
from tests.isolated import run_isolated
from tests.trainers.architectures.drawn import architectures, images
from tests.trainers.architectures.test_networks_from_values import PARAMS, SHAPES

Imported = Callable[[str, str], ModuleType]

ALONE = """
import sys
for name in ("hpsearch", "hpsearch_trainers", "hpsearch_comm", "numpy.testing"):
    sys.modules[name] = None  # whatever is installed here: an import of it fails
import importlib.util
import torch
for folder in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("alone", f"{folder}/network.py")
    alone = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(alone)
    made = alone.load(f"{folder}/weights.pt")
    rows = torch.load(f"{folder}/rows.pt", weights_only=True)
    torch.save([made.state_dict(), made(rows), made.eval()(rows)], f"{folder}/outputs.pt")
"""

CELL = {
    "2": [{"from": 0, "operation": "sep_3x3"}, {"from": 1, "operation": {"conv": {"kernel": 5}}}],
    "3": [{"from": 1, "operation": "none"}, {"from": 0, "operation": {"0-1": "dil_3x3"}}],
}
STACK = {"cell": CELL, "stages": 2, "repeats": 2, "channels": 4}
REDUCING = {"2": [{"from": 0, "operation": "sep_3x3"}, {"from": 1, "operation": "max_3x3"}]}
WHOLE: dict[str, tuple[Any, tuple[int, ...], dict[str, Any]]] = {
    "stack": ({"cells": STACK}, (3, 9, 8), {"stem": "conv", "head": ["adaptive_pool", "flatten"]}),
    "reduction": ({"cells": {**STACK, "reduction": REDUCING, "join": "mean"}}, (3, 9, 8), {}),
    "edges": ({"cells": {"cell": {"0-1": "conv", "0-2": "none", "1-2": "skip"}, "stages": 2}}, (3, 8, 8), {}),
    "transformer": (
        ["positions", {"residual": {"body": ["layer_norm", "attention", {"dense": {"dropout": 0.1}}]}}],
        (5, 8),
        {},
    ),
}


def run_alone(folders: list[Path], script: Path) -> None:
    script.write_text(ALONE)
    answer = run_isolated(script, *folders, strict=True)
    assert answer.returncode == 0, answer.stderr


def write(folder: Path, value: Any, inputs: tuple[int, ...], around: dict[str, Any]) -> Any:
    """Write a file, weights and rows, and return what the network gives for them, in training and in evaluation."""
    folder.mkdir()
    (folder / "network.py").write_text(standalone(value, inputs, 4, **around))
    made = network(value, inputs, 4, **around)
    rows = torch.rand(3, *inputs)
    made(rows)  # statistics of the batch
    torch.save({"model": made.state_dict(), "epoch": 3}, folder / "weights.pt")
    torch.save(rows, folder / "rows.pt")
    torch.manual_seed(0)
    return made(rows), made.eval()(rows), made.state_dict()


def without_dropout(value: Any) -> bool:
    return "dropout" not in str(value)


@pytest.mark.exhaustive
def test_every_operation_and_structure_is_the_same_network_in_a_process_with_torch_alone(tmp_path: Path) -> None:
    cases: dict[str, tuple[Any, tuple[int, ...], dict[str, Any]]]
    cases = {name: ([{name: PARAMS.get(name, {})}], SHAPES.get(name, (8, 6, 6)), {}) for name in OPERATIONS} | WHOLE
    written = {}
    for number, (value, inputs, around) in enumerate(cases.values()):
        folder = tmp_path / str(number)
        written[folder] = (value, write(folder, value, inputs, around))
    run_alone(list(written), tmp_path / "alone.py")
    for folder, (value, (training, evaluation, state)) in written.items():
        there, in_training, in_evaluation = torch.load(folder / "outputs.pt", weights_only=True)
        assert torch.equal(in_evaluation, evaluation), value
        assert list(there) == list(state)
        if without_dropout(value):
            assert torch.equal(in_training, training), value
            assert all(torch.equal(there[name], tensor) for name, tensor in state.items()), value


@pytest.mark.exhaustive
@pytest.mark.parametrize("weights", [["weights.pt"], pytest.param([], marks=pytest.mark.exhaustive)])
def test_it_runs_as_a_program(tmp_path: Path, weights: list[str]) -> None:
    write(tmp_path / "it", {"conv": {"channels": 2}}, (1, 6, 6), {})
    command = [sys.executable, "-I", "network.py", *weights]
    answer = subprocess.run(command, cwd=tmp_path / "it", capture_output=True, text=True)
    assert answer.stderr == ""
    assert answer.stdout.splitlines()[-1] == f"{18 + 4 + 12} parameters, outputs (1, 4)"


@pytest.mark.exhaustive
def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "it", {"conv": {"channels": 2}}, (1, 6, 6), {})
    (tmp_path / "it" / "network.py").write_text(standalone({"conv": {"channels": 3}}, (1, 6, 6), 4))
    answer = run_isolated(tmp_path / "it/network.py", "it/weights.pt", cwd=tmp_path)
    assert answer.returncode == 1
    assert "size mismatch for body.0.weight" in answer.stderr


def made_here(text: str) -> Any:
    names: dict[str, Any] = {"__name__": "alone"}
    exec(text, names)
    return names["build"]()


@settings(max_examples=8)
@given(value=architectures, inputs=images)
def test_any_architecture_is_the_same_network(value: Any, inputs: Any) -> None:
    ours = network(value, inputs, 3)
    theirs = made_here(standalone(value, inputs, 3))
    theirs.load_state_dict(ours.state_dict())
    rows = torch.rand(2, *inputs)
    assert torch.equal(ours.eval()(rows), theirs.eval()(rows))


OWN = '''
import math
from functools import wraps
import torch.nn as nn
import torch.nn.functional
from torch.nn import functional as F
from hpsearch_trainers.architectures import Shape, operation
from hpsearch_trainers.architectures.shapes import positive_int as positive_int

SLOPE = 0.25
TABLE = {"half": SLOPE / 2}


def even(n):
    return n == 0 or uneven(n - 1)


def uneven(n):
    return n != 0 and even(n - 1)


def doubled(function):
    @wraps(function)
    def twice(*arguments):
        return 2 * function(*arguments)

    return twice


class Base(nn.Module):
    pass


class Leak(Base):
    def __init__(self, slope: float = TABLE["half"]) -> None:
        super().__init__()
        self.slope = slope

    @doubled
    def forward(self, values):
        assert even(2)
        return torch.nn.functional.leaky_relu(values, self.slope) + F.relu(values) * math.pi


@operation("leak", "leaky")
def leak(shape: Shape, body: nn.Module, times: int = 1) -> nn.Module:
    """Leaks."""
    return nn.Sequential(body, *[Leak() for _ in range(positive_int("times", times))])
'''


def test_an_operation_of_ones_own_comes_with_what_it_needs(imported: Imported, tmp_path: Path) -> None:
    imported("own_leaks", OWN)
    value = [{"leaky": {"body": "conv", "times": 2}}, "skip"]
    _, evaluation, state = write(tmp_path / "it", value, (2, 5, 5), {})
    run_alone([tmp_path / "it"], tmp_path / "alone.py")
    there, _, in_evaluation = torch.load(tmp_path / "it" / "outputs.pt", weights_only=True)
    assert torch.equal(in_evaluation, evaluation)
    assert list(there) == list(state)
    text = (tmp_path / "it" / "network.py").read_text()
    assert "@doubled" in text
    assert "operation(" not in text


HEAD = """
from torch import nn
from hpsearch_trainers.architectures import operation

"""
GIVES = """

@operation()
def own(shape):
    return {}
"""

REFUSED = {
    "numpy": ("import numpy\n" + HEAD + GIVES.format("nn.Dropout(float(numpy.zeros(())))"), "needs 'import numpy'"),
    "another's": (
        "from hpsearch_trainers import measures\n" + HEAD + GIVES.format("[nn.Identity(), measures][0]"),
        "needs 'from hpsearch_trainers import measures'",
    ),
    "conditional": (
        HEAD + "if True:\n    P = 0.5\n" + GIVES.format("nn.Dropout(P)"),
        r"own_refused\.P must be defined, assigned or imported at the top of its file",
    ),
    "changed": (HEAD + "P = [0.5]\nP[0] = 0.1\n" + GIVES.format("nn.Dropout(P[0])"), "it is another network there"),
    "changed, used in forward": (
        HEAD
        + "P = [0.5]\nP[0] = 0.1\nclass Times(nn.Module):\n    def forward(self, values):\n"
        + "        return values * P[0]\n"
        + GIVES.format("Times()"),
        "it is another network there, or computes something else",
    ),
    "of our name": (
        HEAD + "def image(shape):\n    return 0.1\n" + GIVES.format("nn.Dropout(image(shape))"),
        r"own_refused\.image must have another name than hpsearch_trainers\.\S+\.image: both are needed|"
        r"\.image must have another name than own_refused\.image: both are needed",
    ),
    "of the file's name": (
        HEAD + "def load():\n    return 0.1\n" + GIVES.format("nn.Dropout(load())"),
        r"own_refused\.load must have another name, since the stand-alone file has one of that name",
    ),
    "import of another name": (
        HEAD + "import math as sys\n" + GIVES.format("nn.Dropout(sys.sqrt(0.01))"),
        r"own_refused must import sys under another name",
    ),
    "other there": (
        HEAD + GIVES.format('nn.Linear(shape[-1], 3 if __name__ == "own_refused" else 4)'),
        "it is another network there",
    ),
    "not to be run there": (
        HEAD + GIVES.format('nn.Linear(shape[-1], {"own_refused": 3}[__name__])'),
        "it fails there with KeyError: 'hpsearch_standalone_network'",
    ),
    "lambda": (HEAD + "operation('own')(lambda shape: nn.Identity())\n", "<lambda> must be a function or class at the"),
    "inner": (
        HEAD + "def make():\n    def own(shape):\n        return nn.Identity()\n    return own\noperation()(make())\n",
        r"make\.<locals>\.own must be a function or class at the top of a file",
    ),
    "method": (
        HEAD + "class A:\n    @staticmethod\n    def own(shape):\n        return nn.Identity()\noperation()(A.own)\n",
        r"A\.own must be a function or class at the top of a file",
    ),
    "replaced": (HEAD + GIVES.format("nn.Identity()") + "own = 3\n", "own must be what was registered, and is someth"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cant_be_taken_along_is_refused(name: str, imported: Imported) -> None:
    source, told = REFUSED[name]
    imported("own_refused", source)
    with pytest.raises(ArchitectureError, match=told) as raised:
        standalone(["conv", "own"], path="layers")
    assert str(raised.value).startswith("layers: can't be written as a standalone file: ")


def test_a_constant_that_was_set_since_is_refused(imported: Imported) -> None:
    module: Any = imported("own_constant", HEAD + "P = 0.5\n" + GIVES.format("nn.Dropout(P)"))
    assert "P = 0.5" in standalone("own")
    module.P = 0.1
    with pytest.raises(ArchitectureError, match="it is another network there"):
        standalone("own")


@pytest.mark.parametrize(
    "used",
    [
        "    layer = nn.Linear(shape[-1], 3)\n    nn.init.constant_(layer.weight, P[0])\n    return layer",
        "    return nn.Dropout(P[0] / 10)",
    ],
    ids=["weights", "training"],
)
def test_a_constant_that_was_changed_in_place_is_refused(imported: Imported, used: str) -> None:
    source = HEAD + "P = [1.0]\nP[0] = 7.0\n\n\n@operation()\ndef own(shape):\n" + used + "\n"
    imported("own_changed", source)
    with pytest.raises(ArchitectureError, match="it is another network there"):
        standalone("own")


def test_an_operation_without_a_file_is_refused(registry: object) -> None:
    names: dict[str, Any] = {"operation": operation, "__name__": "typed_in"}
    sys.modules["typed_in"] = ModuleType("typed_in")
    try:
        exec("from torch import nn\n@operation()\ndef typed(shape):\n    return nn.Identity()", names)
        sys.modules["typed_in"].typed = names["typed"]  # type: ignore[attr-defined]
        with pytest.raises(ArchitectureError, match="typed_in must be a file with source"):
            standalone("typed")
    finally:
        del sys.modules["typed_in"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), torch.tensor(1)])
def test_a_parameter_that_cant_be_written_is_refused(value: Any, imported: Imported) -> None:
    source = "\n@operation()\ndef own(shape, p):\n    return nn.Identity()\n"
    imported("own_parameter", HEAD + source)
    with pytest.raises(ArchitectureError, match="a parameter must be a number, a text, true or false, or none, got"):
        standalone({"own": {"p": value}})
    text = 'a "quoted" text\\ é \U0001f600'
    assert repr(text) in standalone({"own": {"p": [text, {"x": (1, -2.5e-300, None, True)}]}})
