"""A study and its copy in a bucket in memory, which is read after every single write as after the loss of the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import hpsearch.storage.mirror as mirror_module
from hpsearch.errors import JournalError, StorageError, StudyInUseError, SweepError
from hpsearch.events import Entry, Finished, Saved
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.event_codec import decode, decode_followed
from hpsearch.journal.journal import Journal
from hpsearch.observers.display import Display
from hpsearch.results.study import Study, load
from hpsearch.run.ask_tell import AskTell
from hpsearch.run.study_run import RunSettings, create_study, run_study
from hpsearch.storage.batches import FOLDER, Batch, batch_with
from hpsearch.storage.studies import _download, directory_to_resume
from hpsearch.study.state import SweepState
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.trials import rows_to_csv
from hpsearch.task import Message, Task
from hpsearch.trainable.addresses import path_of
from hpsearch.trainable.checkpoints import read_state, write
from hpsearch.worker.attempt import attempt_directory
from tests.hpsearch.support.buckets import Memory, MemoryBucket
from tests.hpsearch.support.command_line import PATIENCE
from tests.hpsearch.support.scripted import ScriptedBackend, done, saved, sweep_of

STORAGE = "s3://bucket/studies"
URL = f"{STORAGE}/study"


class Notes(Display):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def wait(self, reason: str) -> None:
        self.notes.append(reason)


class SavingBackend(ScriptedBackend):
    """Writes checkpoints, and reads those that segments start from.

    Args:
        study: The study's directory.
        between: Called with each task, before its last checkpoint is written.
    """

    def __init__(self, study: Path, between: Callable[[Task], object] = lambda task: None) -> None:
        super().__init__(self._save, workers=2)
        self.study = study
        self.between = between
        self.from_zero: list[Task] = []

    def _save(self, task: Task) -> Sequence[Message]:
        segment = task.segment
        if segment.checkpoint is None:
            self.from_zero.append(task)
        else:
            assert read_state(self.study / segment.checkpoint) == {"of": [segment.trial, segment.start]}
        messages: list[Message] = []
        counted = None
        if segment.end is not None and segment.end - segment.start > 2:
            counted = segment.start + 1
            self._write(task, counted)
            messages.append(saved(task, counted))
        self.between(task)
        result = done(task, counted=counted)
        self._write(task, result.iteration)
        return [*messages, result]

    def _write(self, task: Task, iteration: int) -> None:
        directory = self.study / attempt_directory(task.segment)
        write(directory, iteration, {"of": [task.segment.trial, iteration]}, {})


def lose_at_6(task: Task) -> None:
    if task.trial.number == 6:
        raise KeyError("lost")


def csv(study: Study) -> str:
    return rows_to_csv(study.trials, ["x"])


def run(study: Path, backend: SavingBackend | None = None, sweep: Sweep | None = None) -> tuple[Study, list[str]]:
    """Run a study, made if there is none; return it, and what was noted."""
    place, display = StudyDirectory(study), Notes()
    if not place.exists():
        create_study(sweep or sweep_of(storage=STORAGE), study)
    backend = backend or SavingBackend(study)
    settings = RunSettings("package.module:function", lambda _: backend, display, tensorboard=False)
    return run_study(place, None, settings), display.notes


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Memory:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(mirror_module, "_INTERVAL", 0.0005)
    memory = Memory()
    memory.install(monkeypatch)
    return memory


@pytest.fixture
def expected(tmp_path: Path) -> str:
    return csv(run(tmp_path / "whole", sweep=sweep_of())[0])


def events_in(memory: Memory) -> int:
    """The number of events in the bucket."""
    bucket = MemoryBucket(URL, memory)
    names = list(bucket.names(FOLDER))
    return Batch.decode(names[-1], bucket.read(names[-1]) or b"").end[0] if names else 0


def until_mirrored(memory: Memory, study: Path, lacking: int = 0) -> None:
    """Wait until all but so many events of a study are in the bucket."""
    with Journal.read(StudyDirectory(study).journal) as journal:
        count = sum(1 for _ in journal.entries()) - lacking
    deadline = time.monotonic() + PATIENCE
    while events_in(memory) < count:
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


def history_in(memory: Memory) -> list[Entry]:
    """The events in the bucket, after a check of the chain."""
    rows = list(_download(URL).rows())
    return [Entry(row[1], decode(*row[2:5]), decode_followed(row[5])) for row in rows]


def check_needed(memory: Memory) -> None:
    """Check that the bucket has all checkpoints that its events need, from the process whose event names them."""
    bucket, history = MemoryBucket(URL, memory), history_in(memory)
    state = SweepState(sweep_of(storage=STORAGE))
    list(state.resume(history))
    named = {
        event.checkpoint: seq
        for seq, event in enumerate((entry.event for entry in history), 1)
        if isinstance(event, Saved | Finished)
    }
    names = list(bucket.names(FOLDER))
    for address in state.checkpoints():
        batch = batch_with(named[address], names)
        driver = Batch.decode(batch, bucket.read(batch) or b"").driver
        assert f"{URL}/checkpoints/{path_of(address)}/{driver}.tar" in memory.objects


def states_of(memory: Memory, study: Path) -> list[dict[str, bytes]]:
    """Run a study, often waiting for the bucket; return what that held after each write."""
    states, problems = list[dict[str, bytes]](), list[BaseException]()

    def look() -> None:
        states.append(dict(memory.objects))
        try:
            check_needed(memory)
        except BaseException as error:
            problems.append(error)

    create_study(sweep_of(storage=STORAGE), study)
    memory.written = look
    waiting = SavingBackend(study, lambda task: until_mirrored(memory, study) if task.trial.number % 3 else None)
    run(study, waiting)
    memory.written = lambda: None
    if problems:
        raise problems[0]
    return states


def test_the_bucket_always_holds_a_prefix_with_its_checkpoints_and_any_is_resumed_to_the_same_table(
    memory, expected, tmp_path, monkeypatch
):
    states = states_of(memory, tmp_path / "study")
    assert events_in(memory) > 20
    assert len(states) > 40
    check_each(states[:: len(states) // 4], expected, tmp_path, monkeypatch)


@pytest.mark.exhaustive
def test_the_bucket_as_it_is_after_any_write_is_resumed_to_the_same_table(memory, expected, tmp_path, monkeypatch):
    check_each(states_of(memory, tmp_path / "study"), expected, tmp_path, monkeypatch)


def check_each(states: Sequence[dict[str, bytes]], expected: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Resume what each state of the bucket holds in a directory of its own, as another machine does."""
    for number, objects in enumerate(states):
        left = Memory(objects)
        left.install(monkeypatch)
        finished = {(e.event.trial, e.event.iteration) for e in history_in(left) if isinstance(e.event, Finished)}
        study = directory_to_resume(URL, tmp_path / f"resumed-{number}", print)
        backend = SavingBackend(study)
        assert csv(run(study, backend)[0]) == expected
        assert not {(task.segment.trial, task.segment.end) for task in backend.tasks} & finished
        assert all(task.segment.start == 0 for task in backend.from_zero)
        check_needed(left)


