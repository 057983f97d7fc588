"""The launcher with real ranks on this host."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.comm.forming import wait_until
from tests.comm.launch.launching import all_are, launch, launching, script, state
from tests.rarely import rarely

SUM = """
    import sys
    import torch
    import hpsearch_comm as comm

    with comm.init() as group:
        total = group.allreduce(torch.full((3,), group.rank + 1.0), op="sum")
        if len(sys.argv) > 1 and group.rank == int(sys.argv[1]):
            raise ValueError("the batch is empty")
        group.barrier()
        print("sum", total.tolist(), "of", group.size, "local", group.local_rank, "hosts", len(group.hosts))
"""

WAITS = """
    import os, signal, subprocess, sys
    from pathlib import Path

    rank = os.environ["RANK"]
    # In a session of its own: it has left the rank's process group.
    daemon = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
    helper = subprocess.Popen(["sleep", "600"])
    Path(f"pid.{rank}.new").write_text(f"{os.getpid()} {daemon.pid} {helper.pid}\\n")
    Path(f"pid.{rank}.new").rename(f"pid.{rank}")
    while True:
        signal.pause()
"""

CATCHES = """
    import os, signal, sys
    from pathlib import Path

    rank = os.environ["RANK"]

    def leave(number, _frame):
        Path(f"heard.{rank}").write_text(f"{number}\\n")
        sys.exit(0)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, leave)
    Path(f"ready.{rank}").write_text("yes\\n")
    while True:
        signal.pause()
"""


def test_ranks_meet_and_each_line_begins_with_its_rank(tmp_path):
    code, out, err = launch(tmp_path, "-np", "2", script(tmp_path, SUM))
    assert code == 0, err
    lines = [f"[{rank}] sum [3.0, 3.0, 3.0] of 2 local {rank} hosts 1" for rank in range(2)]
    assert sorted(out.splitlines()) == lines
    assert err == ""


@pytest.mark.exhaustive
def test_the_rank_that_failed_first_is_named_last_with_its_traceback(tmp_path):
    code, _, err = launch(tmp_path, "-np", "2", script(tmp_path, SUM), "1")
    assert code == 1, err
    assert sum("PeerLost: " in line and "rank 1 has left" in line for line in err.splitlines()) == 1
    *_, said, traceback = err.partition("hpsearch_comm.launch: what rank 1 wrote:\n")
    assert said, err
    lines = traceback.splitlines()
    assert lines[0] == "[1] Traceback (most recent call last):"
    assert lines[-2:] == [
        "[1] ValueError: the batch is empty",
        "hpsearch_comm.launch: rank 1 on localhost ended with exit code 1",
    ]
    assert err.count("[1] ValueError: the batch is empty\n") == 2


@pytest.mark.exhaustive
def test_a_rank_that_is_killed_is_the_first_whatever_the_others_say(tmp_path):
    text = SUM.replace('raise ValueError("the batch is empty")', "import os; os.kill(os.getpid(), 9)")
    code, _, err = launch(tmp_path, "-np", "2", script(tmp_path, text), "0")
    assert code == 128 + signal.SIGKILL
    assert err.splitlines()[-1] == "hpsearch_comm.launch: rank 0 on localhost was killed by signal 9 (SIGKILL)"


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("program", "code"), [("true", 0), ("exit 7", 7), ("kill -USR1 $$", 128 + signal.SIGUSR1), ("exit 255", 255)]
)
def test_the_exit_code_is_that_of_the_rank_that_failed(tmp_path, program, code):
    assert launch(tmp_path, "-np", "2", "sh", "-c", f'if [ "$RANK" = 1 ]; then {program}; fi')[0] == code


@pytest.mark.exhaustive
@pytest.mark.slow
def test_others_are_ended_by_sigterm_and_those_that_ignore_it_by_force(tmp_path):
    """One ends when it is told, one doesn't; the exit code stays that of the first."""
    text = """
        import os, signal, sys, time
        from pathlib import Path

        rank = int(os.environ["RANK"])
        if rank == 0:
            while not all(Path(f"ready.{other}").exists() for other in (1, 2)):
                time.sleep(0.01)
            sys.exit(3)
        leave = lambda *_: (print("told", flush=True), os._exit(9))
        signal.signal(signal.SIGTERM, signal.SIG_IGN if rank == 1 else leave)
        Path(f"ready.{rank}").touch()
        while True:
            signal.pause()
    """
    code, out, err = launch(tmp_path, "-np", "3", script(tmp_path, text))
    assert (code, out) == (3, "[2] told\n")
    assert err == "hpsearch_comm.launch: rank 0 on localhost ended with exit code 3\n"


