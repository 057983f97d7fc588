"""`hpsearch show`: what a trial's network is, and that what it writes is the trained network, to the bit."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import hpsearch
from hpsearch_trainers.architectures import costs
from tests.hpsearch.support import shown_trainables
from tests.hpsearch.support.command_line import PROGRAM, ROOT, Call, environment, write_sweep
from tests.isolated import run_isolated

MODULE = "tests.hpsearch.support.shown_trainables"
OWN = """
import torch
from torch import nn
from hpsearch_trainers.architectures import architecture_of, network, operation


class Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.by = nn.Parameter(torch.zeros(1))

    def forward(self, values):
        return values + self.by


@operation()
def shown_shift(shape):
    return Shift()


def train(trial):
    print("importing or training prints")
    model = network(["shown_shift"])
    for iteration in trial.iterations():
        trial.report({"falling": 0}, checkpoint={"model": model.state_dict(), "architecture": architecture_of(model)})


print("the module prints")
"""

ALONE = """
import sys
for name in ("hpsearch", "hpsearch_trainers", "hpsearch_comm"):
    sys.modules[name] = None  # whatever is installed here: an import of it fails
import importlib.util
import torch
torch.set_num_threads(1)
for folder in sys.argv[1:]:
    for weights in (f"{folder}/weights.pt", f"{folder}/checkpoint.pt"):
        spec = importlib.util.spec_from_file_location("alone", f"{folder}/network.py")
        alone = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(alone)
        with torch.no_grad():
            outputs = alone.load(weights).eval()(torch.load(f"{folder}/rows.pt", weights_only=True))
        torch.save(outputs, weights.replace(".pt", "-outputs.pt"))
"""

LAYERS = {"layers": {"chain": {"conv": {"channels": {"values": [4, 6]}}, "pool": None}, "min": 2, "max": 3}}
FALLING = {"name": "falling", "goal": "maximize"}


def run(call: Call, trainable: str, **changes: Any) -> hpsearch.Study:
    given = {"metric": FALLING, "parameters": LAYERS, "max_iter": 1, "run_cap": 1, **changes}
    write_sweep(Path("sweep.yaml"), f"{MODULE}:{trainable}", **given)
    answer = call("run", "sweep.yaml", "--backend", "inline", "--dir", trainable, "--no-tensorboard")
    assert answer.code == 0, answer.err
    return hpsearch.load(trainable)


def run_config(call: Call, name: str, trainable: str, *changes: str) -> hpsearch.Study:
    """Run a file to begin with, shrunk."""
    settings = [f"trainable={MODULE}:{trainable}", "run_cap=2", *changes]
    sets = [word for setting in settings for word in ("--set", setting)]
    path = ROOT / "configs" / f"{name}.yaml"
    answer = call("run", path, "--backend", "inline", "--dir", name, "--no-tensorboard", *sets)
    assert answer.code == 0, answer.err
    return hpsearch.load(name)


EVOLUTION = ("max_iter=2", "search.options.population=2", "search.options.sample=1")


@pytest.mark.exhaustive
def test_what_is_written_of_each_kind_gives_what_was_trained_where_there_is_no_hpsearch(here, hpsearch_command):
    best = "metric={name: falling, goal: maximize, scope: best}"
    studies = [
        run_config(hpsearch_command, "chain_digits", "Chain", *EVOLUTION, best, "checkpoints={every: 1}"),
        run_config(hpsearch_command, "edge_cell_digits", "Cell", *EVOLUTION),
        run_config(hpsearch_command, "node_cell_digits", "Cell", *EVOLUTION, "parameters.channels={value: 4}"),
        run_config(hpsearch_command, "conditional_digits", "Dense", "early_terminate.max_iter=1"),
        run(hpsearch_command, "Stack"),
        run(hpsearch_command, "synchronized"),
    ]
    compare_alone(here, hpsearch_command, studies)
    assert studies[0].row().value_iteration == 1  # the best one isn't the last
    shown = json.loads(hpsearch_command("show", "chain_digits", "--format", "json").out)
    assert (shown["value"], shown["metrics"]["falling"], shown["iterations"]) == (-1.0, -1.0, 2)
    other = hpsearch_command("show", "chain_digits", 1 - studies[0].row().number)
    assert "weights     none: no checkpoint was saved with its value, or it wasn't kept" in other.out
    assert "in all" in other.out


@pytest.mark.exhaustive
def test_what_is_written_is_what_was_validated_where_there_is_no_hpsearch(here, hpsearch_command):
    averaged = run(hpsearch_command, "Averaged", parameters={**LAYERS, "average": {"value": 0.9}})
    compare_alone(here, hpsearch_command, [averaged, run(hpsearch_command, "function")])
    assert "moving average" in hpsearch_command("show", "Averaged").out


def compare_alone(here: Path, hpsearch_command: Call, studies: list[hpsearch.Study]) -> None:
    """Run what is written in a process without hpsearch, and compare with what the trained networks gave."""
    folders = []
    for study in studies:
        row = study.row()
        folder = here / "written" / study.directory.name
        answer = hpsearch_command("show", study.directory, row.number, "--output", folder)
        assert answer.code == 0, answer.err
        shutil.copy(study.best_trial.checkpoint or "", folder / "checkpoint.pt")
        torch.save(shown_trainables.ROWS, folder / "rows.pt")
        (gave,) = (study.directory / "trials" / f"{row.number:05}").glob(f"*/outputs{row.value_iteration}.pt")
        shutil.copy(gave, folder / "gave.pt")
        folders.append(folder)
    (here / "alone.py").write_text(ALONE)
    alone = run_isolated(here / "alone.py", *folders, cwd=here, strict=True)
    assert alone.returncode == 0, alone.stderr
    for study, folder in zip(studies, folders, strict=True):
        gave = torch.load(folder / "gave.pt")
        for name in ("weights", "checkpoint"):
            assert torch.equal(torch.load(folder / f"{name}-outputs.pt"), gave), (folder.name, name)
        with torch.no_grad(), as_in_a_worker():
            assert torch.equal(study.network()(shown_trainables.ROWS), gave), folder.name


@contextlib.contextmanager
def as_in_a_worker() -> Iterator[None]:
    """How a sum is divided among threads changes its last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_trial_is_shown_with_its_network_and_what_it_costs(here, hpsearch_command):
    study = run(hpsearch_command, "Measured", run_cap=2, method="random")
    record = json.loads(hpsearch_command("show", "Measured", 1, "--format", "json").out)
    row = study.trials[1]
    assert (record["trial"], record["value"], record["state"]) == (1, -1.0, "complete")
    assert record["params"] == study.sweep.parameters.nest(row.params)
    assert record["step"] == {"rows": 32, "optimizer": "SGD", "optimizer_copies": 1}
    known = costs(**record["architecture"], batch=32, optimizer_copies=1)
    told = (record["parameters"], record["flops"], record["peak_memory_bytes"])
    assert told == (known.parameters, known.flops, known.peak_memory_bytes)
    assert record["metrics"]["latency_ms"] > 0
    assert record["metrics"]["parameters"] == record["parameters"] == record["layers"]["parameters"]
    assert [part["place"] for part in record["layers"]["parts"]] == ["body", "head", "outputs"]
    text = hpsearch_command("show", "Measured", 1).out
    assert f"parameters  {known.parameters:,}\nFLOPs       {known.flops:,}" in text
    assert "latency_ms" in text
    assert "SGD that keeps 1 number for each weight" in text
    assert text.count("body") == 1


