"""Writing and reading of a trial's checkpoints.

A checkpoint is a directory `hpsearch-checkpoint-<iteration>` in an attempt's directory. It contains what the user
saved: `state.pt` (tensors and plain containers), `files/` (a directory) or `file/<name>` (a single file). It also
contains `random.pt`, the state of the global random generators at the same report, and `manifest.json`, the list of its
files with their sizes. A checkpoint is written to a temporary directory, which is then renamed. Missing or truncated
files are detected when the checkpoint is read.

States that are written together can share a file, called a pack. All functions that read a checkpoint accept an address
as its path, and read a packed checkpoint from its pack. A packed checkpoint is extracted to its own directory if a user
needs a path.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import shutil
import stat
import tarfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from hpsearch.errors import CheckpointError, StorageError, UnreadableCheckpointError, UnwritableError
from hpsearch.trainable import addresses
from hpsearch.trainable.packs import (
    MANIFEST,
    Parts,
    check_part,
    manifest_of,
    read_pack,
    read_parts,
    write_manifest,
    write_pack,
)
from hpsearch.trainable.random_state import RandomState
from hpsearch.trainable.state_file import dump, load, load_file, save_state
from hpsearch.trainable.storage import reading, writing

_STATE = "state.pt"
_RANDOM = "random.pt"
_DIRECTORY = "files"
_FILE = "file"

_GONE = "there must be a checkpoint at {}, but there is none: was it deleted?"

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def name_of(iteration: int) -> str:
    """Return the name of the checkpoint's directory in the attempt's directory."""
    return f"hpsearch-checkpoint-{iteration}"


def write(directory: Path, iteration: int, state: object, random_state: RandomState | None) -> str:
    """Write the checkpoint of an iteration, and return its name.

    Args:
        directory: Directory of the attempt.
        iteration: Iteration of the report that the checkpoint belongs to.
        state: Tensors and plain containers, or the path (`str` or `Path`) of a directory or file to copy.
        random_state: From `random_state.capture` at the same report; None if it is unknown (a script that writes its
            own report lines).

    Raises:
        CheckpointError: The state cannot be read with `weights_only=True`, or the path does not exist or cannot be
            copied.
        UnwritableError: The checkpoint cannot be written, for a reason other than the storage.
        StorageError: The storage is full or failing.
    """
    name = name_of(iteration)
    with _staged(directory / name) as staging:
        if isinstance(state, (str, os.PathLike)):
            _copy(Path(state), staging, directory)
        else:
            save_state(state, staging / _STATE)
        if random_state is not None:
            dump(random_state, staging / _RANDOM)
        write_manifest(staging)
    return name


def parts_of(state: object, random_state: RandomState) -> Parts:
    """Return the files of a checkpoint, to be written later. Later changes of the state do not affect them.

    Args:
        state: Tensors and plain containers.
        random_state: From `random_state.capture` at the same report.

    Raises:
        CheckpointError: The state cannot be read with `weights_only=True`.
        UnwritableError: Serializing the state raised an OSError.
    """
    state_file, random_file = io.BytesIO(), io.BytesIO()
    with writing("a checkpoint"):
        save_state(state, state_file)
        dump(random_state, random_file)
    return {_STATE: state_file.getvalue(), _RANDOM: random_file.getvalue()}


def write_parts(directory: Path, iteration: int, parts: Parts) -> str:
    """Write the checkpoint of an iteration from the files of `parts_of`, and return its name.

    Raises:
        UnwritableError: The checkpoint cannot be written, for a reason other than the storage.
        StorageError: The storage is full or failing.
    """
    name = name_of(iteration)
    with _staged(directory / name) as staging:
        _fill(staging, parts)
    return name


def write_together(study: Path, checkpoints: Mapping[str, Parts]) -> Mapping[str, str]:
    """Write the checkpoints of several trials as one file.

    Args:
        study: The study's directory.
        checkpoints: Files of each checkpoint, by the path of its directory relative to the study's.

    Returns:
        The address of each checkpoint, by its path.

    Raises:
        UnwritableError: The pack cannot be written, for a reason other than the storage.
        StorageError: The storage is full or failing.
    """
    pack = addresses.pack_of_all(tuple(checkpoints))
    write_pack(study / pack, checkpoints)
    return {path: addresses.in_pack(pack, path) for path in checkpoints}


def read_state(checkpoint: Path) -> Any:
    """Return what the user saved: the state with its tensors on the CPU, or the path of the copied directory or file.

    Raises:
        UnreadableCheckpointError: The checkpoint is missing or damaged.
        StorageError: The storage cannot be read.
    """
    if (parts := _packed(checkpoint)) is not None:
        return load(io.BytesIO(parts[_STATE]), checkpoint / _STATE)
    path = _saved_path(directory := _directory(checkpoint))
    return load_file(path) if path == directory / _STATE else path


def read_random_state(checkpoint: Path) -> RandomState | None:
    """Return the random state of a checkpoint; None if none was saved.

    Raises:
        UnreadableCheckpointError: The checkpoint is missing or damaged.
        StorageError: The storage cannot be read.
    """
    state: RandomState
    if (parts := _packed(checkpoint)) is not None:
        state = load(io.BytesIO(parts[_RANDOM]), checkpoint / _RANDOM)
        return state
    directory = _directory(checkpoint)
    if _RANDOM not in _parts(directory):
        return None
    state = load_file(directory / _RANDOM)
    return state


def user_path(checkpoint: Path) -> Path:
    """Return the path of what the user saved: the file `state.pt`, or the copied directory or file.

    A packed checkpoint is extracted first. Existence and sizes of all files are checked, not their content.

    Raises:
        UnreadableCheckpointError: The checkpoint is missing or damaged.
        StorageError: The storage cannot be read, or is full.
        UnwritableError: The checkpoint cannot be extracted.
    """
    return _saved_path(extract(checkpoint))


def shown_path(checkpoint: Path) -> Path:
    """Return the path of what the user saved, for display: as `user_path`, or a path in the pack if extraction fails.

    Raises:
        UnreadableCheckpointError: The checkpoint is missing or damaged.
        StorageError: The storage cannot be read.
    """
    try:
        return user_path(checkpoint)
    except (UnwritableError, StorageError):
        if _packed(checkpoint) is None:
            raise
        return checkpoint / _STATE


def extract(checkpoint: Path) -> Path:
    """Return the directory of a checkpoint; extract it first if it is packed. Safe with concurrent calls.

    Raises:
        UnreadableCheckpointError: The pack is missing or damaged.
        StorageError: The storage cannot be read, or is full.
        UnwritableError: The checkpoint cannot be extracted.
    """
    directory, parts = _directory(checkpoint), _packed(checkpoint)
    if parts is not None:
        with _staged(directory, shared=True) as staging:
            _fill(staging, parts)
    return directory


def pack(checkpoint: Path) -> bytes:
    """Return a checkpoint as bytes, for a machine that cannot read its directory.

    Raises:
        UnreadableCheckpointError: The checkpoint is missing or damaged.
        StorageError: The storage cannot be read.
    """
    buffer = io.BytesIO()
    pack_into(buffer, checkpoint)
    return buffer.getvalue()


def pack_into(file: IO[bytes], checkpoint: Path) -> None:
    """Write the bytes that `pack` returns to a file.

    Raises:
        UnreadableCheckpointError: The checkpoint is missing or damaged.
        StorageError: The storage cannot be read.
    """
    directory, parts = _directory(checkpoint), _packed(checkpoint)
    with reading(directory), tarfile.open(fileobj=file, mode="w", dereference=True) as archive:
        if parts is not None:
            for name, content in sorted(_with_manifest(parts).items()):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        else:
            _parts(directory)
            for path in sorted(directory.iterdir()):
                archive.add(path, arcname=path.name, filter=_plain)


def unpack(packed: bytes | IO[bytes], checkpoint: Path) -> None:
    """Write the bytes that `pack` returned to the directory of a checkpoint, and replace an existing one.

    Args:
        packed: The bytes, or a file with them.
        checkpoint: The checkpoint.

    Raises:
        CheckpointError: The bytes are not a checkpoint, or contain links, devices, or paths outside of it.
        StorageError: The storage is full or failing.
    """
    with _staged(_directory(checkpoint)) as staging:
        try:
            file = io.BytesIO(packed) if isinstance(packed, bytes) else packed
            with tarfile.open(fileobj=file, mode="r:") as archive:
                archive.extractall(staging, filter=_inside)
        except tarfile.TarError as error:
            raise CheckpointError(f"the checkpoint sent for {checkpoint} can't be unpacked: {error}") from error


def _directory(checkpoint: Path) -> Path:
    return Path(addresses.path_of(os.fspath(checkpoint)))


def _packed(checkpoint: Path) -> Parts | None:
    """Return the files of a checkpoint that exists only in a pack; None if it has its own directory."""
    address = os.fspath(checkpoint)
    pack, directory = addresses.pack_of(address), Path(addresses.path_of(address))
    if pack is None or os.path.lexists(directory):
        return None
    try:
        within = directory.relative_to(addresses.study_of(address))
        return read_pack(Path(pack), os.fspath(within), (_STATE, _RANDOM))
    except UnreadableCheckpointError:
        if os.path.lexists(directory):  # it was extracted meanwhile, and the pack was deleted
            return None
        raise


@contextlib.contextmanager
def _staged(checkpoint: Path, shared: bool = False) -> Iterator[Path]:
    """Yield a temporary directory. At the end of the block it is renamed to the checkpoint's directory, replacing it.

    Args:
        checkpoint: Directory of the checkpoint.
        shared: Whether other processes may write the same checkpoint. The first process wins.
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
    return {**parts, MANIFEST: manifest_of({name: len(content) for name, content in parts.items()}).encode()}


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return a file or directory unchanged; return None, which skips the entry, for any other type."""
    return member if member.isfile() or member.isdir() else None


def _inside(member: tarfile.TarInfo, staging: str) -> tarfile.TarInfo:
    """Return a file or directory below the checkpoint's directory. `pack` writes nothing else."""
    parts = Path(member.name).parts
    if not (member.isreg() or member.isdir()) or member.issparse() or parts[:1] == ("/",) or ".." in parts:
        raise tarfile.ReadError(f"it must hold files and directories alone, got {member.name!r}")
    return tarfile.data_filter(member, staging)