def test_hangups_are_ignored_where_nohup_has_the_launcher_ignore_them(tmp_path):
    with launching(tmp_path, "-np", "1", script(tmp_path, CATCHES), before=("nohup",)) as run:
        run.wait_for("ready.0")
        run.process.send_signal(signal.SIGHUP)
        run.process.send_signal(signal.SIGUSR1)
        assert run.wait_for("heard.0") == [str(int(signal.SIGUSR1))]
        run.communicate()
    assert run.process.returncode == 0


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_are_passed_on_to_all_ranks(tmp_path, number):
    with launching(tmp_path, "-np", "2", script(tmp_path, CATCHES)) as run:
        run.wait_for("ready.0", "ready.1")
        run.process.send_signal(number)
        assert run.wait_for("heard.0", "heard.1") == [str(int(number))] * 2
        run.communicate()
    assert run.process.returncode == 0


def test_an_interrupt_ends_the_ranks_as_it_would_end_one(tmp_path):
    with launching(tmp_path, "-np", "2", script(tmp_path, WAITS)) as run:
        run.wait_for("pid.0", "pid.1")
        run.process.send_signal(signal.SIGINT)
        _, err = run.communicate()
    assert run.process.returncode == 128 + signal.SIGINT
    assert err.count("KeyboardInterrupt") == 2


def test_a_second_interrupt_kills_ranks_that_ignore_the_first(tmp_path):
    text = CATCHES.replace("signal.SIGTERM,", "signal.SIGINT, signal.SIGTERM,").replace("sys.exit(0)", "None")
    with launching(tmp_path, "-np", "2", script(tmp_path, text)) as run:
        run.wait_for("ready.0", "ready.1")
        run.process.send_signal(signal.SIGINT)
        run.wait_for("heard.0", "heard.1")
        run.process.send_signal(signal.SIGINT)
        run.communicate()
    assert run.process.returncode == 128 + signal.SIGINT


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("whom", ["launcher", "agent", "rank"])
def test_nothing_is_left_whoever_is_killed(tmp_path, whom):
    """What a rank has started ends too, in its process group or not."""
    with launching(tmp_path, "-np", "2", script(tmp_path, WAITS)) as run:
        pids = [int(word) for text in run.wait_for("pid.0", "pid.1") for word in text.split()]
        (agent,) = run.pids("hpsearch_comm.launch.agent")
        os.kill({"launcher": run.process.pid, "agent": agent, "rank": pids[0]}[whom], signal.SIGKILL)
        _, err = run.communicate()
        wait_until(all_are(pids, "X"))
    assert run.process.returncode == {"launcher": -9, "agent": 1, "rank": 137}[whom]
    if whom == "agent":
        assert "expected localhost to stay until its ranks have ended, lost it with ranks 0 and 1" in err


def test_an_agent_that_is_told_to_end_ends_its_ranks_and_says_so(tmp_path):
    with launching(tmp_path, "-np", "2", script(tmp_path, WAITS)) as run:
        pids = [int(word) for text in run.wait_for("pid.0", "pid.1") for word in text.split()]
        (agent,) = run.pids("hpsearch_comm.launch.agent")
        os.kill(agent, signal.SIGTERM)
        _, err = run.communicate()
        wait_until(all_are(pids, "X"))
    assert run.process.returncode == 1
    assert "error: localhost: expected the agent to stay until its ranks have ended, got SIGTERM" in err


def test_what_ranks_leave_behind_is_ended_after_them(tmp_path):
    daemon = "setsid sleep 600 & echo $! > pid.$RANK"
    with launching(tmp_path, "-np", "2", "sh", "-c", daemon) as run:
        pids = [int(pid) for pid in run.wait_for("pid.0", "pid.1")]
        run.communicate()
        assert all_are(pids, "X")()
    assert run.process.returncode == 0


def test_ranks_have_no_standard_input(tmp_path):
    assert launch(tmp_path, "-np", "2", "cat", data=b"for nobody")[:2] == (0, "")


