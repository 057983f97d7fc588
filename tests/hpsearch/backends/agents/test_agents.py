"""Agents in real processes, over a shared folder."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import hpsearch
from hpsearch.backends.agents.agent import Agent
from hpsearch.backends.agents.backend import AgentsBackend
from hpsearch.backends.agents.desk import AgentRow
from hpsearch.backends.agents.folder import AgentFolder, write_rows
from hpsearch.errors import BackendError, SweepError, TrainableError
from hpsearch.events import Lost
from hpsearch.results.study import load
from hpsearch.sweep.file import load_sweep
from hpsearch.tables.status import status_text
from hpsearch.task import Notice, Progress, Result
from hpsearch.worker.job import job_of, trainable_of
from tests.hpsearch.support.agents import SCRIPT, AnyJobBackend, agent, agent_beside
from tests.hpsearch.support.command_line import ROOT, call, write_sweep
from tests.hpsearch.support.conditions import beside, gone
from tests.hpsearch.support.driver import Driver, closed_in_the_end, is_timeout


@pytest.fixture(autouse=True)
def closed_backends() -> Iterator[None]:
    with closed_in_the_end():
        yield


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    """Ends agents with the test, after their drivers."""
    with ExitStack() as stack:
        yield stack


def driven(tmp_path: Path, trainable: str, ending: ExitStack, *, live: bool = False, agents: int = 1) -> Driver:
    study = tmp_path / "study"
    driver = Driver(AnyJobBackend(live=live), study, trainable, save_every=2)
    for _ in range(agents):
        ending.enter_context(agent_beside(study))
    ending.callback(driver.backend.close, kill=True)  # first: agents wait for a driver that doesn't answer
    return driver


@pytest.mark.exhaustive
def test_a_sweep_on_agents_has_the_table_of_inline(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    early = {"type": "hyperband", "max_iter": 3}
    sweep = write_sweep(Path("s.yaml"), None, program="train.py", max_iter=None, run_cap=None, early_terminate=early)
    options = (sweep, "--no-tensorboard", "--backend")
    assert call(capsys, "run", *options, "inline", "--dir", "inline").code == 0
    with agent_beside(Path("agents"), tmp_path):
        answer = call(capsys, "run", *options, "agents", "--dir", "agents")
    assert answer.code == 0, answer.err
    how = f"hpsearch agent {tmp_path / 'agents'} --code FOLDER"
    inline, agents = (call(capsys, "trials", name, "--format", "csv").out for name in ("inline", "agents"))
    assert agents == inline
    assert f"waiting for agents; start some, on any machine that sees this folder: {how}" in answer.out
    assert "agents" not in status_text(load("agents"), "ada@lab-1:7").replace(str(tmp_path / "agents"), "")
    write_rows(Path("agents"), [AgentRow("a", "lab-1", 4), AgentRow("b", "lab-2", None)])
    assert "agents      2: lab-1 (trial 4), lab-2 (idle)\n" in status_text(load("agents"), "ada@lab-1:7")


@pytest.mark.exhaustive
def test_a_worker_that_dies_is_a_lost_attempt_and_another_takes_its_place(tmp_path, ending):
    driver = driven(tmp_path, "kills_its_worker_once", ending)
    driver.start(0, {"x": 0.5, "folder": str(tmp_path)}, end=4)
    lost = driver.outcome(0)
    assert isinstance(lost, Lost)
    assert (lost.reason, lost.counts_against_trial) == ("its worker's process ended with signal 9", True)
    assert [saved.iteration for saved in driver.messages if not isinstance(saved, Progress | Notice | Lost)] == [2]
    driver.start(0, {"x": 0.5, "folder": str(tmp_path)}, end=4, attempt=2)
    assert driver.outcome(0, 2).iteration == 4


@pytest.mark.exhaustive
def test_an_attempt_over_its_timeout_is_killed_with_its_children(tmp_path, ending):
    driver = driven(tmp_path, "endless", ending)
    driver.start(0, {"folder": str(tmp_path)}, end=10**6, timeout=1.0)
    result = driver.outcome(0)
    assert is_timeout(result)
    assert result.seconds >= 1.0
    pids = [int(pid) for pid in (tmp_path / "0.pids").read_text().split()]
    driver.wait_for(lambda: all(map(gone, pids)))


@pytest.mark.exhaustive
def test_an_agent_that_is_told_to_leave_hands_its_segment_back_with_a_checkpoint(tmp_path, ending):
    driver = driven(tmp_path, "counts", ending)
    with agent_beside(tmp_path / "study") as leave:
        driver.wait_for(lambda: driver.backend.capacity() == 2)
        for number in range(2):
            driver.start(number, {}, end=10**6)
        driver.wait_for(lambda: driver.reports(0) and driver.reports(1))
        leave()
        driver.wait_for(lambda: driver.results() and driver.backend.workers().ready == 1)
    (result,) = [message for message in driver.messages if isinstance(message, Result)]
    assert (result.cut, result.failure) == (True, None)
    assert result.checkpoint is not None


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_an_agents_process_and_all_that_it_started(tmp_path, monkeypatch, number):
    monkeypatch.setenv("HPSEARCH_AGENT_LEASE", "5")
    driver = Driver(AnyJobBackend(), tmp_path / "study", "endless")
    with agent(tmp_path / "study") as process:
        driver.start(0, {"folder": str(tmp_path)}, end=10**6)
        driver.metrics(0)
        process.send_signal(number)
        outcome = driver.outcome(0)
        driver.wait_for(lambda: process.poll() is not None)
    if number == signal.SIGTERM:
        assert process.returncode == 0
        assert isinstance(outcome, Result)
        assert outcome.cut
    else:
        assert isinstance(outcome, Lost)
        assert outcome.reason.endswith("wasn't heard from for 5 s")
    pids = [int(pid) for pid in (tmp_path / "0.pids").read_text().split()]
    driver.wait_for(lambda: all(map(gone, pids)))


@pytest.mark.exhaustive
def test_where_the_scheduler_may_stop_a_trial_at_any_report_the_agent_waits_for_it(tmp_path, ending):
    driver = driven(tmp_path, "without_checkpoints", ending, live=True)
    driver.start(0, {"x": 0.5}, end=1000)
    driver.metrics(0)
    driver.backend.cut(0, 1)  # as the orchestrator does before it waits again
    assert [report.iteration for report in driver.reports(0)] == [1]
    assert driver.outcome(0).iteration == 1


@pytest.mark.exhaustive
def test_agents_go_on_with_the_next_driver_and_end_what_they_had_of_the_former(tmp_path, ending):
    driver = driven(tmp_path, "endless", ending)
    driver.start(0, {"folder": str(tmp_path)}, end=10**6)
    driver.metrics(0)
    pids = [int(pid) for pid in (tmp_path / "0.pids").read_text().split()]
    # Without a close, as if it had been killed: its study is locked no more, and another begins.
    following = Driver.__new__(Driver)
    following.backend, following.messages = AnyJobBackend(), []
    assert isinstance(driver.backend, AnyJobBackend)
    following.backend.open(driver.backend.job, following.messages.append)
    following.start(0, {"folder": str(tmp_path)}, end=10**6, attempt=2)
    following.metrics(0)
    assert all(map(gone, pids))
    ending.callback(following.backend.close, kill=True)


def refused(tmp_path: Path, code: Path) -> str:
    """Start an agent with other code; return its error, which the driver notes as well."""
    driver = Driver(AnyJobBackend(), tmp_path / "study", "train:fit")
    link = AgentFolder(tmp_path / "study", "a" * 32)
    agent = beside(lambda: Agent(link, "a" * 32, code, 60.0, print).run(lambda: False))
    driver.wait_for(agent.done)
    with pytest.raises(TrainableError) as caught:
        agent.result()
    driver.wait_for(lambda: [message for message in driver.messages if str(caught.value) in str(message)])
    return str(caught.value)


def test_an_agent_whose_code_differs_names_the_file_and_takes_nothing(tmp_path, monkeypatch):
    for folder, factor in (("here", 1), ("there", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text("import helper\ndef fit(trial): trial.report({'value': 1})\n")
        (tmp_path / folder / "helper.py").write_text(f"factor = {factor}\n")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(tmp_path / "here")
    assert refused(tmp_path, tmp_path / "there") == (
        f"the code in {tmp_path / 'there'} must be the driver's, but helper.py differs: copy the driver's files, and "
        "start this agent again"
    )


def test_an_agent_runs_nothing_outside_its_folder_of_code(tmp_path, monkeypatch):
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    (tmp_path / "here" / "train.py").write_text("def fit(trial): trial.report({'value': 1})\n")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(tmp_path / "here")
    assert refused(tmp_path, tmp_path / "there") == (
        f"train:fit must be below {tmp_path / 'there'}, but it is in {tmp_path / 'here' / 'train.py'}: name the folder "
        "of its code with --code"
    )


def test_an_agent_without_a_driver_says_so(tmp_path):
    link = AgentFolder(tmp_path, "a" * 32)
    with pytest.raises(BackendError, match=r"no driver has answered for 0\.1 s\. Start it with hpsearch run SWEEP"):
        Agent(link, "a" * 32, tmp_path, 0.1, print).run(lambda: False)
    assert list(tmp_path.iterdir()) == []


CONFIGS = [path for path in sorted((ROOT / "configs").glob("*.yaml")) if path.stem != "digits"]


@pytest.mark.parametrize(
    "path",
    [ROOT / "configs" / "digits.yaml", *(pytest.param(path, marks=pytest.mark.exhaustive) for path in CONFIGS)],
    ids=lambda path: path.stem,
)
def test_the_job_of_an_agent_is_the_drivers(path):
    sweep = load_sweep(path, [])
    if sweep.trainable is None or sweep.resources.widest > 1 or sweep.resources.lanes > 1:
        pytest.skip("agents can't run it")
    try:
        AgentsBackend(sweep)
    except SweepError:
        pytest.skip("agents can't run it")
    from hpsearch.backends.agents.backend import _stored

    trainable = trainable_of(sweep, "/code")
    theirs = job_of(type(sweep).from_json(_stored(sweep)), "/study", trainable, (), "AUTO")
    ours = job_of(sweep, "/study", trainable, (), "AUTO")
    assert theirs.parameters is not None
    assert ours.parameters is not None
    assert theirs.parameters.to_json() == ours.parameters.to_json()
    left_out = {"parameters": None, "strategies": None, "resource": None, "live": False}
    assert {**vars_of(theirs), **left_out} == {**vars_of(ours), **left_out}


def vars_of(job: object) -> dict[str, object]:
    return {name: getattr(job, name) for name in job.__slots__}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"resources": {"workers_per_trial": 2, "workers": 2}},
            "workers_per_trial and max_workers_per_trial must be 1",
        ),
        ({"resources": {"max_workers_per_trial": 2}}, "workers_per_trial and max_workers_per_trial must be 1"),
        ({"resources": {"trials_per_worker": 4}}, "trials_per_worker must be 1 on agents"),
        ({"trainable": "__main__:fit"}, "is in a notebook or in the program that runs"),
        ({"trainable": None, "program": "../train.py"}, "must be a path below the agents' folder of code"),
        ({"trainable": None, "program": "/train.py"}, "must be a path below the agents' folder of code"),
        ({"trainable": None, "program": "train.py", "command": ["rm", "${program}"]}, "agents run a script as"),
        ({"trainable": None, "command": ["python", "-c", "1"]}, "agents run a script as"),
    ],
)
def test_what_agents_cannot_run_is_refused_before_a_study_is_made(tmp_path, capsys, monkeypatch, changes, message):
    monkeypatch.chdir(tmp_path)
    trainable = changes.pop("trainable", "steps")
    sweep = write_sweep(Path("sweep.yaml"), trainable, **changes)
    if trainable == "__main__:fit":
        monkeypatch.setattr("hpsearch.cli.running.check_end", lambda *_: None)
    answer = call(capsys, "run", sweep, "--backend", "agents")
    assert answer.code == 1
    assert message in answer.err
    assert not Path("runs").exists()


def test_a_function_of_the_program_that_searches_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def fit(trial):
        trial.report({"loss": 1})

    monkeypatch.setattr(fit, "__module__", "__main__")
    with pytest.raises(SweepError, match="which agents can't import: write it into a module"):
        hpsearch.search(fit, {"x": [1, 2]}, metric="loss", max_iter=1, backend="agents", progress=False)


def test_a_lease_that_is_no_time_is_refused(monkeypatch):
    monkeypatch.setenv("HPSEARCH_AGENT_LEASE", "soon")
    with pytest.raises(SweepError, match=r"HPSEARCH_AGENT_LEASE: must be a number of seconds from 1 to 86400, got 'so"):
        AgentsBackend(load_sweep(ROOT / "configs" / "digits.yaml", []))
