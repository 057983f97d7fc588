"""Checkpoints of several trials in one file: read there, written out, sent, and found to be damaged."""

from __future__ import annotations

import io
import multiprocessing
import os
import shutil
import socket
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.errors import CheckpointError, StorageError, UnreadableCheckpointError, UnwritableError
from hpsearch.trainable import checkpoints, packs, random_state
from tests.hpsearch.support.files import files_below

READ = [checkpoints.read_state, checkpoints.read_random_state, checkpoints.user_path, checkpoints.pack]


class Scaler:
    """A class of the user's own."""


def place(number: int) -> str:
    return f"trials/{number:05d}/1/hpsearch-checkpoint-3"


def state_of(number: int) -> dict[str, Any]:
    return {"model": {"weight": torch.full((3, 2), float(number))}, "epoch": number, "names": ("a", [number])}


def drawn_of(number: int) -> random_state.RandomState:
    random_state.seed_all(number)
    return random_state.capture()


def packed(study: Path) -> list[Path]:
    """Write the checkpoints of some trials as one file; return their addresses as paths."""
    parts = {place(number): checkpoints.parts_of(state_of(number), drawn_of(number)) for number in range(3)}
    written = checkpoints.write_together(study, parts)
    return [study / written[place(number)] for number in range(3)]


def alone(study: Path, number: int = 1) -> Path:
    """Write a checkpoint as one alone is."""
    directory = (study / place(number)).parent
    return directory / checkpoints.write(directory, 3, state_of(number), drawn_of(number))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return bool(one == other)


def test_each_is_read_from_the_pack_as_it_is_read_alone(tmp_path: Path) -> None:
    for number, checkpoint in enumerate(packed(tmp_path / "together")):
        expected = alone(tmp_path / "alone", number)
        assert same(checkpoints.read_state(checkpoint), checkpoints.read_state(expected))
        assert same(checkpoints.read_random_state(checkpoint), checkpoints.read_random_state(expected))
    assert list(files_below(tmp_path / "together")) == ["trials/packs/00000-1-3x3.zip"]


def test_what_is_written_out_is_to_the_byte_what_one_alone_writes(tmp_path: Path) -> None:
    checkpoint = packed(tmp_path / "together")[1]
    for _ in range(2):  # the second finds it there
        written = checkpoints.extract(checkpoint)
        assert written == tmp_path / "together" / place(1)
        assert files_below(written) == files_below(alone(tmp_path / "alone"))
    assert checkpoints.user_path(checkpoint) == written / "state.pt"
    assert [path.name for path in written.parent.iterdir()] == [written.name]


def test_any_program_that_knows_zip_writes_a_pack_out(tmp_path: Path) -> None:
    checkpoint = packed(tmp_path)[2]
    shutil.unpack_archive(tmp_path / "trials" / "packs" / "00000-1-3x3.zip", tmp_path)
    (tmp_path / "trials" / "packs" / "00000-1-3x3.zip").unlink()
    assert same(checkpoints.read_state(checkpoint), state_of(2))
    assert checkpoints.user_path(checkpoint) == tmp_path / place(2) / "state.pt"


def test_what_lies_at_its_place_is_read_there(tmp_path: Path) -> None:
    checkpoint, other, _ = packed(tmp_path)
    directory = (tmp_path / place(0)).parent
    checkpoints.write(directory, 3, {"written": "at its place"}, drawn_of(9))
    assert checkpoints.read_state(checkpoint) == {"written": "at its place"}
    assert same(checkpoints.read_random_state(checkpoint), drawn_of(9))
    assert same(checkpoints.read_state(other), state_of(1))


def test_what_was_written_out_needs_no_pack(tmp_path: Path) -> None:
    first, second, _ = packed(tmp_path)
    checkpoints.extract(first)
    (tmp_path / "trials" / "packs" / "00000-1-3x3.zip").unlink()
    assert same(checkpoints.read_state(first), state_of(0))
    for read in READ:
        with pytest.raises(
            UnreadableCheckpointError, match=f"{place(1)} in .*00000-1-3x3.zip, but there is no such file"
        ):
            read(second)


