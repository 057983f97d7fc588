"""Studies that lie where nothing can be written, in whatever state a process left them, and those on a full disk."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from hpsearch.cli import main
from hpsearch.events import Event, Exhausted, Lost
from hpsearch.journal.journal import Journal
from tests.hpsearch.support.command_line import environment, write_sweep
from tests.hpsearch.support.lane_sweeps import packed_study

COMMANDS = """
import contextlib, io, json, sys, traceback
from hpsearch.cli import main

answers = []
for words in json.loads(sys.argv[1]):
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
        except BaseException:
            code = traceback.format_exc()
    answers.append([code, *(stream.buffer.getvalue().decode() for stream in (out, err))])
print(json.dumps(answers))
"""


def mounted(mount: str, program: str, argument: str) -> str:
    """Run a program of Python after mounting something that nobody else sees; return what it printed."""
    script = f'{mount} || exit 77; exec "$0" -c "$1" "$2"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, sys.executable, program, argument],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def answers(mount: str, *commands: list[str]) -> list[tuple[object, str, str]]:
    """Return (exit code or traceback, output, errors) of commands of `hpsearch`."""
    return [tuple(answer) for answer in json.loads(mounted(mount, COMMANDS, json.dumps(commands)).splitlines()[-1])]


def read_only(place: Path) -> str:
    """Mount a directory over itself so that nothing can be written there."""
    quoted = shlex.quote(str(place))
    return f"mount --bind {quoted} {quoted} && mount -o remount,ro,bind {quoted}"


WRITTEN: list[Event] = [Exhausted(), Lost(0, 1, "x" * 3000)]

WRITE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from hpsearch.events import Exhausted, Lost
from hpsearch.journal.journal import Journal

journal = Journal.open(Path(sys.argv[1]))
journal.append([Exhausted()])
journal.append([Lost(0, 1, "x" * 3000)])
os.kill(os.getpid(), signal.SIGKILL)
"""


def in_good_order(path: Path) -> None:
    with Journal.open(path) as journal:
        journal.append(WRITTEN)