def _parts(checkpoint: Path) -> Collection[str]:
    """Check that each file of a checkpoint is complete, and return the files, relative to its directory."""
    with reading(checkpoint):
        if not checkpoint.exists():
            raise UnreadableCheckpointError(_GONE.format(checkpoint))
        parts = read_parts(checkpoint)
        if _STATE in parts:
            # Only scripts that write their own report lines save no random state, and they save no state.pt.
            parts.setdefault(_RANDOM, None)
        elif not parts.keys() - {_RANDOM} and not (checkpoint / _DIRECTORY).is_dir():
            raise UnreadableCheckpointError(_GONE.format(checkpoint))
        for part, size in parts.items():
            check_part(checkpoint / part, size)
        return parts.keys()


def _saved_path(directory: Path) -> Path:
    """Return the path of what the user saved, in the directory of a checkpoint."""
    parts = _parts(directory)
    if _STATE in parts:
        return directory / _STATE
    for part in parts:
        if part.startswith(f"{_FILE}/"):
            return directory / part
    if (directory / _DIRECTORY).is_dir():  # it may be empty
        return directory / _DIRECTORY
    raise UnreadableCheckpointError(_GONE.format(directory))


def _copy(source: Path, staging: Path, directory: Path) -> None:
    """Copy the user's directory or file, so that the user may write to it again."""
    if not source.exists():
        raise CheckpointError(
            "a checkpoint that is a string is the path of a directory or file, but there is no "
            f"{str(source)!r}: write it before the report, or put a string that is a state into a dict"
        )
    if directory.resolve().is_relative_to(source.resolve()):
        raise CheckpointError(
            f"a checkpoint can't be the trial's own directory or one above it, but is {source}: "
            "write the checkpoint to a directory of its own, such as trial.directory / 'model'"
        )
    if source.is_dir():
        _copy_tree(source, staging / _DIRECTORY)
    else:
        (staging / _FILE).mkdir()
        _copy_tree(source, staging / _FILE / source.name)


