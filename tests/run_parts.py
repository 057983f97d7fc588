"""Runs the parts of the test suite side by side, and sums them up. `python -m tests.run_parts [PYTEST OPTION]...`.

Much of their time tests wait for other processes: with two parts for each core, a core is seldom idle. All parts at
once would have tests wait ten times as long as each alone. The longest come first. Their lines come as they are
written, each with its part's name. One process forks what the tests of all parts run in processes of their own. Their
temporary files are in memory, where that has room. A mark in the environment shows at the end which processes they have
left.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.forking import SHARED, start_forking

_ROOT = Path(__file__).parents[1]

PLACES: dict[str, tuple[str, ...]] = {
    "comm": ("tests/comm",),
    "rooms": ("tests/hpsearch",),
    "results": (
        *(f"tests/hpsearch/{room}" for room in ("results", "tables", "page", "export")),
        "tests/hpsearch/worker",
        "tests/hpsearch/design",
        "tests/hpsearch/searchers",
    ),
    "trainers": ("tests/trainers",),
    "run": ("tests/hpsearch/run",),
    "jobs": ("tests/comm/horovod", "tests/comm/launch", "tests/comm/torch_backend"),
    "strategies": ("tests/trainers/strategies",),
    "cli": ("tests/hpsearch/cli",),
    "ray": ("tests/hpsearch/backends",),
    "rest": ("tests",),
}
"""Where the tests of each part are. What lies within, and is of a part of its own, is left out."""

_ALL = [place for places in PLACES.values() for place in places]

PARTS: dict[str, tuple[str, ...]] = {
    name: (*places, *(f"--ignore={other}" for other in _ALL if any(other.startswith(f"{one}/") for one in places)))
    for name, places in PLACES.items()
}
"""What each is called with; every test belongs to one."""

NO_TESTS = 5
"""How pytest ends where nothing was left to run."""

_MARK = "HPSEARCH_TEST_RUN"
PREFIX = "hp-tests-"
"""Begins the name of the folder of temporary files. The paths of sockets in it must be short."""

_MEMORY = Path("/dev/shm")
_MEMORY_BYTES = 4 << 30
"""What must be free there for temporary files: they take a fraction of it, but Ray's objects lie there too."""

_LEAVING_SECONDS = 20.0
"""How long processes that have been told to end may take."""
_TELLING_SECONDS = 1.0
"""How long a part's last lines may take, once it has ended: a process that was left behind may hold the other end."""


@dataclass
class Counts:
    """What came of the tests of a part, or of all."""

    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """How each failed, by their names; also those whose cleaning up failed, and files that couldn't be read."""
    skipped: int = 0

    def __str__(self) -> str:
        return f"{self.passed} passed, {len(self.failed)} failed, {self.skipped} skipped"


def count(outcomes: Path) -> Counts:
    """Count what a part has written through tests/outcomes.py."""
    last: dict[str, tuple[str, str]] = {}
    for line in outcomes.read_text().splitlines():
        outcome, test, how = line.split("\t")
        if test not in last or last[test][0] != "failed":  # it stays so, whatever came of its cleaning up
            last[test] = outcome, how
    words = [outcome for outcome, _ in last.values()]
    failed = {test: how for test, (outcome, how) in last.items() if outcome == "failed"}
    return Counts(words.count("passed"), failed, words.count("skipped"))


def summary(parts: dict[str, Counts], codes: dict[str, int], left: Sequence[str]) -> list[str]:
    """Say in lines what came of all parts; the last one is of all together.

    Args:
        parts: The counts by part.
        codes: How each part ended.
        left: The processes that are still there.
    """
    lines = []
    for name, code in codes.items():
        ended = "" if code in (0, 1, NO_TESTS) else f"; pytest ended with {code}"
        lines.append(f"{name}: {parts[name]}{ended}")
    lines += [f"FAILED {test} - {how}" for counts in parts.values() for test, how in counts.failed.items()]
    lines += [f"LEFT BEHIND {process}" for process in left]
    whole = Counts(
        sum(counts.passed for counts in parts.values()),
        {test: how for counts in parts.values() for test, how in counts.failed.items()},
        sum(counts.skipped for counts in parts.values()),
    )
    return [*lines, str(whole)]