def killed(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WRITE_AND_DIE, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.with_name("study.db-wal").stat().st_size > 0


def killed_and_copied_without_the_index(path: Path) -> None:
    killed(path)
    path.with_name("study.db-shm").unlink()


def killed_and_the_log_was_emptied(path: Path) -> None:
    """In WAL mode by its header, with nothing beside it."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    with Journal.open(path) as journal:
        journal.append(WRITTEN)
        journal._writes = False
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["study.db"]


def killed_within_a_transaction_without_wal(path: Path) -> None:
    in_good_order(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA cache_size=1")
    connection.execute("BEGIN IMMEDIATE")
    for number in range(3, 100):
        row = (number, 1.0, "lost", 1, "x" * 3000, "", 0)
        connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    left = path.with_name("left")
    left.mkdir()
    for name in ("study.db", "study.db-journal"):
        shutil.copyfile(path.with_name(name), left / name)
    connection.close()
    for file in left.iterdir():
        file.replace(path.with_name(file.name))
    left.rmdir()
    assert path.with_name("study.db-journal").stat().st_size > 0


READ = """
import sys
from pathlib import Path
from hpsearch.errors import JournalError
from hpsearch.journal.journal import Journal

try:
    Path(sys.argv[1]).with_name("probe").touch()
except OSError:
    pass
else:
    sys.exit("it can be written")
with Journal.read(Path(sys.argv[1])) as journal:
    journal.study()
    print([repr(entry.event) for entry in journal.entries()])
    try:
        journal.request("stop")
    except JournalError as error:
        print(error)
"""


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    "leave",
    [
        in_good_order,
        killed,
        killed_and_copied_without_the_index,
        killed_and_the_log_was_emptied,
        killed_within_a_transaction_without_wal,
    ],
)
def test_a_journal_that_cant_be_written_is_read_to_its_last_event(tmp_path, leave):
    path = tmp_path / "a %41 #1?x=2" / "study.db"
    path.parent.mkdir()
    Journal.create(path, {"sweep": {}})
    leave(path)
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    events, refused = mounted(read_only(path.parent), READ, str(path)).splitlines()
    assert events == str([repr(event) for event in WRITTEN])
    assert "the journal can't be used now, SQLite says: attempt to write a readonly database" in refused
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


@pytest.fixture(params=[pytest.param("finished", marks=pytest.mark.exhaustive), "killed"])
def study(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A study without event files, in a directory whose name would be something else in a URI, or in a shell."""
    study = tmp_path / "50% of #1? it's \n"
    sweep = write_sweep(tmp_path / "sweep.yaml")
    assert main(["run", str(sweep), "--backend", "inline", "--no-tensorboard", "--dir", str(study)]) == 0
    if request.param == "killed":
        cut_short(study / "study.db", 7)
    return study


@pytest.mark.exhaustive
def test_of_a_study_that_cant_be_written_all_is_shown_and_the_rest_is_one_error(study, tmp_path, capsys):
    looks = [["status"], ["trials"], ["trials", "--segments"], ["best"], ["export", "--to", str(tmp_path / "export")]]
    looks = [[word, str(study), *more] for word, *more in looks]
    expected = []
    for words in looks:
        capsys.readouterr()
        assert main(words) == 0
        expected.append((0, capsys.readouterr().out, ""))
    refused = [
        ["export"],
        ["resume", "--backend", "inline"],
        ["resume", "--set", "run_cap=5"],
        ["stop"],
    ]
    refused = [[word, str(study), *more] for word, *more in refused]
    told = answers(read_only(study), *looks, *refused)
    assert told[: len(looks)] == expected
    finished = "finished" in expected[0][1]
    for (code, _, err), words in zip(told[len(looks) :], refused, strict=True):
        assert code == 1, words
        assert err.startswith("hpsearch: ")
        assert err.count("hpsearch: ") == 1
        assert ("no process runs this study" if words[0] == "stop" else "Read-only file system") in err, finished


def test_a_checkpoint_that_cant_be_written_out_of_its_pack_is_shown_where_it_lies(tmp_path, monkeypatch):
    study = packed_study(tmp_path / "study", monkeypatch)
    row = study.trials[study.best_trial.number]
    shutil.rmtree(study.directory / str(row.checkpoint))  # the look at the best one has written it out
    trial, saved = str(row.number), str(tmp_path / "saved")
    looks = [["best"], ["status", "--json"], ["trial", trial], ["trials"], ["best", "--save", saved]]
    *shown, trials, refused = answers(read_only(study.directory), *([w, str(study.directory), *m] for w, *m in looks))
    path = f"{study.directory}/{row.address}/state.pt"
    for code, out, err in shown:
        assert (code, path in out, err) == (0, True, "")
    assert trials[0] == 0
    assert (refused[0], refused[1]) == (1, "")
    assert f"must be written out of the file in which it lies with others, {path}, but" in refused[2]
    assert not Path(saved).exists()
    assert {path: path.read_text() for path in study.directory.glob("trials/*/*/*")} == {}


FULL = """
import contextlib, io, json, os, sys, traceback
from pathlib import Path
from hpsearch.cli import main

study = Path(sys.argv[1])
fill = study / "fill"

def leave(pages):
    with fill.open("ab", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        size = file.seek(0, 2)
        file.truncate(max(0, size // 4096 - pages) * 4096)

answers = []
for pages in [0, 1, 2, 3, 5, 8, 9, 10, 12, 16, None]:
    if pages is None:
        fill.unlink()
    else:
        leave(pages)
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(["resume", str(study), "--backend", "inline", "--no-tensorboard"])
        except BaseException:
            code = traceback.format_exc()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["trials", str(study), "--format", "csv"]) == 0
    answers.append([code, err.buffer.getvalue().decode(), out.getvalue()])
print(json.dumps(answers))
"""


@pytest.mark.exhaustive
def test_on_a_full_disk_resuming_is_one_error_and_loses_nothing(tmp_path, capsys):
    study, whole = tmp_path / "study", tmp_path / "whole"
    sweep = write_sweep(tmp_path / "sweep.yaml", run_cap=20)
    assert main(["run", str(sweep), "--backend", "inline", "--no-tensorboard", "--dir", str(whole)]) == 0
    capsys.readouterr()
    assert main(["trials", str(whole), "--format", "csv"]) == 0
    expected = capsys.readouterr().out
    shutil.copytree(whole, study)
    shutil.rmtree(study / "trials")
    (study / "trials").mkdir()
    cut_short(study / "study.db", 3)
    place = tmp_path / "disk"
    place.mkdir()
    mount = f"mount -t tmpfs -o size=1m none {place} && cp -a {study}/. {place}"
    told = json.loads(mounted(mount, FULL, str(place)).splitlines()[-1])
    *full, last = told
    assert full[0][0] == 1
    for code, err, _ in full:
        assert code in (0, 1)
        assert (code == 1) == err.startswith("hpsearch: ")
        assert "Traceback" not in err
    assert last == [0, "", expected]


def cut_short(path: Path, events: int) -> None:
    """Leave the first events, as a killed process would."""
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM events WHERE seq > ?", (events,))
    connection.commit()
    connection.close()
