"""The bytes of studies, counted in a process beside the one that reads them."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from hpsearch.study.sizes import size_of, sizes_beside


def filled(folder: Path, sizes: list[int]) -> Path:
    for number, size in enumerate(sizes):
        inside = folder / str(number)
        inside.mkdir(parents=True)
        (inside / "file").write_bytes(b"x" * size)
    return folder


def test_each_path_has_the_bytes_of_its_files_however_deep(tmp_path):
    paths = [filled(tmp_path / "a", [3, 4]), filled(tmp_path / "b" / "deep", [5]).parent, tmp_path / "gone"]
    with sizes_beside(paths) as sizes:
        assert sizes() == [7, 5, 0]


def test_a_link_counts_as_a_link(tmp_path):
    folder = filled(tmp_path / "a", [1000])
    (folder / "link").symlink_to(folder / "0", target_is_directory=True)
    assert size_of([folder]) == 1000 + len(str(folder / "0"))


def test_of_no_path_there_is_no_size():
    with sizes_beside([]) as sizes:
        assert sizes() == []


def test_where_the_process_beside_is_killed_the_sizes_are_found_here(tmp_path, monkeypatch):
    here = os.getpid()

    def killed_elsewhere(paths):
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return size_of(paths)

    monkeypatch.setattr("hpsearch.study.sizes.size_of", killed_elsewhere)
    with sizes_beside([filled(tmp_path / "a", [6])]) as sizes:
        assert sizes() == [6]


def test_no_process_is_left_also_where_reading_fails(tmp_path, monkeypatch):
    fork, children = os.fork, []

    def counted_fork():
        children.append(fork())
        return children[-1]

    monkeypatch.setattr(os, "fork", counted_fork)
    with contextlib.suppress(KeyboardInterrupt), sizes_beside([filled(tmp_path / "a", [1] * 100)]):
        raise KeyboardInterrupt
    assert len(children) == 1
    with pytest.raises(ChildProcessError):  # there is none to wait for: it has ended, and was waited for
        os.waitpid(children[0], os.WNOHANG)