def test_only_kept_checkpoints_are_left_at_the_end_also_of_processes_that_were_lost(memory, tmp_path):
    study = tmp_path / "study"
    with pytest.raises(KeyError):
        run(study, SavingBackend(study, lose_at_6))
    memory.objects[f"{URL}/checkpoints/trials/00001/7/hpsearch-checkpoint-9/0123.tar"] = b"of a lost process"
    run(study)
    left = MemoryBucket(URL, memory).names("checkpoints/")
    assert {name.rpartition("/")[0].removeprefix("checkpoints/") for name in left} == load(study).needed_checkpoints
    assert len(left) == 1


def test_the_first_of_two_processes_ends_once_the_second_has_begun(memory, expected, tmp_path):
    study, other = tmp_path / "study", tmp_path / "other"
    seen: list[int] = []

    def take_over(task: Task) -> None:
        if len(first.tasks) == 8:
            until_mirrored(memory, study)
            seen.append(events_in(memory))
            directory_to_resume(URL, other, print)
            assert csv(run(other)[0]) == expected

    first = SavingBackend(study, take_over)
    with pytest.raises(StudyInUseError, match=r"another process \(.*\) has continued this study .*resume s3://"):
        run(study, first)
    assert first.closed == [True]
    assert len(history_in(memory)) == len(history := list_of(other)) > seen[0]
    assert history_in(memory) == history
    with pytest.raises(StudyInUseError, match=f"Events after {seen[0]} in {study} aren't in the bucket"):
        run(study)
    check_needed(memory)


def list_of(study: Path) -> list[Entry]:
    with Journal.read(StudyDirectory(study).journal) as journal:
        return list(journal.entries())


