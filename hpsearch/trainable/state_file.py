"""Writing and reading of states with `torch.save` and `torch.load(weights_only=True)`."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import errno
import fractions
import functools
import inspect
import io
import os
import random
import sys
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from hpsearch.errors import CheckpointError, UnreadableCheckpointError
from hpsearch.trainable.storage import os_error_behind, reading

_LARGEST_PLAIN = 2**63
"""Integers from this size on are pickled in another form."""


def save_state(state: object, target: Path | io.BytesIO) -> None:
    """Save a state, and check that it can be read.

    Args:
        state: The state that the user passed.
        target: A file or a buffer.

    Raises:
        CheckpointError: The state cannot be read with `weights_only=True`; the message names the entry.
        OSError: The file cannot be written.
    """
    import torch

    if callable(getattr(state, "state_dict", None)):
        raise CheckpointError(
            f"a checkpoint must be tensors and plain containers, not a {type(state).__name__}: "
            "pass checkpoint=model.state_dict (no parentheses: it's called only when it is needed)"
        )
    outer = sys.exception()
    try:
        dump(state, target)
        if not is_plain(state):  # plain states need no check, which takes as long as writing
            if isinstance(target, Path):
                # With mmap, a large state is checked without copying its tensors.
                torch.load(target, weights_only=True, mmap=True, map_location="cpu")
            else:
                target.seek(0)
                torch.load(target, weights_only=True, map_location="cpu")
    except Exception as error:  # an object's `__reduce__` may raise any exception
        if (os_error := os_error_behind(error, outer)) is not None:
            raise os_error from None
        refuse_unreadable(state, error)


def dump(state: object, target: Path | io.BytesIO) -> None:
    """Save a state without checking that it can be read.

    Raises:
        OSError: The file cannot be written.
    """
    import torch

    outer = sys.exception()
    try:
        with _checksums():
            if isinstance(target, Path):
                with target.open("wb") as file:  # with a path, torch.save takes five times as long
                    torch.save(state, file)
            else:
                torch.save(state, target)
    except RuntimeError as error:  # torch may raise it on top of an OSError
        if (os_error := os_error_behind(error, outer)) is not None:
            raise os_error from None
        raise


@contextmanager
def _checksums() -> Iterator[None]:
    """Make torch.save write checksums, which `load_file` verifies, even if the user's code disabled them."""
    import torch

    previous = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(True)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(previous)


def load_file(path: Path) -> Any:
    """Return the state in a file, with its tensors on the CPU, after verifying its checksums.

    torch.save writes a checksum of each tensor, but torch.load does not verify it. Verification takes 25 to 50 % of the
    time of torch.load.

    Raises:
        UnreadableCheckpointError: The file is missing or damaged.
        StorageError: The storage cannot be read.
    """
    with reading(path.parent), path.open("rb") as file:
        state = load(file, path)  # first, as zipfile reports a failing storage as damage
        if (damage := _damage(file)) is not None:
            raise UnreadableCheckpointError(f"the checkpoint {path} is damaged: {damage}; an earlier one may be whole")
        return state


def _damage(file: BinaryIO) -> str | None:
    """Verify the checksums of a file that torch.save wrote; return a description of the damage, or None."""
    outer = sys.exception()
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
    except MemoryError:
        raise
    except Exception as error:  # zipfile raises BadZipFile, zlib.error, struct.error and others
        os_error = os_error_behind(error, outer)
        if os_error is not None and os_error.errno != errno.EINVAL:  # EINVAL: a damaged archive has negative offsets
            raise os_error from error
        return str(error)
    return None if damaged is None else f"{damaged} in it has another checksum than what was written"


def load(file: BinaryIO, path: Path) -> Any:
    """Return the state in an open file or a buffer, with its tensors on the CPU.

    Args:
        file: The file or buffer.
        path: Its path, for errors.

    Raises:
        UnreadableCheckpointError: The file is damaged.
        OSError: The file cannot be read.
    """
    import torch

    outer = sys.exception()
    try:
        # To the CPU: the device that saved the state may not exist here. load_state_dict copies to the model's device.
        return torch.load(file, weights_only=True, map_location="cpu")
    except MemoryError:
        raise  # the file may be intact
    except Exception as error:  # torch.load raises RuntimeError, UnpicklingError, EOFError and others
        if (os_error := os_error_behind(error, outer)) is not None:
            raise os_error from error
        line = str(error).strip().partition("\n")[0]
        raise UnreadableCheckpointError(f"the checkpoint {path} can't be read: {line}") from error


def is_plain(state: object) -> bool:
    """Return whether a state contains only tensors, numbers, strings, and lists, tuples and dictionaries of these.

    `torch.load(weights_only=True)` can read all of these, and only some other types.
    """
    try:
        return _plain(state, set())
    except RecursionError:  # nested too deeply
        return False


def _all_plain(values: Iterable[Any], above: set[int]) -> bool:
    return all(_plain(value, above) for value in values)


