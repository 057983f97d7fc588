from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.errors import JournalError, StorageError, StudyInUseError
from hpsearch.journal.directory import StudyDirectory, hold_as_worker, next_directory
from hpsearch.journal.journal import Journal
from hpsearch.trainable import checkpoints, random_state
from hpsearch.trainable.addresses import in_pack, pack_of

STUDY = {"sweep": {"name": "s"}}


@pytest.fixture
def place(tmp_path: Path) -> StudyDirectory:
    place = StudyDirectory(tmp_path / "study")
    place.create(STUDY, None)
    return place


def names(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}


def test_it_appears_whole(tmp_path):
    place = StudyDirectory(tmp_path / "runs" / "s-1")
    assert not place.exists()
    place.create(STUDY, "name: s\n")
    assert place.exists()
    assert names(place.path) == {"study.db", "sweep.yaml", "trials", "run.lock", "workers.lock"}
    assert names(tmp_path / "runs") == {"s-1"}
    assert (place.path / "sweep.yaml").read_text() == "name: s\n"
    with Journal.read(place.journal) as journal:
        assert journal.study() == STUDY


CREATE = """
import os, signal, sys
from pathlib import Path
from hpsearch.journal.directory import StudyDirectory

place, calls = StudyDirectory(Path(sys.argv[1])), int(sys.argv[2])
def kill_itself(event, arguments):
    global calls
    if event in ("open", "os.mkdir", "os.rename", "sqlite3.connect") and ".hpsearch-" in str(arguments):
        calls -= 1
        if calls == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(kill_itself)
place.create({"sweep": {}}, "name: s")
"""


@pytest.mark.parametrize(
    "calls", [pytest.param(calls, marks=[] if calls % 2 else pytest.mark.exhaustive) for calls in range(1, 8)]
)
def test_killed_at_any_step_of_its_making_nothing_half_made_is_visible(tmp_path, calls):
    done = subprocess.run([sys.executable, "-c", CREATE, str(tmp_path / "study"), str(calls)], check=False)
    assert done.returncode == -signal.SIGKILL
    place = StudyDirectory(tmp_path / "study")
    assert not place.path.exists()
    assert all(name.startswith(".") for name in names(tmp_path))
    place.create(STUDY, None)
    assert place.exists()
    assert all(name == "study" or name.startswith(".") for name in names(tmp_path))


def test_a_name_as_long_as_the_file_system_takes_is_taken(tmp_path):
    place = StudyDirectory(tmp_path / ("x" * os.pathconf(tmp_path, "PC_NAME_MAX")))
    place.create(STUDY, None)
    assert place.exists()


def test_an_empty_directory_may_be_there_already(tmp_path):
    (tmp_path / "study").mkdir()
    place = StudyDirectory(tmp_path / "study")
    place.create(STUDY, None)
    assert place.exists()


def _a_file(path: Path) -> Path:
    path.write_text("mine")
    return path


def _a_full_directory(path: Path) -> Path:
    path.mkdir()
    return _a_file(path / "mine").parent


def _a_study(path: Path) -> Path:
    StudyDirectory(path).create(STUDY, None)
    return path


def _below_a_file(path: Path) -> Path:
    return _a_file(path) / "study"


def _a_name_that_is_too_long(path: Path) -> Path:
    return path / ("x" * 300)


def _a_parent_whose_name_is_too_long(path: Path) -> Path:
    return path / ("x" * 300) / "study"


def _a_name_with_a_zero(path: Path) -> Path:
    return path.with_name("a\0b")


@pytest.mark.parametrize(
    "make",
    [
        _a_file,
        _a_full_directory,
        _a_study,
        _below_a_file,
        _a_name_that_is_too_long,
        _a_parent_whose_name_is_too_long,
        _a_name_with_a_zero,
    ],
)
def test_a_place_that_is_taken_or_impossible_is_refused_and_left_as_it_is(tmp_path, make):
    path = make(tmp_path / "taken")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(JournalError, match="Name another directory with --dir"):
        StudyDirectory(path).create(STUDY, None)
    assert [entry for entry in sorted(tmp_path.rglob("*")) if entry not in before] in ([], [tmp_path / "taken"])
    assert not list(tmp_path.rglob("*.new"))


def test_of_two_that_create_the_same_one_wins(tmp_path):
    place = StudyDirectory(tmp_path / "study")
    outcomes: list[str] = []
    start = threading.Barrier(8)

    def create() -> None:
        start.wait()
        try:
            place.create(STUDY, None)
            outcomes.append("made")
        except JournalError as error:
            outcomes.append("told" if "another process has made one here meanwhile" in str(error) else str(error))

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["made"] + ["told"] * 7
    assert names(tmp_path) == {"study"}


HOLD = """
import sys
from pathlib import Path
from hpsearch.journal.directory import StudyDirectory, hold_as_worker

place = StudyDirectory(Path(sys.argv[1]))
if sys.argv[2] == "worker":
    held = hold_as_worker(place.path)
    print("held", flush=True)
    sys.stdin.readline()
else:
    with place.running("me@there:42"):
        print("held", flush=True)
        sys.stdin.readline()
"""