@pytest.mark.exhaustive
def test_the_optimizer_and_its_numbers_are_those_of_the_checkpoint(here, hpsearch_command):
    run(hpsearch_command, "Stack")
    record = json.loads(hpsearch_command("show", "Stack", "--format", "json").out)
    assert record["step"] == {"rows": 32, "optimizer": "Adam", "optimizer_copies": 2}
    text = hpsearch_command("show", "Stack").out
    assert "cell, as above" in text
    assert "from 1: skip" in text


def test_files_that_are_there_are_not_overwritten(here, hpsearch_command):
    run(hpsearch_command, "function")
    assert hpsearch_command("show", "function", 0, "--output", "out").code == 0
    (here / "out/network.py").unlink()
    weights = (here / "out/weights.pt").read_bytes()
    again = hpsearch_command("show", "function", 0, "--output", "out")
    assert (again.code, again.out) == (1, "")
    assert "out/weights.pt must not be there yet: name another folder, or delete it" in again.err
    assert (here / "out/weights.pt").read_bytes() == weights
    assert not (here / "out/network.py").exists()
    (here / "file").touch()
    assert "must be a folder that can be written to" in hpsearch_command("show", "function", "--output", "file").err


@pytest.mark.exhaustive
@pytest.mark.parametrize("trainable", ["Stack", "Averaged"])
def test_a_trainer_is_built_again_where_its_checkpoint_is_gone(here, hpsearch_command, trainable):
    study = run(hpsearch_command, trainable)
    whole = json.loads(hpsearch_command("show", trainable, "--format", "json").out)
    shutil.rmtree(Path(study.directory, study.row().checkpoint or "-"))
    record = json.loads(hpsearch_command("show", trainable, "--format", "json").out)
    for same in ("architecture", "parameters", "flops", "peak_memory_bytes", "step", "layers"):
        assert record[same] == whole[same], same
    assert (record["built_again"], whole["built_again"]) == (True, False)
    assert record["weights"] is None
    assert record["no_weights"] == "its checkpoint was deleted or is damaged"
    answer = hpsearch_command("show", trainable, "--output", "out")
    assert "no weights are there (its checkpoint was deleted or is damaged)" in answer.out
    assert f"{trainable} builds it now: no checkpoint says what was built" in answer.out
    assert "from network import load" not in answer.out
    assert [path.name for path in (here / "out").iterdir()] == ["network.py"]
    with pytest.raises(hpsearch.HpsearchError, match="must have a network with its weights: its checkpoint was del"):
        hpsearch.load(trainable).network()


