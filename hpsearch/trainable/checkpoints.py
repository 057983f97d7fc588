"""Write a trial's checkpoint so that it can be read again, and read it.

A checkpoint is a directory `hpsearch-checkpoint-<iteration>` in an attempt's directory. It holds what the user saved,
as `state.pt` (tensors and plain containers), `files/` (a directory that the user wrote) or `file/<name>` (a
single file), beside it `random.pt`, the global random generators at the same report, and `manifest.json`, which says
what belongs to it. It is written beside its place and moved there by one rename; what was deleted or cut short since is
missed when it is read.

States that are written at one time may share a file, a pack. What reads a checkpoint takes an address as its path: one
that doesn't lie at its place is read from its pack. It is written out, to be as any other, where a user gets its path.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import shutil
import tarfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpsearch.errors import CheckpointError, StorageError, UnreadableCheckpointError, UnwritableError
from hpsearch.trainable import addresses, manifest
from hpsearch.trainable.copying import copy_tree
from hpsearch.trainable.packs import Parts, read_pack, write_pack
from hpsearch.trainable.random_state import RandomState
from hpsearch.trainable.state_file import dump, load, load_file, save_state
from hpsearch.trainable.storage import reading, writing

__all__ = [
    "name_of",
    "pack",
    "parts_of",
    "read_random_state",
    "read_state",
    "shown_path",
    "unpack",
    "user_path",
    "write",
    "write_out",
    "write_parts",
    "write_together",
]

_STATE = "state.pt"
_RANDOM = "random.pt"
_DIRECTORY = "files"
_FILE = "file"

_GONE = "there must be a checkpoint at {}, but there is none: was it deleted?"


def name_of(iteration: int) -> str:
    """Give the name of the checkpoint's directory within the attempt's."""
    return f"hpsearch-checkpoint-{iteration}"


def write(directory: Path, iteration: int, state: object, random_state: RandomState | None) -> str:
    """Write the checkpoint of an iteration and give its name.

    Args:
        directory: The attempt's directory.
        iteration: The report that the checkpoint belongs to.
        state: Tensors and plain containers, or the path (`str` or `Path`) of a directory or file to copy.
        random_state: From `random_state.capture` at the same report; None where it isn't known (a script that
            writes its own lines).

    Raises:
        CheckpointError: The state can't be read back with `weights_only=True`, or the path isn't there, or leads to
            something that can't be copied.
        UnwritableError: The system refuses it, and the storage isn't to blame.
        StorageError: The storage is full, or out of order.
    """
    name = name_of(iteration)
    with _staged(directory / name) as staging:
        if isinstance(state, (str, os.PathLike)):
            _copy(Path(state), staging, directory)
        else:
            save_state(state, staging / _STATE)
        if random_state is not None:
            dump(random_state, staging / _RANDOM)
        manifest.write_manifest(staging)
    return name


def parts_of(state: object, random_state: RandomState) -> Parts:
    """Give the files of a checkpoint, to be written later; nothing that the state becomes meanwhile is in them.

    Args:
        state: Tensors and plain containers.
        random_state: From `random_state.capture` at the same report.

    Raises:
        CheckpointError: The state can't be read back with `weights_only=True`.
        UnwritableError: To make bytes of it, it asks the system for what that refuses.
    """
    saved, drawn = io.BytesIO(), io.BytesIO()
    with writing("a checkpoint"):
        save_state(state, saved)
        dump(random_state, drawn)
    return {_STATE: saved.getvalue(), _RANDOM: drawn.getvalue()}


def write_parts(directory: Path, iteration: int, parts: Parts) -> str:
    """Write the checkpoint of an iteration, as `write` does, of its files; give its name.

    Raises:
        UnwritableError: The system refuses it, and the storage isn't to blame.
        StorageError: The storage is full, or out of order.
    """
    name = name_of(iteration)
    with _staged(directory / name) as staging:
        _fill(staging, parts)
    return name


def write_together(study: Path, checkpoints: Mapping[str, Parts]) -> Mapping[str, str]:
    """Write the checkpoints of several trials as one file.

    Args:
        study: The study's directory.
        checkpoints: By their places, relative to it.

    Returns:
        The address of each, by its place.

    Raises:
        UnwritableError: The system refuses it, and the storage isn't to blame.
        StorageError: The storage is full, or out of order.
    """
    pack = addresses.pack_of_all(tuple(checkpoints))
    write_pack(study / pack, checkpoints)
    return {place: addresses.in_pack(pack, place) for place in checkpoints}


def read_state(checkpoint: Path) -> Any:
    """Read what the user saved: the state with its tensors on the CPU, or the path of what was copied.

    Raises:
        UnreadableCheckpointError: The checkpoint is missing or damaged.
        StorageError: The storage doesn't give it.
    """
    if (parts := _packed(checkpoint)) is not None:
        return load(io.BytesIO(parts[_STATE]), checkpoint / _STATE)
    path = _path_at(place := _place_of(checkpoint))
    return load_file(path) if path == place / _STATE else path


def read_random_state(checkpoint: Path) -> RandomState | None:
    """Read the random state that stands beside the user's; None where there was none to write.

    Raises:
        UnreadableCheckpointError: The checkpoint is missing or damaged.
        StorageError: The storage doesn't give it.
    """
    state: RandomState
    if (parts := _packed(checkpoint)) is not None:
        state = load(io.BytesIO(parts[_RANDOM]), checkpoint / _RANDOM)
        return state
    place = _place_of(checkpoint)
    if _RANDOM not in _parts(place):
        return None
    state = load_file(place / _RANDOM)
    return state


def user_path(checkpoint: Path) -> Path:
    """Give the path of what the user saved: the file `state.pt`, or the directory or file that was copied.

    One in a pack is written out first. All of it was found whole, as far as that shows without reading it.

    Raises:
        UnreadableCheckpointError: The checkpoint is missing or damaged.
        StorageError: The storage doesn't give it, or has no room to write it out.
        UnwritableError: It can't be written out.
    """
    return _path_at(write_out(checkpoint))


def shown_path(checkpoint: Path) -> Path:
    """Give what `user_path` does; where it can't be written out, its address, which says where it lies.

    Raises:
        UnreadableCheckpointError: The checkpoint is missing or damaged.
        StorageError: The storage doesn't give it.
    """
    try:
        return user_path(checkpoint)
    except (UnwritableError, StorageError):
        if _packed(checkpoint) is None:
            raise
        return checkpoint / _STATE


def write_out(checkpoint: Path) -> Path:
    """Give the place of a checkpoint, after writing it there where it lies in a pack; others may do so meanwhile.

    Raises:
        UnreadableCheckpointError: It is in a pack that is missing or damaged.
        StorageError: The storage doesn't give it, or has no room to write it out.
        UnwritableError: It can't be written out.
    """
    try:
        return _write_out(checkpoint)
    except UnwritableError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        return _write_out(checkpoint)  # whoever runs the study took what was begun for a dead process's


def pack(checkpoint: Path) -> bytes:
    """Give a checkpoint as bytes, for a machine that doesn't see its directory.

    Raises:
        UnreadableCheckpointError: The checkpoint is missing or damaged.
        StorageError: The storage doesn't give it.
    """
    place, parts = _place_of(checkpoint), _packed(checkpoint)
    buffer = io.BytesIO()
    with reading(place), tarfile.open(fileobj=buffer, mode="w", dereference=True) as archive:
        if parts is not None:
            for name, content in sorted(_with_manifest(parts).items()):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        else:
            _parts(place)
            for path in sorted(place.iterdir()):
                archive.add(path, arcname=path.name, filter=_plain)
    return buffer.getvalue()


def unpack(packed: bytes, checkpoint: Path) -> None:
    """Write what `pack` gave to the place of this checkpoint, in one rename; one that is there is replaced.

    Raises:
        CheckpointError: The bytes are no checkpoint, or name paths outside of it.
        StorageError: The storage is full, or out of order.
    """
    with _staged(_place_of(checkpoint)) as staging:
        try:
            with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
                archive.extractall(staging, filter="data")
        except tarfile.TarError as error:
            raise CheckpointError(f"the checkpoint sent for {checkpoint} can't be unpacked: {error}") from error


def _write_out(checkpoint: Path) -> Path:
    place, parts = _place_of(checkpoint), _packed(checkpoint)
    if parts is not None:
        with _staged(place, shared=True) as staging:
            _fill(staging, parts)
    return place


def _place_of(checkpoint: Path) -> Path:
    return Path(addresses.place_of(os.fspath(checkpoint)))


def _packed(checkpoint: Path) -> Parts | None:
    """Read a checkpoint that lies in a pack alone; None where it is to be read at its place."""
    address = os.fspath(checkpoint)
    pack, place = addresses.pack_of(address), Path(addresses.place_of(address))
    if pack is None or os.path.lexists(place):
        return None
    try:
        within = place.relative_to(addresses.study_of(address))
        return read_pack(Path(pack), os.fspath(within), (_STATE, _RANDOM))
    except UnreadableCheckpointError:
        if os.path.lexists(place):  # it was written out meanwhile, and the pack was no longer needed
            return None
        raise


@contextlib.contextmanager
def _staged(checkpoint: Path, shared: bool = False) -> Iterator[Path]:
    """Give a directory that becomes the checkpoint at the block's end, in place of one that is there.

    Args:
        checkpoint: Its place.
        shared: Others may be about to put the same one there; whoever comes first does.
    """
    mark = f".{secrets.token_hex(4)}" if shared else ""
    staging = checkpoint.with_name(f".{checkpoint.name}{mark}.part")
    with writing(f"the checkpoint {checkpoint}"):
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        try:
            yield staging
            if not shared:
                shutil.rmtree(checkpoint, ignore_errors=True)
            try:
                staging.rename(checkpoint)
            except OSError as error:
                if not shared or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _fill(staging: Path, parts: Parts) -> None:
    for name, content in _with_manifest(parts).items():
        (staging / name).write_bytes(content)


def _with_manifest(parts: Parts) -> Parts:
    return {**parts, manifest.NAME: manifest.text_of({name: len(content) for name, content in parts.items()}).encode()}


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what is no part of a checkpoint, whatever put it there."""
    return member if member.isfile() or member.isdir() else None