def _plain(value: Any, above: set[int]) -> bool:
    """Return whether a value is plain. A container that contains itself is not.

    Args:
        value: The value.
        above: The ids of the containers around it.
    """
    kind = type(value)
    if kind in (float, bool, str, type(None)):
        return True
    if kind is int:
        return bool(-_LARGEST_PLAIN <= value < _LARGEST_PLAIN)
    if kind not in (dict, OrderedDict, list, tuple):
        return _is_plain_tensor(value)
    if id(value) in above:
        return False
    within = above | {id(value)}
    if kind in (list, tuple):
        return _all_plain(value, within)
    # The state_dict of a module has the attribute _metadata.
    attributes = vars(value).values() if kind is OrderedDict else ()
    return _all_plain(value, within) and _all_plain(value.values(), within) and _all_plain(attributes, within)


def _is_plain_tensor(value: Any) -> bool:
    import torch

    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and not vars(value)
        and value.layout is torch.strided
        and not value.is_neg()
        and value.device.type in ("cpu", "cuda")
        and value.dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool)
    )


_MAX_DEPTH = 50


def refuse_unreadable(state: object, cause: Exception) -> NoReturn:
    """Raise the error for a state that could not be saved and read back.

    In each container, searches for the first entry that cannot be saved and read back alone, and descends into it. The
    search is slow, but it only runs when a checkpoint is refused.

    Raises:
        CheckpointError: Always. The message names the entry, such as `state["scaler"]`, its type, and the fix.
    """
    path, entry = _offender("state", state, 0)
    raise CheckpointError(
        f"{path}: {_type_name(entry)} can't be read back with weights_only=True; {_advice(entry)}"
    ) from cause


def _offender(path: str, value: object, depth: int) -> tuple[str, object]:
    for child_path, child in _children(path, value) if depth < _MAX_DEPTH else ():
        if not _is_readable(child):
            return _offender(child_path, child, depth + 1)
    return path, value  # not a container, or a container of a refused type with readable entries


def _children(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield f"a key of {path}", key
            yield f"{path}[{_quoted(key)}]", entry
    elif isinstance(value, (list, tuple)):
        for index, entry in enumerate(value):
            yield f"{path}[{index}]", entry
    elif isinstance(value, (set, frozenset)):
        for entry in value:
            yield f"an entry of {path}", entry


def _is_readable(value: object) -> bool:
    import torch

    if value is None or type(value) in (bool, int, float, str, torch.Tensor):
        return True
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except Exception:  # the object's `__reduce__` may raise any exception
        return False
    return True


def _quoted(key: object) -> str:
    return f'"{key}"' if isinstance(key, str) else repr(key)


def _type_name(entry: object) -> str:
    """Return the public name of a type, without private modules: `sklearn.preprocessing.StandardScaler`."""
    kind = type(entry)
    modules = [part for part in kind.__module__.split(".") if not part.startswith("_")]
    if modules in ([], ["builtins"]):
        return kind.__qualname__
    return ".".join([*modules, kind.__qualname__])


def _advice(entry: object) -> str:
    """Return advice on what to save instead of an entry, such as a conversion that can be read back."""
    import torch

    for form in _forms(entry):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns about memory that is not writable
                if _is_readable(eval(form, {"dataclasses": dataclasses, "torch": torch, "value": entry})):
                    return f"save {form}"
        except Exception:  # the conversion failed
            continue
    if isinstance(entry, type):
        return "save its name"
    if inspect.isroutine(entry) or isinstance(entry, functools.partial):
        return "save what it computes from, not the function"
    return "save its numbers as tensors or lists, or write a directory"


def _forms(entry: object) -> Sequence[str]:
    """Return the possible conversions of an entry's type, as code."""
    import numpy
    import torch

    is_date = isinstance(entry, numpy.ndarray) and entry.dtype.kind in "mM"
    dates = ('torch.from_numpy(value.view("int64"))',) if is_date else ()
    conversions: tuple[tuple[Any, Sequence[str]], ...] = (
        (numpy.ma.MaskedArray, ("value.tolist()",)),  # with None where it is masked
        (
            numpy.ndarray,
            (
                "torch.from_numpy(value)",
                "torch.from_numpy(value.copy())",
                *dates,
                "value.tolist()",
                'torch.from_numpy(value.astype("float64"))',
            ),
        ),
        (numpy.generic, ("value.item()", "str(value)")),
        (torch.Generator, ("value.get_state()",)),
        (numpy.random.Generator, ("value.bit_generator.state",)),
        (random.Random, ("value.getstate()",)),
        (torch.Tensor, ("value.detach().as_subclass(torch.Tensor)",)),
        (enum.Enum, ("value.value",)),
        (datetime.date | datetime.time, ("value.isoformat()",)),
        (os.PathLike | decimal.Decimal | fractions.Fraction, ("str(value)",)),
        (Mapping, ("dict(value)",)),
        (tuple, ("tuple(value)",)),
        (list | collections.deque, ("list(value)",)),
    )
    others = ("dataclasses.asdict(value)", "value.state_dict()")
    return next((forms for kinds, forms in conversions if isinstance(entry, kinds)), others)