@pytest.mark.parametrize(
    ("trainable", "why"),
    [
        ("Plain", "the model of tests.hpsearch.support.shown_trainables:Plain isn't one that"),
        ("weights_alone", "weights_alone isn't a Trainer, and no checkpoint names an architecture: a function's"),
        ("no_checkpoint", "no_checkpoint isn't a Trainer, and no checkpoint names an architecture: a function's"),
        ("misnamed", "must be what architecture_of gives: a function's checkpoint may have it as"),
    ],
)
def test_of_another_network_it_says_why_it_is_not_known(here, hpsearch_command, trainable, why):
    run(hpsearch_command, trainable)
    answer = hpsearch_command("show", trainable)
    assert answer.code == 0
    assert why in answer.out
    assert ("numbers" in answer.out) == (trainable != "no_checkpoint")
    assert json.loads(hpsearch_command("show", trainable, "--format", "json").out)["architecture"] is None
    refused = hpsearch_command("show", trainable, "--output", "out")
    assert refused.code == 1
    assert why in refused.err
    assert not (here / "out").exists()


def test_weights_that_do_not_fit_are_refused(here, hpsearch_command):
    run(hpsearch_command, "wrong_weights")
    refused = hpsearch_command("show", "wrong_weights", "--output", "out")
    assert (refused.code, refused.out) == (1, "")
    assert "the weights of trial 0 must fit the network that its architecture builds now, but:" in refused.err
    assert "Has an operation of your own changed" in refused.err
    assert not (here / "out").exists()


def test_a_script_has_no_network_that_is_known(here, hpsearch_command):
    (here / "script.py").write_text("import hpsearch\nhpsearch.current_trial().report({'falling': 0})\n")
    write_sweep(here / "sweep.yaml", None, program="script.py", metric=FALLING, max_iter=1, run_cap=1)
    assert hpsearch_command("run", "sweep.yaml", "--backend", "inline", "--dir", "study").code == 0
    answer = hpsearch_command("show", "study")
    assert answer.code == 0
    assert "network     not known: what a script trains isn't known" in answer.out


def test_a_trial_must_be_there_and_be_named_where_several_goals_decide(here, hpsearch_command):
    run(hpsearch_command, "Measured", metric=[FALLING, {"name": "parameters"}])
    missing = hpsearch_command("show", "Measured", 9)
    assert missing.code == 1
    assert "expected the number of one of 1 trials, got 9" in missing.err
    unnamed = hpsearch_command("show", "Measured")
    assert unnamed.code == 1
    assert "expected the number of a trial, as" in unnamed.err
    assert json.loads(hpsearch_command("show", "Measured", 0, "--format", "json").out)["values"]["falling"] == -1


@pytest.mark.exhaustive
def test_operations_of_ones_own_are_found_where_the_trainable_is(here, hpsearch_command):
    """In a process of its own, from another folder; without their module they are missed."""
    (here / "own_shift.py").write_text(OWN)
    write_sweep(here / "sweep.yaml", "own_shift:train", metric=FALLING, max_iter=1, run_cap=1)

    sources = os.pathsep.join(str(ROOT / folder) for folder in ("", "comm", "trainers"))

    def command(*words: str, cwd: Path = here) -> subprocess.CompletedProcess[str]:
        env = environment(PYTHONPATH=sources)
        return subprocess.run([PROGRAM, *words], cwd=cwd, env=env, capture_output=True, text=True)

    ran = command("run", "sweep.yaml", "--backend", "inline", "--dir", "study")
    assert ran.returncode == 0, ran.stderr
    (here / "elsewhere").mkdir()
    shown = command("show", "../study", "--format", "json", "--output", "out", cwd=here / "elsewhere")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["layers"]["parts"][0]["parameters"] == 1
    assert "class Shift" in (here / "elsewhere/out/network.py").read_text()
    (here / "own_shift.py").unlink()
    refused = command("show", "study")
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr
    assert "'shown_shift'" in refused.stderr
    assert "names the module 'own_shift', which isn't there" in refused.stderr