def test_a_store_that_fails_often_and_loses_answers_gets_everything(memory, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(mirror_module, "_LONGEST_PAUSE", 0.001)
    monkeypatch.setattr(mirror_module, "END_SECONDS", 600.0)
    study, count = tmp_path / "study", [0]
    create_study(sweep_of(storage=STORAGE), study)
    bucket_write = MemoryBucket._write

    def fail(bucket: MemoryBucket, name: str, content: bytes | None, new: bool = False) -> bool:
        count[0] += 1
        if count[0] % 3 == 0:
            raise StorageError("s3: SlowDown")
        answer = bucket_write(bucket, name, content, new)
        if count[0] % 5 == 0:
            raise StorageError("s3: the answer was lost")
        return answer

    def begin_to_fail(task: Task) -> None:
        monkeypatch.setattr(MemoryBucket, "_write", fail)

    ended, notes = run(study, SavingBackend(study, begin_to_fail))
    assert csv(ended) == expected
    assert history_in(memory) == list_of(study)
    check_needed(memory)
    assert any("not copied now, and tried again: hpsearch.errors.StorageError: s3" in note for note in notes)
    assert any(note.endswith("answers again") for note in notes)


def test_the_sweep_ends_while_the_store_hangs_and_the_end_says_what_is_not_there(
    memory, expected, tmp_path, monkeypatch
):
    monkeypatch.setattr(mirror_module, "END_SECONDS", 0.1)
    study, hangs = tmp_path / "study", [True]
    create_study(sweep_of(storage=STORAGE), study)

    def hang(name: str) -> None:
        while hangs and name.startswith(FOLDER):
            time.sleep(0.01)

    memory.before = hang
    ended, notes = run(study)
    assert (csv(ended), ended.state) == (expected, "finished")
    assert f"events 1 to {len(list_of(study))} aren't in the bucket" in notes[-1]
    assert "copying the last events" in notes[-2]
    hangs.clear()
    _, notes = run(study)  # finished, and copied now
    assert history_in(memory) == list_of(study)
    check_needed(memory)
    assert "aren't" not in notes[-1]


def test_a_finished_study_is_downloaded_with_its_best_checkpoint(memory, expected, tmp_path):
    run(tmp_path / "study")
    study = directory_to_resume(URL, tmp_path / "again", print)
    backend = SavingBackend(study)
    ended, notes = run(study, backend)
    assert csv(ended) == expected
    assert backend.tasks == []
    assert notes[-1] == f"fetching checkpoints from {URL}: 1"
    assert ended.checkpoint_path(ended.ranked[0]) is not None


def test_a_store_without_conditional_writes_holds_checkpoints_alone_and_says_so(
    memory, expected, tmp_path, monkeypatch
):
    def overwrite(bucket: MemoryBucket, name: str, content: bytes) -> bool:
        return bucket._write(name, content)

    monkeypatch.setattr(MemoryBucket, "create", overwrite)
    monkeypatch.setattr(mirror_module, "_LONGEST_PAUSE", 0.001)
    study, failed = tmp_path / "study", set[str]()

    def fail_once(name: str) -> None:
        if name not in failed and name.startswith("checkpoints"):
            failed.add(name)
            raise StorageError("s3: SlowDown")

    memory.before = fail_once
    stop = SavingBackend(study, lose_at_6)
    with pytest.raises(KeyError):
        run(study, stop)
    with Journal.read(StudyDirectory(study).journal) as journal:
        url = journal.study()["storage"]
    assert url.startswith(f"{URL}-")
    kept = load(study).needed_checkpoints
    assert {name.partition("/")[0] for name in MemoryBucket(url, memory).names()} == {"checkpoints"}
    for address in kept:
        StudyDirectory(study).discard([address])
    backend = SavingBackend(study)
    ended, notes = run(study, backend)
    assert csv(ended) == expected
    assert any("ignores conditional writes, so it holds checkpoints only" in note for note in notes)
    assert f"fetching checkpoints from {url}: {len(kept)}" in notes
    assert not kept & {task.segment.checkpoint for task in backend.from_zero}
    assert len(MemoryBucket(url, memory).names()) == 1


def test_a_name_that_the_bucket_has_is_not_taken_again(memory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = sweep_of(storage=STORAGE)
    memory.objects[f"{STORAGE}/s-1/study.json"] = b"another machine's"
    assert create_study(sweep, None).path.name == "s-2"
    assert create_study(sweep, None).path.name == "s-3"
    with pytest.raises(JournalError, match=r"s3://bucket/studies/s-1: expected no study in the bucket.*--dir"):
        create_study(sweep, Path("elsewhere/s-1"))
    Path("elsewhere").mkdir()
    Path("elsewhere/s-9").write_text("a file")
    with pytest.raises(JournalError, match="something else is there"):
        create_study(sweep, Path("elsewhere/s-9"))
    assert f"{STORAGE}/s-9/study.json" not in memory.objects


def test_a_directory_with_another_study_is_not_resumed_from_a_bucket(tmp_path):
    run(tmp_path / "study")
    run(tmp_path / "other", sweep=sweep_of())
    with pytest.raises(JournalError, match=f"whose storage is {URL}, but another one is here.*--dir"):
        directory_to_resume(URL, tmp_path / "other", print)
    assert directory_to_resume(URL, tmp_path / "study", print) == tmp_path / "study"


def test_studies_of_ask_and_tell_have_no_storage(tmp_path):
    with pytest.raises(SweepError, match="storage: must not be given with ask and tell"):
        AskTell(sweep_of(storage=STORAGE), directory=tmp_path / "study")
