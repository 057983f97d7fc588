from __future__ import annotations

import contextlib
import errno
import io
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from hpsearch.errors import Interrupted, TrainableError
from hpsearch.objective import Metric, Objective
from hpsearch.space import Space
from hpsearch.trainable import checkpoints
from hpsearch.trainable.current import current_trial
from hpsearch.trainable.running_trial import RunningTrial
from hpsearch.trial import Parent, Report, Segment, Trial
from hpsearch.worker.job import Job
from hpsearch.worker.worker import Worker
from tests.hpsearch.support.segments import TRIAL, Listening, run, segment
from tests.hpsearch.worker.test_worker_bits import train

MakeWorker = Callable[..., Worker]


@pytest.fixture
def make_worker(tmp_path: Path) -> Iterator[MakeWorker]:
    """Make workers on one study; all of them are closed at the end."""
    workers = []

    def make(trainable: Any, **facts: Any) -> Worker:
        job = Job(str(tmp_path), "sweep", trainable, (), Objective(Metric("loss")), None, 1)
        workers.append(Worker(replace(job, **facts), tmp_path))
        return workers[-1]

    yield make
    for worker in reversed(workers):
        worker.close()


def output_of(root: Path, attempt: int = 1) -> str:
    return (root / "trials" / "00003" / str(attempt) / "output.log").read_text("utf-8")


class Counting:
    """A class that counts how often it is built, loaded and closed."""

    calls: ClassVar[list[str]] = []

    def __init__(self, trial: RunningTrial) -> None:
        self.trial = trial
        self.done = 0
        self.calls.append(f"build {trial.number}")

    def step(self) -> dict[str, float]:
        self.done += 1
        if self.trial.params.get("breaks"):
            raise ValueError("broken")
        (self.trial.directory / f"step-{self.done}").touch()
        return {"loss": self.done}

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]
        self.calls.append(f"load {self.done}")

    def close(self) -> None:
        self.calls.append("close")
        raise RuntimeError("nobody's failure")


@pytest.fixture
def calls() -> list[str]:
    Counting.calls.clear()
    return Counting.calls


def test_a_warm_object_goes_on_without_reading_its_checkpoint(
    make_worker: MakeWorker, tmp_path: Path, calls: list[str]
) -> None:
    worker = make_worker(Counting)
    first = run(worker, segment(0, 2))
    assert first.checkpoint is not None
    (tmp_path / first.checkpoint / "state.pt").unlink()
    (tmp_path / first.checkpoint / "random.pt").unlink()
    second = run(worker, segment(2, 4, first.checkpoint, attempt=2))
    assert (second.failure, second.iteration) == (None, 4)
    assert calls == ["build 3"]
    # The object's trial is that of the segment that runs.
    assert (tmp_path / "trials" / "00003" / "2" / "step-4").exists()


class Descended:
    """It reports whether it begins as the fork of another trial."""

    def __init__(self, trial: RunningTrial) -> None:
        self.trial = trial

    def step(self) -> dict[str, float]:
        return {"loss": 1.0, "begins": float(self.trial.parent is not None)}

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


@pytest.mark.parametrize("warm", [True, False])
def test_a_fork_with_a_checkpoint_of_its_own_has_no_parent_any_more(make_worker: MakeWorker, warm: bool) -> None:
    worker = make_worker(Descended)
    source = run(worker, segment(0, 2)).checkpoint
    fork = Trial(8, TRIAL.params, 5, "random", Parent(3, 2, source), 2)
    first = worker.run(fork, Segment(8, 2, 4, source, 1), Listening())
    worker = worker if warm else make_worker(Descended)
    second = worker.run(fork, Segment(8, 4, 6, first.checkpoint, 2), Listening())
    begins = [report.metrics["begins"] for report in (*first.reports, *second.reports)]
    assert begins == [1.0, 1.0, 0.0, 0.0]


def test_anything_else_is_built_afresh_from_its_checkpoint(
    make_worker: MakeWorker, calls: list[str], tmp_path: Path
) -> None:
    worker = make_worker(Counting)
    first = run(worker, segment(0, 2))
    run(worker, segment(2, 4, first.checkpoint, attempt=2))
    run(worker, segment(2, 4, first.checkpoint, attempt=3))  # a retry, from where the object no longer is
    assert calls == ["build 3", "close", "build 3", "load 2"]
    other = replace(TRIAL, number=8)
    worker.run(other, Segment(8, 0, 1, None, 1), Listening())
    assert calls[4:] == ["close", "build 8"]
    worker.close()
    assert calls[6:] == ["close"]
    assert "nobody's failure" in (tmp_path / "trials/00008/1/output.log").read_text()