def _copy_tree(source: Path, target: Path, above: frozenset[tuple[int, int]] = frozenset()) -> None:
    """Copy a directory or file recursively. Links are followed, so that the copy is self-contained.

    `shutil.copytree` would block on a FIFO, and would turn errors of the system into text.

    Args:
        source: Directory or file to copy.
        target: Path of the copy. It must not exist.
        above: The parent directories that are being copied, as (device, inode).

    Raises:
        CheckpointError: An entry is neither file nor directory, or a link is broken or circular.
        OSError: An entry cannot be read or written.
    """
    try:
        status = source.stat()
    except FileNotFoundError:
        if not source.is_symlink():
            raise
        raise _refused(source, "a link that leads nowhere") from None
    if stat.S_ISREG(status.st_mode):
        shutil.copy2(source, target)
        return
    if not stat.S_ISDIR(status.st_mode):
        raise _refused(source, _KINDS.get(stat.S_IFMT(status.st_mode), "something else"))
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        raise _refused(source, "a link to a directory that it lies in")
    target.mkdir()
    for entry in source.iterdir():
        _copy_tree(entry, target / entry.name, above | {identity})
    shutil.copystat(source, target)


def _refused(path: Path, subject: str) -> CheckpointError:
    return CheckpointError(f"a checkpoint can hold files and directories, but {path} is {subject}: take it out")