@pytest.mark.exhaustive
def test_standard_streams_may_be_closed(tmp_path):
    words = f'"{sys.executable}" -m hpsearch_comm.launch -np 2 sh -c "cat; echo out; echo err >&2; echo x >> ran"'
    done = subprocess.run(["sh", "-c", f"{words} <&- >&- 2>&-"], cwd=tmp_path, text=True)
    assert done.returncode == 0
    assert (tmp_path / "ran").read_text() == "x\n" * 2
    done = subprocess.run(
        ["sh", "-c", f"{words} < /dev/null > /dev/full"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "error: expected to write the ranks' output, got: [Errno 28]" in done.stderr


@pytest.mark.exhaustive
def test_torch_distributed_meets_by_the_same_variables(tmp_path):
    text = """
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.ones(2)
        dist.all_reduce(total)
        print(dist.get_rank(), total.tolist())
        dist.destroy_process_group()
    """
    code, out, err = launch(tmp_path, "-np", "2", script(tmp_path, text))
    assert code == 0, err
    assert sorted(out.splitlines()) == ["[0] 0 [2.0, 2.0]", "[1] 1 [2.0, 2.0]"]


WRITES = """
    import os, sys

    def content(rank):
        odd = bytes(set(range(256)) - set(b"\\r\\n")) + b"\\n" + rank * 3_000_000 + b"\\n"
        bar = b"".join(b"\\r%d%%" % percent for percent in range(100))
        return odd + bar + b"\\n" + b"".join(b"line %d\\n" % number for number in range(50_000)) + b"the end"

    if __name__ == "__main__":
        sys.stdout.buffer.write(content(os.environ["RANK"].encode()))
"""


@pytest.mark.exhaustive
def test_output_arrives_whole_whatever_it_is(tmp_path):
    """Binary bytes, a long line without an end, a progress bar, and more than fits into any pipe."""
    directory = tmp_path / "out" / "puts"
    written: dict[str, Any] = {"__name__": "writes"}
    exec(textwrap.dedent(WRITES), written)
    with launching(tmp_path, "-np", "2", "--output", str(directory), script(tmp_path, WRITES)) as run:
        out, _ = run.process.communicate(b"", timeout=600)
    assert run.process.returncode == 0
    for rank in range(2):
        expected = written["content"](str(rank).encode())
        assert (directory / f"rank.{rank}.txt").read_bytes() == expected
        mine = [line[4:] for line in re.split(rb"[\r\n]", out) if line.startswith(f"[{rank}] ".encode())]
        assert b"".join(mine) == b"".join(re.split(rb"[\r\n]", expected))
        assert mine[-1] == b"the end"
        assert out.count(f"[{rank}] line 7\n".encode()) == 1


@pytest.mark.exhaustive
def test_a_reader_that_has_seen_enough_ends_the_ranks(tmp_path):
    with launching(tmp_path, "-np", "2", "yes") as run:
        assert run.process.stdout is not None
        assert run.process.stdout.read(4) in (b"[0] ", b"[1] ")
        run.process.stdout.close()
        assert run.process.wait(120) == 128 + signal.SIGPIPE


@pytest.mark.exhaustive
def test_a_reader_that_pauses_holds_up_the_ranks_and_no_memory_is_filled(tmp_path):
    """Signals get through nevertheless."""
    with launching(tmp_path, "-np", "1", "sh", "-c", "echo $$ > pid; exec yes") as run:
        (pid,) = (int(text) for text in run.wait_for("pid"))
        # `yes` sleeps for good only where its pipe is full.
        wait_until(lambda: written_once_more(pid) == written_once_more(pid) and state(pid) == "S")
        run.process.send_signal(signal.SIGTERM)
        wait_until(all_are([pid], "X"))
        run.communicate()
    assert run.process.returncode == 128 + signal.SIGTERM


def written_once_more(pid: int) -> str:
    """Return how much a process has written, a moment later."""
    signal.sigtimedwait([], 0.2)
    return Path(f"/proc/{pid}/io").read_text().splitlines()[1]


def test_the_secret_is_in_no_command_line_no_file_and_no_environment_but_the_ranks(tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    text = """
        import os, signal
        from pathlib import Path

        rank = os.environ["RANK"]
        Path(f"{os.environ['HOLD']}.{rank}").write_text(f"{os.getpid()} {len(os.environ['HPSEARCH_COMM_SECRET'])}\\n")
        signal.pause()
    """
    with launching(tmp_path, "-np", "2", script(tmp_path, text), HOLD="ready", TMPDIR=str(temporary)) as run:
        said = [text.split() for text in run.wait_for("ready.0", "ready.1")]
        assert [length for _, length in said] == ["64", "64"]
        ranks = [int(pid) for pid, _ in said]
        secrets = {variable(pid, "HPSEARCH_COMM_SECRET") for pid in ranks}
        (secret,) = secrets
        assert len(secret) == 64
        holders = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                assert secret not in (process / "cmdline").read_bytes()
                if secret in (process / "environ").read_bytes():
                    holders.append(int(process.name))
        assert sorted(holders) == sorted(ranks)
        files = [file for file in tmp_path.rglob("*") if file.is_file()]
        assert files
        assert all(secret not in file.read_bytes() for file in files)
        run.process.send_signal(signal.SIGTERM)
        run.communicate()
    assert not list(temporary.iterdir())


def variable(pid: int, name: str) -> bytes:
    """Return a variable of a process's environment."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    (found,) = (text.partition(b"=")[2] for text in variables if text.startswith(name.encode() + b"="))
    return found


def test_a_secret_of_the_users_own_reaches_the_ranks(tmp_path):
    secret = os.urandom(32).hex()
    program = 'printf "%s\\n" "$HPSEARCH_COMM_SECRET"'
    code, out, _ = launch(tmp_path, "--no-prefix", "-np", "2", "sh", "-c", program, HPSEARCH_COMM_SECRET=secret)
    assert (code, out.split()) == (0, [secret] * 2)


def test_the_environment_is_the_launchers_but_for_what_says_which_rank_a_process_is(tmp_path):
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MINE THEIRS PYTHONPATH OMPI_COMM_WORLD_RANK"
    show = f"import os; print(*(os.environ.get(name) for name in '{names}'.split()))"
    path = os.pathsep.join((os.environ.get("PYTHONPATH", ""), "/of/mine"))
    variables: dict[str, Any] = {"MINE": "kept", "THEIRS": "old", "RANK": "7", "OMPI_COMM_WORLD_RANK": "7"}
    words = ("--no-prefix", "-x", "THEIRS=new", "-np", "2", script(tmp_path, show, "show.py"))
    code, out, err = launch(tmp_path, *words, PYTHONPATH=path, **variables)
    assert code == 0, err
    assert sorted(out.splitlines()) == [f"{rank} 2 {rank} 2 127.0.0.1 kept new {path} None" for rank in range(2)]


def test_modules_and_directories(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    script(tmp_path, "import sys; print(__name__, sys.argv[1:])", "elsewhere/part.py")
    words = ("-np", "1", "--wdir", str(tmp_path / "elsewhere"), "-m", "part", "-np", "--more")
    assert launch(tmp_path, *words)[:2] == (0, "[0] __main__ ['-np', '--more']\n")


@pytest.mark.some_cases(4)
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("-np", "2", "no-such-program"), 127, "localhost: expected a program that can be run, got 'no-such-program'"),
        (("-np", "2", "./train.txt"), 126, "got './train.txt': Permission denied"),
        (("-np", "1", "--wdir", "/no/such", "true"), 1, "expected the directory /no/such, got: No such file"),
        (("-np", "1", "--python", "/no/python", "true"), 1, "expected to be able to run /no/python on this host"),
        (
            ("-np", "1", "--python", "/bin/false", "true"),
            1,
            "expected an agent of the launcher's to start on localhost",
        ),
        (("-np", "1", "--output", "train.txt", "true"), 1, "File exists for train.txt"),
        (("-np", "1", "--interface", "nosuch0", "true"), 1, "got 'nosuch0'. Interfaces of this host: "),
    ],
)
def test_what_can_not_be_started_is_one_clear_error(tmp_path, words, code, said):
    (tmp_path / "train.txt").write_text("no program")
    got, out, err = launch(tmp_path, *words)
    assert (got, out) == (code, "")
    assert err.startswith("hpsearch_comm.launch: error: ")
    assert said in err
    assert "Traceback" not in err


def test_a_signal_before_the_ranks_have_started_ends_it(tmp_path):
    slow = script(tmp_path, "#!/bin/sh\ntouch begun\nexec sleep 600", "python")
    (tmp_path / slow).chmod(0o755)
    with launching(tmp_path, "-np", "1", "--python", str(tmp_path / slow), "true") as run:
        wait_until((tmp_path / "begun").exists)
        run.process.send_signal(signal.SIGTERM)
        run.communicate()
    assert run.process.returncode == 128 + signal.SIGTERM


def test_a_host_that_never_answers_is_an_error_after_the_start_timeout(tmp_path):
    slow = script(tmp_path, "#!/bin/sh\nexec sleep 600", "python")
    (tmp_path / slow).chmod(0o755)
    code, _, err = launch(tmp_path, "-np", "1", "--start-timeout", "0.5", "--python", str(tmp_path / slow), "true")
    assert code == 1
    assert "expected an answer of localhost within 0.5 s, got none" in err


@pytest.mark.exhaustive
@pytest.mark.parametrize("left", [*rarely("yes"), "trap '' TERM; while :; do echo still here; done"])
def test_what_ranks_leave_behind_may_write_and_ignore_sigterm(tmp_path, left):
    program = ["sh", "-c", f"setsid sh -c \"{left}\" & echo last words; printf 'no end'"]
    code, out, err = launch(tmp_path, "-np", "1", *program)
    assert (code, err) == (0, "")
    assert "[0] last words\n" in out


def test_the_last_words_of_what_ranks_leave_behind_are_heard(tmp_path):
    program = ["sh", "-c", "(while kill -0 $$; do :; done 2>/dev/null; printf 'the end') & echo $$"]
    code, out, err = launch(tmp_path, "-np", "1", *program)
    assert (code, err) == (0, "")
    assert out.endswith("[0] the end")
