"""`hpsearch watch` in a real terminal beside a real sweep, and where there is no terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import hpsearch
from hpsearch.events import Steered
from hpsearch.journal.directory import StudyDirectory
from tests.hpsearch.support.command_line import PROGRAM, Call, begin, environment, wait_for, write_sweep
from tests.hpsearch.support.scripted import of_kind

_CONTROL = re.compile(r"\x1b\[[0-9;?<>=]*\$?[A-Za-z]")


class Terminal:
    """`hpsearch watch` in a pseudo-terminal, whose output a thread reads."""

    def __init__(self, cwd: Path, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        environ = environment(TERM="xterm-256color")
        words = [PROGRAM, "watch", *arguments]
        self.process = subprocess.Popen(
            words, cwd=cwd, env=environ, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self.out = b""
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def text(self) -> str:
        """All that was written, without colours; what moves the cursor is gone, too."""
        return _CONTROL.sub("", self.out.decode("utf-8", "replace"))

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def close(self) -> None:
        """Close the terminal's window."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._reader.join()
        os.close(self._master)

    def ended(self) -> bool:
        return self.process.poll() is not None

    def _read(self) -> None:
        while not self._closed.is_set():
            try:
                if select.select([self._master], [], [], 0.05)[0]:
                    self.out += os.read(self._master, 65536)
            except OSError:  # the other side has closed
                return


@contextmanager
def watching(cwd: Path, *arguments: str) -> Iterator[Terminal]:
    terminal = Terminal(cwd, *arguments)
    try:
        yield terminal
    finally:
        terminal.process.kill()
        terminal.process.wait()
        terminal.close()


def test_without_a_terminal_it_says_what_shows_the_same(here: Path, hpsearch_command: Call):
    assert hpsearch_command("run", "sweep.yaml", "--backend", "inline", "--no-tensorboard", "--dir", "a b").code == 0
    answer = hpsearch_command("watch", "a b")
    assert (answer.code, answer.out) == (1, "")
    assert "watch: must have a terminal" in answer.err
    assert "hpsearch status 'a b'; hpsearch trials 'a b'" in answer.err


def test_where_there_is_no_study_it_says_so(here: Path, hpsearch_command: Call):
    answer = hpsearch_command("watch")
    assert (answer.code, "there is none" in answer.err, "terminal" in answer.err) == (1, True, False)


@pytest.mark.exhaustive
def test_beside_a_live_sweep_keys_steer_it_and_leaving_does_not(here: Path):
    write_sweep(here / "paced.yaml", "paced", max_iter=1_000_000, run_cap=3)
    inline = ("--backend", "inline", "--no-tensorboard", "--dir", "study")
    with begin("run", "paced.yaml", *inline, cwd=here) as sweep:
        try:
            wait_for(lambda: StudyDirectory(here / "study").exists() and bool(hpsearch.load("study").trials), sweep)
            with watching(here, "study") as terminal:
                wait_for(lambda: "running" in terminal.text and "quit" in terminal.text)
                terminal.press("p")
                wait_for(lambda: hpsearch.load("study").state == "paused", sweep)
                wait_for(lambda: "paused: running trials end" in terminal.text)
                terminal.press("p")
                wait_for(lambda: hpsearch.load("study").state == "running", sweep)
                terminal.press("\x03")
                wait_for(terminal.ended)
                assert terminal.process.returncode == 0
                assert terminal.text.count("Traceback") == 0
            with watching(here, "study") as terminal:
                wait_for(lambda: "quit" in terminal.text)
                terminal.close()
                wait_for(terminal.ended)
            asked = [event.verb for event in of_kind(here / "study", Steered)]
            assert asked == ["pause", "resume"]  # to leave asks for nothing
            assert hpsearch.load("study").state == "running"
            assert sweep.poll() is None
        finally:
            sweep.kill()


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("ends_by", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_gives_the_terminal_back_as_it_was(here: Path, hpsearch_command: Call, ends_by: signal.Signals):
    assert hpsearch_command("run", "sweep.yaml", "--backend", "inline", "--no-tensorboard", "--dir", "study").code == 0
    with watching(here, "study") as terminal:
        wait_for(lambda: "quit" in terminal.text)
        terminal.process.send_signal(ends_by)
        wait_for(terminal.ended)
        wait_for(lambda: b"\x1b[?1049l" in terminal.out)  # the other screen again
