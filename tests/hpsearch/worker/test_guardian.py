from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpsearch.worker.guardian import MARK, kill_marked, start_guardian
from tests.hpsearch.support.segments import is_alive, wait_until

WORKER = """
import os, subprocess, sys, time
from pathlib import Path
from hpsearch.worker.guardian import MARK, start_guardian

start_guardian(Path(sys.argv[1]))
children = [os.getpid()]
children.append(subprocess.Popen(["sh", "-c", "sleep 300; true"]).pid)
# A grandchild in a session of its own, whose parent is gone.
daemon = subprocess.Popen([sys.executable, "-c",
    "import os, time\\n"
    "if os.fork(): os._exit(0)\\n"
    "os.setsid(); os.execvp('sh', ['sh', '-c', 'echo $$; exec sleep 300 >/dev/null 2>&1'])"],
    stdout=subprocess.PIPE)
daemon.wait()
children.append(int(daemon.stdout.readline()))
forked = os.fork()
if forked == 0:
    time.sleep(300)
    os._exit(0)
children.append(forked)
print(*children, flush=True)
time.sleep(300)
"""


def test_a_killed_workers_children_die_wherever_they_went(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(scratch)], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    pids = [int(word) for word in worker.stdout.readline().split()]
    assert len(pids) == 4
    assert all(is_alive(pid) for pid in pids)
    worker.kill()
    worker.communicate()
    wait_until(lambda: not any(is_alive(pid) for pid in pids))
    wait_until(lambda: not scratch.exists())


def test_a_worker_that_ends_by_itself_takes_its_children_along() -> None:
    script = (
        "import subprocess; from hpsearch.worker.guardian import start_guardian; start_guardian()\n"
        "print(subprocess.Popen(['sleep', '300'], stdout=subprocess.DEVNULL).pid)"
    )
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", script], stdout=subprocess.PIPE, check=True)
    wait_until(lambda: not is_alive(int(ran.stdout)))


@pytest.mark.parametrize(
    ("words", "end", "said"),
    [
        (["first", "last"], "os.abort()", "last\n"),
        (["first", ""], "os.abort()", ""),
        ([], "os.abort()", ""),
        (["first"], "guardian.stop(); os.abort()", ""),
    ],
)
def test_it_writes_the_last_words_of_a_process_that_ends_below_python(words: list[str], end: str, said: str) -> None:
    script = (
        "import os; from hpsearch.worker.guardian import start_guardian; guardian = start_guardian(own_group=False)\n"
        f"for text in {words}: guardian.leave_message(text)\n"
        "if os.fork() == 0: os.execvp('sleep', ['sleep', '0'])\n"
        f"os.wait(); {end}"
    )
    ran = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (-signal.SIGABRT, said)


def test_a_guardian_that_is_sent_away_kills_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MARK, raising=False)
    guardian = start_guardian(own_group=False)
    assert MARK not in os.environ
    with subprocess.Popen(["sleep", "300"], env={**os.environ, MARK: guardian.mark}) as child:
        guardian.stop()
        assert not is_alive(guardian.pid)
        assert is_alive(child.pid)
        child.kill()
    guardian.stop()  # a second time changes nothing


def test_a_guardian_heeds_no_signal_but_kill() -> None:
    guardian = start_guardian(own_group=False)
    status = Path(f"/proc/{guardian.pid}/status")
    ignored = (1 << (signal.SIGINT - 1)) | (1 << (signal.SIGTERM - 1)) | (1 << (signal.SIGHUP - 1))

    def ignores() -> bool:
        line = next(line for line in status.read_text().splitlines() if line.startswith("SigIgn"))
        return int(line.split()[1], 16) & ignored == ignored

    wait_until(ignores)
    assert os.getpgid(guardian.pid) != os.getpgrp()
    guardian.stop()


def test_only_marked_processes_are_killed() -> None:
    with (
        subprocess.Popen(["sleep", "300"], env={**os.environ, "HPSEARCH_TEST": "mine"}) as mine,
        subprocess.Popen(["sleep", "300"], env={**os.environ, "HPSEARCH_TEST": "mine too"}) as other,
    ):
        # The mark is in the environment only once the child has become `sleep`.
        wait_until(lambda: b"HPSEARCH_TEST=mine\0" in Path(f"/proc/{mine.pid}/environ").read_bytes())
        kill_marked("HPSEARCH_TEST", "mine")
        assert mine.wait() == -signal.SIGKILL
        assert other.poll() is None
        other.kill()
