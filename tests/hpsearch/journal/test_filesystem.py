"""What studies take on a disk, counted in a process beside the one that reads them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from hpsearch.journal.filesystem import size_of, sizes_beside


def filled(folder: Path, sizes: list[int]) -> Path:
    for number, size in enumerate(sizes):
        inside = folder / str(number)
        inside.mkdir(parents=True)
        (inside / "file").write_bytes(b"x" * size)
    return folder


def on_disk(path: Path) -> int:
    told = subprocess.run(["du", "-s", "--block-size=1", path], capture_output=True, text=True, check=True).stdout
    return int(told.split()[0])


def test_each_path_has_the_blocks_of_its_files_and_folders_however_deep(tmp_path):
    paths = [filled(tmp_path / "a", [3, 9000]), filled(tmp_path / "b" / "deep", [5] * 50).parent]
    with sizes_beside([*paths, tmp_path / "gone"]) as sizes:
        assert sizes() == [*map(on_disk, paths), 0]
    assert size_of([paths[1]]) > 50 * 512  # not 250
    os.truncate(tmp_path / "a" / "0" / "file", 10_000_000)
    assert size_of(paths) == sum(map(on_disk, paths)) < 10_000_000


def test_a_link_counts_as_a_link(tmp_path):
    folder = filled(tmp_path / "a", [100_000])
    (folder / "link").symlink_to(folder / "0", target_is_directory=True)
    assert size_of([folder]) == on_disk(folder) < 200_000


def test_of_no_path_there_is_no_size():
    with sizes_beside([]) as sizes:
        assert sizes() == []


def test_where_the_process_beside_is_killed_the_sizes_are_found_here(tmp_path, monkeypatch):
    here = os.getpid()

    def killed_elsewhere(paths):
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return size_of(paths)

    monkeypatch.setattr("hpsearch.journal.filesystem.size_of", killed_elsewhere)
    with sizes_beside([filled(tmp_path / "a", [6])]) as sizes:
        assert sizes() == [on_disk(tmp_path / "a")]


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