def test_an_object_that_failed_isnt_kept(make_worker: MakeWorker, calls: list[str]) -> None:
    worker = make_worker(Counting)
    first = run(worker, segment(0, 1))
    broken = replace(TRIAL, params={"breaks": True})
    failed = worker.run(broken, segment(0, 2, attempt=2), Listening())
    assert failed.failure is not None
    again = run(worker, segment(1, 2, first.checkpoint, attempt=3))
    assert again.failure is None
    assert calls == ["build 3", "close", "build 3", "close", "build 3", "load 1"]


def test_an_object_that_is_let_go_is_closed_with_its_own_trials_log(
    make_worker: MakeWorker, tmp_path: Path, calls: list[str]
) -> None:
    worker = make_worker(Counting)
    assert worker.closes
    run(worker, segment(0, 1))
    worker.close_object(TRIAL.number)
    assert calls == ["build 3"]
    worker.close_object(8)
    worker.close_object(8)
    assert calls == ["build 3", "close"]
    assert "nobody's failure" in output_of(tmp_path)


def test_an_object_whose_log_cant_be_opened_is_closed_within_the_next_segment(
    make_worker: MakeWorker, tmp_path: Path, calls: list[str]
) -> None:
    worker = make_worker(Counting)
    run(worker, segment(0, 1))
    (tmp_path / "trials").rename(tmp_path / "away")
    (tmp_path / "trials").touch()
    worker.close_object(8)
    assert calls == ["build 3"]
    (tmp_path / "trials").unlink()
    worker.run(replace(TRIAL, number=8), Segment(8, 0, 1, None, 1), Listening())
    assert calls == ["build 3", "close", "build 8"]


def test_what_has_no_close_needs_no_letting_go(make_worker: MakeWorker) -> None:
    assert not make_worker(train).closes


# Settings of the whole process.


class Precise:
    """Computes in float64 from its `__init__` on, and in its first step turns denormals off as well."""

    def __init__(self, trial: RunningTrial) -> None:
        torch.set_default_dtype(torch.float64)
        self.total = torch.zeros(())

    def step(self) -> dict[str, float]:
        tiny = bool(torch.tensor(sys.float_info.min) / 2 > 0)
        torch.set_flush_denormal(True)
        self.total = self.total + torch.ones(()) / 3
        bits = torch.finfo((torch.ones(()) / 3).dtype).bits
        return {"loss": float(self.total), "bits": bits, "tiny": float(tiny)}

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


def test_what_a_trial_changes_of_its_process_is_put_back_and_told(make_worker: MakeWorker, tmp_path: Path) -> None:
    def changes(trial: RunningTrial) -> None:
        trial.report({"loss": torch.finfo(torch.get_default_dtype()).bits})
        torch.set_default_dtype(torch.float64)
        os.environ["HPSEARCH_TEST_LEAK"] = "1"
        if trial.params.get("breaks"):
            raise ValueError("broken")

    worker = make_worker(changes)
    for attempt, params in enumerate(({}, {"breaks": True}, {}), 1):
        result = worker.run(replace(TRIAL, params=params), segment(0, 2, attempt=attempt), Listening())
        assert [report.metrics for report in result.reports] == [{"loss": 32}]
        assert result.changed == ("environment variables", "torch's default dtype")
        assert result.stuck == ()
        assert "put back after it: environment variables, torch's default dtype\n" in output_of(tmp_path, attempt)
    assert "HPSEARCH_TEST_LEAK" not in os.environ


@pytest.mark.parametrize("looks", [True, False])
def test_whether_a_function_looked_at_the_checkpoint_that_it_goes_on_from_is_told(
    make_worker: MakeWorker, tmp_path: Path, looks: bool
) -> None:
    def train(trial: RunningTrial) -> None:
        total = trial.checkpoint["total"] if looks and trial.checkpoint else 0
        for _ in trial.iterations():
            total += 1
            trial.report({"loss": total}, checkpoint={"total": total})

    worker = make_worker(train)
    first = worker.run(TRIAL, segment(0, 2), Listening())
    second = worker.run(TRIAL, segment(2, 3, first.checkpoint, attempt=2), Listening())
    assert (first.ignored_checkpoint, second.ignored_checkpoint) == (False, not looks)
    assert second.reports[-1].metrics == {"loss": 3 if looks else 1}


