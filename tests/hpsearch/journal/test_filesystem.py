"""What studies take on a disk, counted in a process beside the one that reads them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from hpsearch.journal.filesystem import size_of


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
    assert [size_of([path]) for path in [*paths, tmp_path / "gone"]] == [*map(on_disk, paths), 0]
    assert size_of([paths[1]]) > 50 * 512  # not 250
    os.truncate(tmp_path / "a" / "0" / "file", 10_000_000)
    assert size_of(paths) == sum(map(on_disk, paths)) < 10_000_000


def test_a_link_counts_as_a_link(tmp_path):
    folder = filled(tmp_path / "a", [100_000])
    (folder / "link").symlink_to(folder / "0", target_is_directory=True)
    assert size_of([folder]) == on_disk(folder) < 200_000