def _parts(checkpoint: Path) -> Collection[str]:
    """Give the files of a checkpoint, relative to it, each of which was found whole."""
    with reading(checkpoint):
        if not checkpoint.exists():
            raise UnreadableCheckpointError(_GONE.format(checkpoint))
        parts = manifest.read_parts(checkpoint)
        if _STATE in parts:
            # Only scripts that write their own lines saved none, and they save no state.
            parts.setdefault(_RANDOM, None)
        elif not parts.keys() - {_RANDOM} and not (checkpoint / _DIRECTORY).is_dir():
            raise UnreadableCheckpointError(_GONE.format(checkpoint))
        for part, size in parts.items():
            manifest.check_part(checkpoint / part, size)
        return parts.keys()


def _path_at(place: Path) -> Path:
    """Give the path of what the user saved, as `user_path` does, of a checkpoint at its place."""
    parts = _parts(place)
    if _STATE in parts:
        return place / _STATE
    for part in parts:
        if part.startswith(f"{_FILE}/"):
            return place / part
    if (place / _DIRECTORY).is_dir():  # with or without files in it
        return place / _DIRECTORY
    raise UnreadableCheckpointError(_GONE.format(place))


def _copy(source: Path, staging: Path, directory: Path) -> None:
    """Copy the user's directory or file, so that they may write to it again."""
    if not source.exists():
        raise CheckpointError(
            "a checkpoint given as text is the path of a directory or file, but there is no "
            f"{str(source)!r}: write it before the report, or put a text that is a state into a dict"
        )
    if directory.resolve().is_relative_to(source.resolve()):
        raise CheckpointError(
            f"a checkpoint can't be the trial's own directory or one above it, but is {source}: "
            "write the checkpoint to a directory of its own, such as trial.directory / 'model'"
        )
    if source.is_dir():
        copy_tree(source, staging / _DIRECTORY)
    else:
        (staging / _FILE).mkdir()
        copy_tree(source, staging / _FILE / source.name)