def test_what_cant_be_put_back_is_told(make_worker: MakeWorker, tmp_path: Path, monkeypatch: Any) -> None:
    def moves(trial: RunningTrial) -> None:
        trial.report({"loss": 0})
        os.chdir("/")
        left.rmdir()

    left = tmp_path / "left"
    left.mkdir()
    monkeypatch.chdir(left)
    result = run(make_worker(moves), segment(0, 2))
    (stuck,) = result.stuck
    assert "the working directory" in stuck
    assert "couldn't be put back: the working directory" in output_of(tmp_path)


def test_an_object_finds_what_its_building_set_warm_as_cold(make_worker: MakeWorker) -> None:
    def metrics(worker_of: Callable[[], Worker], attempt: int) -> list[Any]:
        found, checkpoint = [], None
        for start in range(3):
            result = run(worker_of(), segment(start, start + 1, checkpoint, attempt + start))
            checkpoint = result.checkpoint
            found += [dict(report.metrics) for report in result.reports]
        assert torch.get_default_dtype() is torch.float32
        return found

    warm_worker = make_worker(Precise)
    warm = metrics(lambda: warm_worker, 1)
    assert warm == metrics(lambda: make_worker(Precise), 11)
    assert [entry["bits"] for entry in warm] == [64] * 3
    assert [entry["tiny"] for entry in warm] == [1.0] * 3


def test_a_class_without_state_is_run_without_checkpoints(make_worker: MakeWorker) -> None:
    class Stateless:
        def __init__(self, trial: RunningTrial) -> None: ...

        def step(self) -> dict[str, float]:
            return {"loss": 1.0}

    result = run(make_worker(Stateless), segment(0, 2))
    assert (result.iteration, result.checkpoint, result.failure) == (2, None, None)


# What a segment gives back, and what the channel hears.


def test_the_channel_hears_every_report_and_the_checkpoints_inside(make_worker: MakeWorker) -> None:
    channel = Listening()
    result = make_worker(train, save_every=2).run(TRIAL, segment(0, 5), channel)
    assert [report.iteration for report in channel.reports] == [1, 2, 3, 4, 5]
    assert [(iteration, path) for iteration, path, _ in channel.saves] == [
        (2, "trials/00003/1/hpsearch-checkpoint-2"),
        (4, "trials/00003/1/hpsearch-checkpoint-4"),
    ]
    assert [[report.iteration for report in reports] for _, _, reports in channel.saves] == [[1, 2], [3, 4]]
    assert [report.iteration for report in result.reports] == [5]
    assert (result.iteration, result.checkpoint, result.cut) == (5, "trials/00003/1/hpsearch-checkpoint-5", False)
    assert result.seconds > 0


def test_a_function_with_a_loop_of_its_own_stops_at_the_segments_end(make_worker: MakeWorker) -> None:
    went_on = []

    def own_loop(trial: RunningTrial) -> None:
        for epoch in range(100):
            try:
                trial.report({"loss": epoch}, checkpoint={"epoch": epoch})
            finally:
                went_on.append(epoch)

    result = run(make_worker(own_loop), segment(0, 3))
    assert (result.iteration, result.checkpoint) == (3, "trials/00003/1/hpsearch-checkpoint-3")
    assert went_on == [0, 1, 2]


def converges(trial: RunningTrial) -> None:
    """Go on after the last report, and return."""
    weight = torch.zeros(1)
    for epoch in (1, 2):
        weight.add_(1)
        trial.report({"loss": epoch}, checkpoint=lambda: {"weight": weight})
    weight.mul_(float("nan"))


def test_without_max_iter_a_function_that_returns_has_the_checkpoint_of_its_last_report(
    make_worker: MakeWorker, tmp_path: Path
) -> None:
    channel = Listening()
    result = make_worker(converges).run(TRIAL, segment(0, None), channel)
    assert (result.iteration, result.cut, result.failure) == (2, False, None)
    assert channel.saves == []
    assert len(result.reports) == 2
    assert result.checkpoint == "trials/00003/1/hpsearch-checkpoint-2"
    assert checkpoints.read_state(tmp_path / result.checkpoint) == {"weight": torch.full((1,), 2.0)}
    assert [path.name for path in (tmp_path / "trials/00003/1").glob("*checkpoint*")] == ["hpsearch-checkpoint-2"]


