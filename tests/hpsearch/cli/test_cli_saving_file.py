"""`best --save NAME.pt`: the best trial as one file for `torch.load`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

import hpsearch
from hpsearch.errors import HpsearchError
from hpsearch.export.saving import save_file
from tests.hpsearch.support.command_line import environment

TOLD = {"trial": 3, "values": {"loss": 0.5}, "params": {"lr": 0.1, "block": {"kind": "conv", "widths": [8, 16]}}}


def checkpoint_of(folder: Path, state: Any) -> Path:
    torch.save(state, folder / "state.pt")
    return folder / "state.pt"


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", ["best.pt", "deep/er/best.pth", "best.PT"])
def test_one_file_has_all_that_the_folder_has_and_needs_no_study(study, hpsearch_command, here, name):
    best = hpsearch.load(study).best_trial
    answer = hpsearch_command("best", "study", "--save", name)
    assert (answer.code, answer.out, answer.err) == (0, f"{name}\n", "")
    assert hpsearch_command("best", "study", "--save", "folder").code == 0
    told = json.loads((here / "folder/trial.json").read_text())
    shutil.rmtree(study)
    saved = torch.load(here / name, weights_only=True)
    del told["checkpoint"]
    assert saved == {**told, "state": {"place": best.value}}
    assert left_in((here / name).parent) == sorted(
        {Path(name).name, *(["folder", "sweep.yaml"] * (name[:4] == "best"))}
    )


@pytest.mark.exhaustive
def test_a_process_of_its_own_loads_it_without_hpsearch(study, hpsearch_command, here):
    assert hpsearch_command("best", "study", "--save", "best.pt").code == 0
    code = (
        "import sys, torch\n"
        "saved = torch.load('best.pt', weights_only=True)\n"
        "print(saved['params'], saved['state'])\n"
        "assert 'hpsearch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, env=environment())
    best = hpsearch.load(study).best_trial
    assert (done.stdout, done.stderr) == (f"{best.params} {{'place': {best.value}}}\n", "")


def test_what_is_there_is_replaced_only_by_force(study, hpsearch_command, here):
    file = here / "best.pt"
    file.write_text("mine")
    answer = hpsearch_command("best", "study", "--save", "best.pt")
    assert (answer.code, answer.out) == (1, "")
    assert "--save: best.pt must not be there yet: name another file, or replace it with --force" in answer.err
    assert file.read_text() == "mine"
    assert hpsearch_command("best", "study", "--save", "best.pt", "--force").code == 0
    assert torch.load(file, weights_only=True)["name"] == "sweep"


def test_a_link_that_leads_nowhere_is_there_too(study, hpsearch_command, here):
    (here / "best.pt").symlink_to("elsewhere.pt")
    assert "must not be there yet" in hpsearch_command("best", "study", "--save", "best.pt").err
    assert hpsearch_command("best", "study", "--save", "best.pt", "--force").code == 0
    assert not (here / "elsewhere.pt").exists()


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_folder_that_is_called_as_a_file_is_left_alone(study, hpsearch_command, here, force):
    (here / "best.pt").mkdir()
    answer = hpsearch_command("best", "study", "--save", "best.pt", *force)
    assert answer.code == 1
    assert "best.pt must be a file, as it ends in .pt, but is a folder: name another file" in answer.err
    assert left_in(here / "best.pt") == []


def test_where_nothing_can_be_written_it_says_so(study, hpsearch_command, here):
    (here / "taken").write_text("")
    answer = hpsearch_command("best", "study", "--save", "taken/best.pt")
    assert answer.code == 1
    assert "--save: taken/best.pt must be a file that can be written, got: " in answer.err
    assert "must not be there yet" not in answer.err


@pytest.mark.parametrize(
    "state",
    [
        {"model": OrderedDict(weight=torch.arange(6.0).reshape(2, 3)), "epoch": 3, "rates": [0.1, float("inf")]},
        [torch.tensor(True), (2.5, 2**70)],
        torch.zeros(3, dtype=torch.bfloat16),
        {},
    ],
)
def test_the_state_is_the_one_that_was_saved(tmp_path, state):
    checkpoint = checkpoint_of(tmp_path, state)
    save_file(TOLD, checkpoint, tmp_path / "best.pt")
    saved = torch.load(tmp_path / "best.pt", weights_only=True)
    found = saved.pop("state")
    assert saved == TOLD
    torch.testing.assert_close(found, state, rtol=0, atol=0)


def test_parameters_that_share_their_memory_share_it_still(tmp_path):
    weight = torch.zeros(2)
    save_file(TOLD, checkpoint_of(tmp_path, {"in": weight, "out": weight}), tmp_path / "best.pt")
    state = torch.load(tmp_path / "best.pt", weights_only=True)["state"]
    state["in"][0] = 1.0
    assert state["out"][0] == 1.0


def of_a_folder(folder: Path) -> tuple[Path, str]:
    (folder / "files").mkdir()
    return folder / "files", "a folder"


def of_text(folder: Path) -> tuple[Path, str]:
    (folder / "notes.txt").write_text("not for torch")
    return folder / "notes.txt", "a file that it can't read: "


def of_an_object(folder: Path) -> tuple[Path, str]:
    return checkpoint_of(folder, {"path": Path("a")}), "a file that it can't read: "


@pytest.mark.parametrize("make", [of_a_folder, of_text, of_an_object])
def test_what_is_no_one_state_is_refused_and_the_way_out_told(tmp_path, make):
    checkpoint, found = make(tmp_path)
    before = left_in(tmp_path)
    with pytest.raises(HpsearchError) as refused:
        save_file(TOLD, checkpoint, tmp_path / "to" / "best.pt")
    assert (
        f"the checkpoint of trial 3 must be what torch.load(weights_only=True) reads, but {checkpoint} is {found}"
        in (str(refused.value))
    )
    assert str(refused.value).endswith(f"save it as it is, into a folder: --save {tmp_path / 'to' / 'best'}")
    assert left_in(tmp_path) == before


@pytest.mark.exhaustive
def test_a_full_disk_leaves_what_was_there(tmp_path):
    """With a limit on the size of files, as a disk that is full: the former file stays, and nothing beside it."""
    checkpoint = checkpoint_of(tmp_path, {"weights": torch.zeros(100_000)})
    (tmp_path / "best.pt").write_text("former")
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from hpsearch.errors import HpsearchError\n"
        "from hpsearch.export.saving import save_file\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "try:\n"
        "    save_file({'trial': 3}, Path(sys.argv[1]), Path('best.pt'), force=True)\n"
        "except HpsearchError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, os.fspath(checkpoint)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
    )
    assert "--save: best.pt must be a file that can be written, got: File too large" in done.stdout
    assert (tmp_path / "best.pt").read_text() == "former"
    assert left_in(tmp_path) == ["best.pt", "state.pt"]


def test_python_saves_a_file_too(study, here):
    (path,) = hpsearch.load(study).save_best(here / "best.pt")
    assert torch.load(path, weights_only=True)["trial"] == hpsearch.load(study).best_trial.number