def test_one_that_is_written_out_while_it_is_looked_for_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep that ends writes it out, and deletes the pack."""
    checkpoint, *_ = packed(tmp_path)

    def late(pack: Path, *given: Any) -> Any:
        monkeypatch.setattr("hpsearch.trainable.checkpoints.read_pack", packs.read_pack)
        checkpoints.extract(checkpoint)
        pack.unlink()
        return packs.read_pack(pack, *given)

    monkeypatch.setattr("hpsearch.trainable.checkpoints.read_pack", late)
    assert same(checkpoints.read_state(checkpoint), state_of(0))


def test_bytes_for_another_machine_are_made_without_a_file(tmp_path: Path) -> None:
    checkpoint = packed(tmp_path / "here")[1]
    sent = checkpoints.pack(checkpoint)
    assert list(files_below(tmp_path / "here")) == ["trials/packs/00000-1-3x3.zip"]
    there = tmp_path / "there" / checkpoint.relative_to(tmp_path / "here")
    for _ in range(2):
        checkpoints.unpack(sent, there)
        assert files_below(tmp_path / "there" / place(1)) == files_below(alone(tmp_path / "alone"))
    assert same(checkpoints.read_state(there), state_of(1))
    assert checkpoints.pack(tmp_path / "there" / place(1)) == checkpoints.pack(there)


def write_out_at(checkpoint: Path, barrier: Any, answers: Any) -> None:
    barrier.wait()
    answers.put(str(checkpoints.extract(checkpoint)))


def test_many_may_write_it_out_at_once(tmp_path: Path) -> None:
    checkpoint, *_ = packed(tmp_path)
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(4), context.Queue()
    processes = [context.Process(target=write_out_at, args=(checkpoint, barrier, answers)) for _ in range(4)]
    for process in processes:
        process.start()
    assert {answers.get() for _ in processes} == {str(tmp_path / place(0))}
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert [path.name for path in (tmp_path / place(0)).parent.iterdir()] == ["hpsearch-checkpoint-3"]
    assert files_below(tmp_path / place(0)) == files_below(alone(tmp_path / "alone", 0))


def test_where_it_cant_be_written_out_it_is_read_all_the_same(tmp_path: Path) -> None:
    checkpoint, *_ = packed(tmp_path)
    (tmp_path / "trials" / "00000").write_text("in the way")  # permissions don't bind every user
    with pytest.raises(UnwritableError, match=place(0)):
        checkpoints.user_path(checkpoint)
    assert same(checkpoints.read_state(checkpoint), state_of(0))
    assert checkpoints.pack(checkpoint)


def test_a_state_that_cant_be_read_back_makes_no_parts() -> None:
    with pytest.raises(CheckpointError, match=r'state\["scaler"\]'):
        checkpoints.parts_of({"scaler": Scaler()}, random_state.capture())
    drawn = checkpoints.parts_of({"drawn": torch.Size([2])}, random_state.capture())  # read back, to see that it can be
    assert torch.load(io.BytesIO(drawn["state.pt"]), weights_only=True) == {"drawn": torch.Size([2])}


def test_parts_are_written_as_a_checkpoint_alone(tmp_path: Path) -> None:
    directory = (tmp_path / place(1)).parent
    name = checkpoints.write_parts(directory, 3, checkpoints.parts_of(state_of(1), drawn_of(1)))
    assert files_below(directory / name) == files_below(alone(tmp_path / "alone"))


def test_a_disk_that_is_full_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(StorageError, match="Make room, then resume"):
        packed(tmp_path)
    assert files_below(tmp_path) == {}


# What was written, and is gone or something else since.


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("size", [0, 1, 100, 0.5, -1])
def test_a_pack_that_was_cut_short_is_damage_for_each_trial(
    tmp_path: Path, read: Callable[[Path], object], size: float
) -> None:
    addresses = packed(tmp_path)
    pack = tmp_path / "trials" / "packs" / "00000-1-3x3.zip"
    whole = pack.stat().st_size
    os.truncate(pack, int(whole * size) if 0 < size < 1 else int(size) % whole)
    for number, checkpoint in enumerate(addresses):
        with pytest.raises(UnreadableCheckpointError) as raised:
            read(checkpoint)
        assert f"the checkpoint {place(number)} in {pack} is damaged" in str(raised.value)
    assert list(files_below(tmp_path)) == ["trials/packs/00000-1-3x3.zip"]


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_whatever_byte_is_damaged_no_other_state_is_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    study = tmp_path_factory.mktemp("study")
    addresses = packed(study)
    pack = study / "trials" / "packs" / "00000-1-3x3.zip"
    content = bytearray(pack.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(-500, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    pack.write_bytes(content)
    for number, checkpoint in enumerate(addresses):
        try:
            state, drawn = checkpoints.read_state(checkpoint), checkpoints.read_random_state(checkpoint)
        except UnreadableCheckpointError:
            continue
        assert same(state, state_of(number))
        assert same(drawn, drawn_of(number))


def test_a_pack_without_the_trial_is_damage(tmp_path: Path) -> None:
    packed(tmp_path)
    with pytest.raises(UnreadableCheckpointError, match=r"00007/1/hpsearch-checkpoint-3 in .*-3x3\.zip is damaged"):
        checkpoints.read_state(tmp_path / f"trials/packs/00000-1-3x3.zip#{place(7)}")


def test_a_part_that_is_no_state_is_damage(tmp_path: Path) -> None:
    checkpoint, *_ = packed(tmp_path)
    with zipfile.ZipFile(tmp_path / "trials" / "packs" / "00000-1-3x3.zip", "w") as archive:
        for name in ("state.pt", "random.pt"):
            archive.writestr(f"{place(0)}/{name}", b"\0" * 40)
    for read in (checkpoints.read_state, checkpoints.read_random_state):
        with pytest.raises(UnreadableCheckpointError, match=r"00000-1-3x3.zip#trials/00000/1/hpsearch-checkpoint-3/"):
            read(checkpoint)


def put_a_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path may have 107 bytes
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)
    os.chdir(here)


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("instead", [os.mkfifo, put_a_socket, Path.mkdir, lambda path: path.symlink_to("nowhere")])
def test_something_else_in_a_packs_place_is_damage(
    tmp_path: Path, read: Callable[[Path], object], instead: Callable[[Path], object]
) -> None:
    checkpoint, *_ = packed(tmp_path)
    pack = tmp_path / "trials" / "packs" / "00000-1-3x3.zip"
    pack.unlink()
    instead(pack)
    with pytest.raises(UnreadableCheckpointError, match=r"00000-1-3x3\.zip"):
        read(checkpoint)
