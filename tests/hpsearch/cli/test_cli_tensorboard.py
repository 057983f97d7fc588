"""The command that opens TensorBoard: what it says, what its server answers, and what it leaves behind."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.journal.journal import Journal
from hpsearch.observers.tensorboard.address import MOST_RUNS
from hpsearch.run.study_run import create_study
from tests.hpsearch.support.command_line import PATIENCE, Call, begin, wait_for, write_sweep

RUN = ("run", "sweep.yaml", "--backend", "inline", "--no-tensorboard")


@pytest.fixture
def studies(here: Path, hpsearch_command: Call) -> Path:
    """Two studies that are the same but for their seed."""
    for seed in (1, 2):
        asked = ("--set", f"seed={seed}", "--dir", f"runs/sweep-{seed}")
        assert hpsearch_command(*RUN, *asked).code == 0
    return here / "runs"


@contextmanager
def served(*words: object, cwd: Path, said: str = "") -> Iterator[tuple[dict[str, str], subprocess.Popen[str]]]:
    """Run the command as a process, with a folder of its own for what is temporary; return what it says by labels.

    At its end nothing is left, and nothing was said but `said`.
    """
    temporary = cwd / "temporary"
    temporary.mkdir(exist_ok=True)
    process = begin("tensorboard", *words, "--host", "127.0.0.1", "--port", "0", cwd=cwd, TMPDIR=str(temporary))
    assert process.stdout is not None
    assert process.stderr is not None
    told = {}
    try:
        for line in process.stdout:
            label, _, rest = line.rstrip("\n").partition(" ")
            told[label] = rest.strip()
            if label == "Ctrl-C":
                break
        assert "Ctrl-C" in told, process.stderr.read()
        yield told, process
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):  # one is enough, and more do no harm
            process.send_signal(number)
        assert process.wait(timeout=PATIENCE) == 0
        assert process.stderr.read() == said
        assert [path.name for path in temporary.iterdir() if path.name.startswith("hpsearch-")] == []
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def asked(server: str, path: str) -> Any:
    with urllib.request.urlopen(f"{server}{path}", timeout=PATIENCE) as answer:
        return json.loads(answer.read())


@pytest.mark.exhaustive
def test_the_server_has_what_the_addresses_ask_for(studies):
    with served("runs/sweep-1", "runs/sweep-2", "--top", "4", cwd=studies.parent) as (told, _):
        assert told["sweep-1,"] == "sweep-2: the best 4 of 8 trials; --top N shows others, --all all"
        parts = urllib.parse.urlsplit(told["curves"])
        server = f"{parts.scheme}://{parts.netloc}/"
        query = {key: value for key, (value,) in urllib.parse.parse_qs(parts.query).items()}
        names = [f"sweep-{seed}/{run}" for seed in (1, 2) for run in ("000", "001", "002", "003", "study")]
        expected = {*names, "sweep, 2 seeds/study"}
        wait_for(lambda: set(asked(server, "data/runs")) == expected)
        assert len([run for run in expected if re.search(query["runFilter"], run)]) == 4 + 3
        wait_for(lambda: "best/by trial" in asked(server, "data/plugin/scalars/tags").get("sweep-1/study", ()))
        tags = asked(server, "data/plugin/timeseries/tags")["scalars"]["runTagInfo"]
        for card in json.loads(query["pinnedCards"]):
            assert any(card["tag"] in of_run for of_run in tags.values()), card
        best = min(row.value for row in hpsearch.load("runs/sweep-1").trials if row.value is not None)
        curve = asked(server, "data/plugin/scalars/scalars?run=sweep-1%2Fstudy&tag=best%2Fby+trial")
        assert curve[-1][1:] == [4, pytest.approx(best, rel=1e-6)]
        page = asked(server, "data/plugin/custom_scalars/layout")
        assert [one["title"] for one in page["category"]] == ["over seeds: median and quartiles", "best", "course"]
        (ticked,) = urllib.parse.parse_qs(urllib.parse.urlsplit(told["studies"]).fragment)["regexInput"]
        assert {run for run in expected if re.search(ticked, run)} == {run for run in expected if "study" in run}


def has_runs(server: str, count: int) -> bool:
    return len(asked(server, "data/runs")) == count


@pytest.mark.exhaustive
def test_all_trials_are_served_where_all_are_asked_for(here, hpsearch_command):
    write_sweep(here / "many.yaml", run_cap=MOST_RUNS + 20, max_iter=1)
    assert hpsearch_command("run", "many.yaml", *RUN[2:], "--dir", "runs/many").code == 0
    for words, runs in ((), MOST_RUNS), (("--all",), MOST_RUNS + 21):
        with served("runs/many", *words, cwd=here) as (told, _):
            address = told["curves"].partition("?")[0]
            wait_for(partial(has_runs, address, runs))
            assert told.get("21", "absent").startswith("absent" if words else "trials without a run")


@pytest.mark.exhaustive
def test_what_a_study_does_meanwhile_is_shown(studies):
    entries = list(hpsearch.load(studies / "sweep-1").entries())
    place = create_study(hpsearch.load(studies / "sweep-1").sweep, studies / "growing")
    with served("runs/growing", cwd=studies.parent) as (told, _):
        server = told["curves"].partition("?")[0]
        wait_for(lambda: asked(server, "data/runs") == ["growing/study"])
        with Journal.open(place.journal) as journal:
            for entry in entries:
                journal.append([entry.event], [entry.followed], entry.time)
        wait_for(lambda: len(asked(server, "data/runs")) == 5)


@pytest.mark.exhaustive
def test_a_folder_that_is_asked_for_stays(studies, hpsearch_command):
    with served("runs/sweep-1", "--output", "view", cwd=studies.parent):
        pass
    assert sorted(path.name for path in (studies.parent / "view/sweep-1").iterdir()) == [
        "000",
        "001",
        "002",
        "003",
        "study",
    ]
    refused = hpsearch_command("tensorboard", "runs/sweep-1", "--output", "view")
    assert refused.code == 1
    assert "--output view: expected an empty folder, or none, but sweep-1 is there" in refused.err
    refused = hpsearch_command("tensorboard", "runs/sweep-1", "--output", "sweep.yaml")
    assert "--output sweep.yaml: expected a folder that can be written, got: File exists" in refused.err


@pytest.mark.exhaustive
def test_a_port_that_is_taken_is_an_error(studies):
    with served("runs/sweep-1", cwd=studies.parent) as (told, _):
        port = urllib.parse.urlsplit(told["curves"]).port
        words = ("tensorboard", "runs/sweep-1", "--host", "127.0.0.1", "--port", port)
        out, err = (refused := begin(*words, cwd=studies.parent)).communicate(timeout=PATIENCE)
    assert (refused.returncode, out) == (1, "")
    assert err.startswith(f"hpsearch: --host 127.0.0.1, --port {port}: TensorBoard can't be reached there: ")
    assert err.count("\n") == 1


@pytest.mark.exhaustive
def test_without_a_directory_it_takes_the_newest_study(studies):
    said = "hpsearch: runs/sweep-2 is taken, the newest study in runs\n"
    with served(cwd=studies.parent, said=said) as (told, _):
        assert told["sweep-2:"] == "4 trials"


@pytest.mark.exhaustive
def test_of_a_study_that_is_asked_for_and_told_of_all_is_shown(here, hpsearch_command):
    write_sweep(here / "lab.yaml", None, max_iter=1)
    for number in range(2):
        assert hpsearch_command("ask", "lab.yaml", "--dir", "lab").code == 0
        assert hpsearch_command("tell", "lab", number, "loss=1").code == 0
    with served("lab", cwd=here) as (told, _):
        server = told["curves"].partition("?")[0]
        wait_for(lambda: set(asked(server, "data/runs")) == {"lab/000", "lab/001", "lab/study"})