def test_a_function_that_returns_before_its_end_has_a_checkpoint_only_where_one_was_due(
    make_worker: MakeWorker, tmp_path: Path
) -> None:
    result = run(make_worker(converges), segment(0, 9))
    assert (result.iteration, result.failure, result.checkpoint) == (2, None, None)
    result = run(make_worker(converges, save_every=1), segment(0, 9, attempt=2))
    assert result.checkpoint is not None
    assert checkpoints.read_state(tmp_path / result.checkpoint) == {"weight": torch.full((1,), 2.0)}


def test_a_function_that_fails_without_max_iter_leaves_no_checkpoint(make_worker: MakeWorker, tmp_path: Path) -> None:
    assert run(make_worker(raises), segment(0, None)).failure is not None
    assert list((tmp_path / "trials/00003/1").glob("*checkpoint*")) == []


def test_a_forked_child_that_returns_tells_of_no_checkpoint(make_worker: MakeWorker, tmp_path: Path) -> None:
    def forks(trial: RunningTrial) -> None:
        trial.report({"loss": 1}, checkpoint={"done": 1})
        child = os.fork()
        if child == 0:
            return
        os.waitpid(child, 0)
        trial.report({"loss": 2}, checkpoint={"done": 2})

    result = run(make_worker(forks), segment(0, None))
    assert (result.failure, result.checkpoint) == (None, "trials/00003/1/hpsearch-checkpoint-2")
    assert checkpoints.read_state(tmp_path / str(result.checkpoint)) == {"done": 2}


# What the system refuses.


def test_a_trial_that_has_used_up_its_files_has_failed_by_itself(make_worker: MakeWorker) -> None:
    def leaks(trial: RunningTrial) -> None:
        _ = trial.directory
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            trial.report({"loss": 1}, checkpoint={"a": 1})
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    failure = run(make_worker(leaks), segment(0, 1)).failure
    assert failure is not None
    assert failure.kind == "raised"
    assert "Too many open files" in failure.message
    assert "hpsearch-checkpoint-1" in failure.message


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EIO, "storage"), (errno.ESTALE, "storage"), (errno.EACCES, "storage"), (errno.EISDIR, "checkpoint")],
)
@pytest.mark.parametrize("name", ["state.pt", "random.pt"])
def test_a_trial_isnt_blamed_for_a_checkpoint_that_cant_be_read(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch, number: int, kind: str, name: str
) -> None:
    worker = make_worker(train)
    first = run(worker, segment(0, 1))
    real = io.open

    def opened(file: Any, *arguments: Any, **options: Any) -> Any:
        if Path(str(file)).name == name:
            raise OSError(number, os.strerror(number), str(file))
        return real(file, *arguments, **options)

    monkeypatch.setattr(io, "open", opened)
    failure = run(worker, segment(1, 2, first.checkpoint, attempt=2)).failure
    assert failure is not None
    assert (failure.kind, os.strerror(number) in failure.message) == (kind, True)