@contextmanager
def holding(place: StudyDirectory, what: str = "driver") -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(place.path), what], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_study_that_a_live_process_runs_is_refused_and_the_process_named(place):
    assert place.holder() is None
    with holding(place) as process:
        assert place.holder() == "me@there:42"
        with (
            pytest.raises(StudyInUseError, match=r"me@there:42 runs this study now.*hpsearch stop"),
            place.running("x"),
        ):
            pass
        assert place.holder() == "me@there:42"
        process.kill()
        process.wait()
        assert place.holder() is None
        with place.running("you@here:1"):
            assert place.holder() == "you@here:1"
    assert place.holder() is None


FORK = """
import os, sys, time
from pathlib import Path
from hpsearch.journal.directory import StudyDirectory

with StudyDirectory(Path(sys.argv[1])).running("me@there:42"):
    if os.fork() == 0:
        print(os.getpid(), flush=True)  # by the child: once it runs, it has let go of what it took over
        time.sleep(1000)
    sys.stdin.readline()
"""


def test_children_that_a_killed_process_leaves_behind_dont_hold_the_study(place):
    parent = subprocess.Popen(
        [sys.executable, "-c", FORK, str(place.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert place.holder() == "me@there:42"  # the child didn't take the lock away either
        parent.kill()
        parent.wait()
        assert place.holder() is None
    finally:
        os.kill(child, signal.SIGKILL)
        parent.communicate()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("call", ["open", "flock", "pwrite"])
def test_what_cant_be_locked_says_why(place, monkeypatch, number, call):
    module = "fcntl" if call == "flock" else "os"

    def fails(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(f"{module}.{call}", fails)
        expected = f"can be written and locked, got: {os.strerror(number)}"
        with pytest.raises(StorageError, match=expected), place.running("me"):
            pass
        if call != "pwrite":
            with pytest.raises(StorageError, match=os.strerror(number)):
                place.outwait_workers(0.0, pytest.fail)
    with place.running("me"):
        assert place.holder() == "me"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_who_may_not_look_who_runs_a_study_is_told_so(place, monkeypatch, number):
    """And not that nobody does."""

    def fails(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.open", fails)
    with pytest.raises(JournalError, match=f"whether the study runs now, got: {os.strerror(number)}"):
        place.holder()


def test_it_is_let_go_in_good_order_too(place):
    with holding(place) as process:
        process.communicate(b"\n")
        assert process.returncode == 0
        assert place.holder() is None
    with pytest.raises(ZeroDivisionError), place.running("a" * 50):
        raise ZeroDivisionError
    with place.running("short"):
        assert place.holder() == "short"


def test_those_who_look_dont_keep_the_runner_out(place):
    """`status` in a loop takes the lock for instants."""
    looking = threading.Event()
    thread = threading.Thread(target=lambda: [place.holder() for _ in iter(looking.is_set, True)])
    thread.start()
    try:
        for _ in range(20):
            with place.running("me"):
                pass
    finally:
        looking.set()
        thread.join()


def test_nothing_here_is_no_study(tmp_path):
    place = StudyDirectory(tmp_path)
    assert place.holder() is None
    with pytest.raises(JournalError, match="expected a study's directory"), place.running("me"):
        pass
    assert names(tmp_path) == set()


def test_lock_files_that_a_copy_left_out_are_made_anew(place):
    (place.path / "run.lock").unlink()
    (place.path / "workers.lock").unlink()
    with place.running("me"):
        assert place.holder() == "me"
        place.outwait_workers(0.0, pytest.fail)
        worker = hold_as_worker(place.path)
        assert worker is not None
        worker.close()


def test_a_study_that_may_only_be_read_can_be_looked_at(place):
    for name in ("run.lock", "workers.lock"):
        (place.path / name).chmod(0o444)
    place.path.chmod(0o555)
    try:
        assert place.holder() is None
        worker = hold_as_worker(place.path)
        assert worker is not None
        worker.close()
    finally:
        place.path.chmod(0o755)


def test_workers_of_a_former_run_are_outwaited(place):
    said: list[str] = []
    place.outwait_workers(0.0, said.append)
    assert said == []
    with holding(place, "worker") as worker:
        with pytest.raises(StudyInUseError, match=r"workers of a former run are still alive after 0 s.*fuser"):
            place.outwait_workers(0.0, said.append)
        assert said == ["waiting for the workers of the former run to end"]
        # it ends while we wait: told to when the waiting is announced
        place.outwait_workers(60.0, lambda text: worker.kill())
    place.outwait_workers(0.0, pytest.fail)


def test_workers_share_their_lock_and_leave_the_runners_alone(place):
    one, other = hold_as_worker(place.path), hold_as_worker(place.path)
    assert one is not None
    assert other is not None
    with place.running("me"):
        pass
    one.close()
    with pytest.raises(StudyInUseError):
        place.outwait_workers(0.0, lambda text: None)
    other.close()
    place.outwait_workers(0.0, pytest.fail)


def test_a_worker_that_doesnt_see_the_study_holds_nothing(tmp_path):
    assert hold_as_worker(tmp_path / "elsewhere") is None


def test_only_checkpoints_that_the_journal_doesnt_name_are_removed(place):
    kept = "trials/00000/1/hpsearch-checkpoint-3"
    removed = [
        "trials/00000/2/hpsearch-checkpoint-3",
        "trials/00001/1/.hpsearch-checkpoint-9.part",
        "trials/00001/1/hpsearch-checkpoint-12",
    ]
    users = [
        "trials/00000/1/my-checkpoint-3",
        "trials/00000/1/checkpoint-best",
        "trials/00000/1/deep/hpsearch-checkpoint-1",
        "trials/00000/1/hpsearch-checkpoint-3.bak",
    ]
    for name in [kept, *removed, *users]:
        (place.path / name).mkdir(parents=True)
        (place.path / name / "state.pt").write_text("x")
    (place.path / "trials/00000/1/output.log").write_text("x")
    place.remove_unnamed({kept})
    left = {str(path.relative_to(place.path).parent) for path in place.path.rglob("state.pt")}
    assert left == {kept, *users}
    assert (place.path / "trials/00000/1/output.log").exists()


def test_only_packs_that_hold_what_isnt_elsewhere_stay(place):
    """The second one's checkpoint was written out, the third one was begun by a process that was killed."""
    packs = [f"trials/packs/{name}" for name in ("00000-1-3x2.zip", "00002-1-3x2.zip", ".00004-1-3x2.zip.part")]
    others = ["trials/packs/output.log", "trials/packs/mine.zip"]
    (place.path / "trials" / "packs").mkdir(parents=True)
    for name in [*packs, *others]:
        (place.path / name).write_text("x")
    written_out = "trials/00002/1/hpsearch-checkpoint-3"
    begun = "trials/00002/1/.hpsearch-checkpoint-3.0a1b2c3d.part"
    for name in (written_out, begun):
        (place.path / name).mkdir(parents=True)
    place.remove_unnamed({in_pack(packs[0], "trials/00001/1/hpsearch-checkpoint-3"), in_pack(packs[1], written_out)})
    left = {str(path.relative_to(place.path)) for path in place.path.glob("trials/*/*")}
    assert left == {packs[0], *others, "trials/00002/1"}
    assert [path.name for path in (place.path / "trials/00002/1").iterdir()] == ["hpsearch-checkpoint-3"]


PLACES = [f"trials/{trial:05d}/1/hpsearch-checkpoint-3" for trial in range(7)]


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    needed=st.sets(st.sampled_from(PLACES)),
    written_out=st.sets(st.sampled_from(PLACES)),
)
def test_what_is_needed_can_be_read_after_it_and_nothing_else_is_there(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], needed: set[str], written_out: set[str]
) -> None:
    """Whatever of the checkpoints in packs, and at their places, is needed, and was written out before."""
    study = StudyDirectory(tmp_path_factory.mktemp("study"))
    addresses: dict[str, str] = {}
    rest = list(PLACES)
    for size in sizes:
        together, rest = rest[:size], rest[size:]
        parts = {of: checkpoints.parts_of({"of": of}, random_state.capture()) for of in together}
        addresses.update(checkpoints.write_together(study.path, parts) if together else {})
    for of in rest:
        checkpoints.write((study.path / of).parent, 3, {"of": of}, random_state.capture())
        addresses[of] = of
    for of in written_out:
        checkpoints.extract(study.path / addresses[of])
    wanted = {addresses[of] for of in needed}
    for _ in range(2):  # there is nothing more to do the second time
        study.remove_unnamed(wanted)
        assert {checkpoints.read_state(study.path / address)["of"] for address in wanted} == needed
        at_their_places = {str(path.relative_to(study.path)) for path in study.checkpoints()}
        assert at_their_places == needed & (written_out | set(rest))
        packs = {str(path.relative_to(study.path)) for path in study.packs()}
        assert packs == {pack_of(addresses[of]) for of in needed - at_their_places}


def test_next_directory_gives_a_name_that_is_too_long_to_be_there(tmp_path):
    assert next_directory("x" * 300, tmp_path).name == f"{'x' * 300}-1"


def test_next_directory_counts_up_past_whatever_is_there(tmp_path):
    assert next_directory("s", tmp_path / "runs") == tmp_path / "runs" / "s-1"
    (tmp_path / "s-1").mkdir()
    (tmp_path / "s-2").write_text("")
    (tmp_path / "s-3").symlink_to(tmp_path / "nowhere")
    assert next_directory("s", tmp_path).name == "s-4"


def test_a_path_that_isnt_utf_8_is_refused_by_its_name(tmp_path):
    strange = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    for path in (Path(strange), Path(strange, "study")):
        with pytest.raises(JournalError, match=r"/\\xff(/study)?: expected a path that is text in UTF-8"):
            StudyDirectory(path)
    assert list(tmp_path.iterdir()) == []
    StudyDirectory(tmp_path / "größe")