def left_behind(mark: str) -> list[str]:
    """Name the processes, as `pid command line`, that were started with this mark and are still there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if int(process.name) != os.getpid() and mark.encode() in (process / "environ").read_bytes():
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                found.append(f"{process.name} {words}")
    return found


def run(
    parts: dict[str, Sequence[str]], options: Sequence[str], at_once: int | None = None, forks: bool = False
) -> int:
    """Run the parts, with these options for each; return the exit status: 0 if all went well.

    Ctrl-C, or SIGTERM, ends all parts: each sums up what it has, and so does this.

    Args:
        parts: What each is called with; they begin in this order.
        options: Of pytest.
        at_once: How many run side by side; two for each core by default.
        forks: Whether one process forks for all of them; else each starts its own.
    """
    mark = f"{_MARK}={secrets.token_hex(8)}"
    env = _environment() | dict([mark.split("=")])
    running: dict[str, subprocess.Popen[str]] = {}
    stopped = threading.Event()

    def stop(_number: int, _frame: object) -> None:
        stopped.set()
        for process in list(running.values()):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)

    def run_one(name: str, outcomes: Path) -> int | None:
        if stopped.is_set():
            return None
        words = [*parts[name], *options, "-p", "tests.outcomes", "--outcomes", str(outcomes)]
        running[name] = process = _start(words, env, None if forking is None else forking[1])
        if stopped.is_set():  # while it was started
            process.send_signal(signal.SIGINT)
        teller = threading.Thread(target=_tell, args=(name, process), daemon=True)
        teller.start()
        code = process.wait()
        teller.join(_TELLING_SECONDS)
        return code

    former = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=_memory(), ignore_cleanup_errors=True) as folder:
        env["TMPDIR"] = str(Path(folder) / "t")
        Path(env["TMPDIR"]).mkdir()
        forking = start_forking(env) if forks else None
        outcomes = {name: Path(folder) / name for name in parts}
        for path in outcomes.values():
            path.touch()
        with ThreadPoolExecutor(at_once or 2 * (os.cpu_count() or 1)) as pool:
            ended = {name: pool.submit(run_one, name, path) for name, path in outcomes.items()}
        codes = {name: code for name, future in ended.items() if (code := future.result()) is not None}
        if forking is not None:
            forking[1].close()
        left = _wait_for_leaving(mark)
        if forking is not None:
            forking[0].kill()  # it has ended by now, if nobody was left behind who could ask it to fork
            forking[0].wait()
        counts = {name: count(path) for name, path in outcomes.items()}
    for number, handler in former.items():
        signal.signal(number, handler)
    print("\n".join(["", *summary(counts, codes, left)]), flush=True)
    if stopped.is_set():
        return 130
    well = all(code in (0, NO_TESTS) for code in codes.values()) and any(code == 0 for code in codes.values())
    return 0 if well and not left else 1


def _start(words: Sequence[str], env: dict[str, str], forking: socket.socket | None) -> subprocess.Popen[str]:
    shared = {} if forking is None else {SHARED: str(forking.fileno())}
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *words],
        cwd=_ROOT,
        env=env | shared,
        pass_fds=[int(number) for number in shared.values()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # a terminal's Ctrl-C comes once, from here
    )


def _environment() -> dict[str, str]:
    """Let the first process that compiles a module write it down: hundreds come after it and would do it again."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _memory() -> Path | None:
    """Return where files are in memory; None: there is no such place, or too little room in it."""
    try:
        free = shutil.disk_usage(_MEMORY).free
    except OSError:
        return None
    return _MEMORY if free >= _MEMORY_BYTES and os.access(_MEMORY, os.W_OK) else None


def _tell(name: str, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            print(f"{name}: {line}", end="", flush=True)


def _wait_for_leaving(mark: str) -> list[str]:
    deadline = time.monotonic() + _LEAVING_SECONDS
    while (left := left_behind(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


if __name__ == "__main__":
    sys.exit(run(dict(PARTS), sys.argv[1:], forks=True))