def test_a_disk_that_is_full_when_an_attempt_begins_is_nobodys_failure(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Any, *arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    worker = make_worker(raises)
    monkeypatch.setattr(os, "mkdir", full)
    failure = run(worker, segment(0, 1)).failure
    assert failure is not None
    assert failure.kind == "storage"
    assert failure.message.endswith("Make room, then resume.")


def test_params_are_nested_and_fresh_for_every_segment(make_worker: MakeWorker) -> None:
    seen = []

    def takes(trial: RunningTrial) -> None:
        seen.append(dict(trial.params["optimizer"]))
        trial.params["optimizer"]["lr"] = 99
        assert current_trial() is trial
        trial.report({"loss": 0})

    worker = make_worker(takes, parameters=Space.from_parameters({"optimizer": {"lr": 0.1}}))
    for attempt in (1, 2):
        result = worker.run(replace(TRIAL, params={"optimizer.lr": 0.1}), segment(0, 1, attempt=attempt), Listening())
        assert result.failure is None
    assert seen == [{"lr": 0.1}, {"lr": 0.1}]
    with pytest.raises(TrainableError):
        current_trial()


def test_threads_are_set_for_every_segment_and_given_back(make_worker: MakeWorker) -> None:
    before = torch.get_num_threads()
    seen = []

    def meddles(trial: RunningTrial) -> None:
        seen.append(torch.get_num_threads())
        torch.set_num_threads(1)
        trial.report({"loss": 0})

    worker = make_worker(meddles, threads=before + 1)
    for attempt in (1, 2):
        run(worker, segment(0, 1, attempt=attempt))
    worker.close()
    assert seen == [before + 1] * 2
    assert torch.get_num_threads() == before


# Failures.


def raises(trial: RunningTrial) -> None:
    trial.report({"loss": 1.0}, checkpoint={"a": 1})
    raise ValueError("the rate must be positive\nand so on")


def exits(trial: RunningTrial) -> None:
    sys.exit("enough")


def forgets_the_metric(trial: RunningTrial) -> None:
    trial.report({"accuracy": 1.0})


def reports_nothing(trial: RunningTrial) -> None:
    for _ in ():
        trial.report({"loss": 1.0})


def returns_its_loss(trial: RunningTrial) -> float:
    return 0.25


def saves_an_object(trial: RunningTrial) -> None:
    trial.report({"loss": 1.0}, checkpoint={"rng": random.Random(0)})


@pytest.mark.parametrize(
    ("trainable", "kind", "message"),
    [
        (raises, "raised", "ValueError: the rate must be positive"),
        (exits, "raised", "SystemExit: enough"),
        (forgets_the_metric, "contract", "the sweep's metric 'loss', but this one has 'accuracy'"),
        (reports_nothing, "contract", "must report at least once in a segment"),
        (returns_its_loss, "contract", "returned without, and its result, 0.25, isn't read: call trial.report("),
        (saves_an_object, "contract", 'state["rng"]: random.Random can\'t be read back'),
    ],
)
def test_a_users_mistake_is_a_failure_in_the_result(
    make_worker: MakeWorker, tmp_path: Path, trainable: Any, kind: str, message: str
) -> None:
    result = run(make_worker(trainable), segment(0, 1 if trainable is saves_an_object else 3))
    assert result.failure is not None
    assert result.failure.kind == kind
    assert message in result.failure.message
    assert "\n" not in result.failure.message
    assert result.checkpoint is None
    assert not result.cut
    assert result.failure.traceback in output_of(tmp_path)


def test_a_failure_keeps_the_reports_before_it(make_worker: MakeWorker) -> None:
    result = run(make_worker(raises), segment(0, 3))
    assert [report.iteration for report in result.reports] == [1]
    assert result.iteration == 1


def test_a_traceback_shows_the_users_frames_and_none_of_ours(make_worker: MakeWorker) -> None:
    for trainable in (raises, forgets_the_metric):
        failure = run(make_worker(trainable), segment(0, 3)).failure
        assert failure is not None
        assert failure.traceback.startswith("Traceback")
        assert f"in {trainable.__name__}" in failure.traceback
        assert "running_trial.py" not in failure.traceback
        assert "in_process.py" not in failure.traceback


def test_a_keyboard_interrupt_of_the_trainables_own_is_its_failure(make_worker: MakeWorker) -> None:
    def interrupts_itself(trial: RunningTrial) -> None:
        raise KeyboardInterrupt

    failure = run(make_worker(interrupts_itself), segment(0, 1)).failure
    assert failure is not None
    assert (failure.kind, failure.message) == ("raised", "KeyboardInterrupt")


def test_a_long_traceback_is_whole_in_the_log_and_shortened_in_the_failure(
    make_worker: MakeWorker, tmp_path: Path
) -> None:
    def raises_at_length(trial: RunningTrial) -> None:
        raise ValueError("first word\n" + "\n".join(f"line {number}" for number in range(100_000)) + "\nlast word")

    failure = run(make_worker(raises_at_length), segment(0, 1)).failure
    assert failure is not None
    assert len(failure.traceback) < 40_000
    assert "first word" in failure.traceback
    assert "last word" in failure.traceback
    assert "the whole is in output.log" in failure.traceback
    assert "line 50000\n" in output_of(tmp_path)


def test_a_long_message_is_shortened(make_worker: MakeWorker) -> None:
    def reports_many(trial: RunningTrial) -> None:
        trial.report({"m" * 1_000_000: 1.0})

    failure = run(make_worker(reports_many), segment(0, 1)).failure
    assert failure is not None
    assert len(failure.message) < 3_000


def test_an_error_that_is_raised_from_itself_is_a_failure_like_any_other(make_worker: MakeWorker) -> None:
    def raises_in_a_circle(trial: RunningTrial) -> None:
        _ = trial.group
        error = ValueError("round and round")
        raise error from error

    failure = run(make_worker(raises_in_a_circle), segment(0, 1)).failure
    assert failure is not None
    assert failure.message == "ValueError: round and round"


def test_ctrl_c_passes_through_and_leaves_the_process_as_it_was(make_worker: MakeWorker) -> None:
    def interrupted(trial: RunningTrial) -> None:
        raise Interrupted

    streams = sys.stdout, sys.stderr
    with pytest.raises(Interrupted):
        run(make_worker(interrupted), segment(0, 1))
    assert (sys.stdout, sys.stderr) == streams
    with pytest.raises(TrainableError):
        current_trial()


def test_what_the_channel_raises_is_nobodys_failure_but_passes_through(make_worker: MakeWorker) -> None:
    class Broken(Listening):
        def reported(self, report: Report) -> None:
            raise OSError("the journal's disk is full")

    def careful(trial: RunningTrial) -> None:
        with contextlib.suppress(OSError):
            trial.report({"loss": 1.0})

    for trainable in (train, careful):
        with pytest.raises(OSError, match="disk is full"):
            make_worker(trainable).run(TRIAL, segment(0, 1), Broken())


def test_a_trainable_that_cant_be_had_is_refused_at_once(make_worker: MakeWorker) -> None:
    threads = torch.get_num_threads()
    with pytest.raises(TrainableError, match="no_such_module"):
        make_worker("no_such_module:train", threads=threads + 1)
    assert torch.get_num_threads() == threads


# Output.


def prints(trial: RunningTrial) -> None:
    print("from Python")
    print("to stderr", file=sys.stderr)
    os.write(1, b"from the descriptor\n")
    subprocess.run(["sh", "-c", "echo from a child; echo its stderr >&2"], check=True)
    sys.stdout.write("no line feed: \u20ac")
    trial.report({"loss": 0})


def test_output_of_a_trial_goes_to_its_log_and_nowhere_else(
    make_worker: MakeWorker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    print("before")
    assert run(make_worker(prints), segment(0, 1)).failure is None
    print("after")
    os.write(2, b"straight\n")
    assert output_of(tmp_path) == (
        "from Python\nto stderr\nfrom the descriptor\nfrom a child\nits stderr\nno line feed: \u20ac"
    )
    assert capfd.readouterr() == ("before\nafter\n", "straight\n")


def test_each_attempt_has_a_log_of_its_own(make_worker: MakeWorker, tmp_path: Path) -> None:
    def says(trial: RunningTrial) -> None:
        print(f"attempt in {trial.directory.name}")
        trial.report({"loss": 0})

    worker = make_worker(says)
    for attempt in (1, 2):
        run(worker, segment(0, 1, attempt=attempt))
    assert [output_of(tmp_path, attempt) for attempt in (1, 2)] == ["attempt in 1\n", "attempt in 2\n"]


def test_a_trial_that_closes_its_output_doesnt_take_it_from_the_next(make_worker: MakeWorker, tmp_path: Path) -> None:
    def closes(trial: RunningTrial) -> None:
        print("mine")
        sys.stdout.close()
        trial.report({"loss": 0})

    worker = make_worker(closes)
    for attempt in (1, 2):
        assert run(worker, segment(0, 1, attempt=attempt)).failure is None
    assert [output_of(tmp_path, attempt) for attempt in (1, 2)] == ["mine\n", "mine\n"]


def test_output_that_cant_be_filed_meanwhile_is_filed_at_the_end(tmp_path: Path) -> None:
    def prints_at_length(trial: RunningTrial) -> None:
        print("mine")
        (tmp_path / "trials").touch()
        worker.file_log()
        (tmp_path / "trials").unlink()
        trial.report({"loss": 0})

    job = Job(str(tmp_path), "sweep", prints_at_length, (), Objective(Metric("loss")), None, 1)
    worker = Worker(job, tmp_path, tmp_path / "at-hand")
    assert run(worker, segment(0, 1)).failure is None
    worker.close()
    assert output_of(tmp_path) == "mine\n"


def test_a_trial_may_put_a_stream_of_its_own_that_only_writes(make_worker: MakeWorker, tmp_path: Path) -> None:
    class Tee:
        def write(self, text: str) -> None:
            os.write(1, text.upper().encode())

    def tees(trial: RunningTrial) -> None:
        sys.stdout = Tee()
        print("mine")
        trial.report({"loss": 0})

    before = sys.stdout
    assert run(make_worker(tees), segment(0, 1)).failure is None
    assert sys.stdout is before
    assert output_of(tmp_path) == "MINE\n"


def open_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_no_descriptor_is_left_open(make_worker: MakeWorker) -> None:
    worker = make_worker(train)
    run(worker, segment(0, 1))
    before = open_descriptors()
    for attempt in range(2, 6):
        run(worker, segment(0, 1, attempt=attempt))
    assert open_descriptors() == before
