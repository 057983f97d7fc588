"""NCCL's C interface, through ctypes: loaded when it is first needed, and never linked against.

Signatures and numbers are those of `nccl.h`. They hold for NCCL 2.18 and newer: functions and enumerators are only ever
added, and `ncclConfig_t` carries its own size and version, so an older and shorter one is understood by newer
libraries, which fill in their defaults.

Communicators are made non-blocking (`blocking = 0`). With a blocking one, a call that waits for a dead peer never comes
back, and NCCL allows no abort while a thread is inside a call. With a non-blocking one each call returns at once,
perhaps with `IN_PROGRESS`; then `async_error` says when its work has been handed to the GPU. So a deadline can be kept
and an abort can come in between, at the cost of a thread that NCCL starts for each operation.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
from collections.abc import Callable, Mapping
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path
from typing import Any

import torch

from hpsearch_comm.cuda.nccl_candidates import VARIABLE, NcclCandidate, candidates, loaded_copies, wheel_conflict
from hpsearch_comm.cuda.nccl_wheels import installed_nccl_wheels
from hpsearch_comm.errors import NcclError

__all__ = [
    "DATATYPES",
    "INVALID_ARGUMENT",
    "INVALID_USAGE",
    "IN_PROGRESS",
    "LEAST_VERSION",
    "OPERATORS",
    "SIGNATURES",
    "SUCCESS",
    "NcclConfig",
    "NcclLibrary",
    "UniqueId",
    "load_nccl",
    "version_text",
]

LEAST_VERSION = 21800
"""2.18: the first with all of `NcclConfig`."""

SUCCESS = 0
UNHANDLED_CUDA_ERROR = 1
SYSTEM_ERROR = 2
INTERNAL_ERROR = 3
INVALID_ARGUMENT = 4
INVALID_USAGE = 5
REMOTE_ERROR = 6
IN_PROGRESS = 7

OPERATORS = {"sum": 0, "product": 1, "max": 2, "min": 3, "mean": 4}
"""`ncclRedOp_t`, by the names that users give."""

DATATYPES = {
    torch.int8: 0,
    torch.uint8: 1,
    torch.int32: 2,
    torch.uint32: 3,
    torch.int64: 4,
    torch.uint64: 5,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bfloat16: 9,
}
"""`ncclDataType_t`. NCCL has no bool, no complex numbers and no integers of 16 bits; float8 only on some GPUs."""

_UNDEFINED = -(2**31)
_MAGIC = 0xCAFEBEEF
_log = logging.getLogger(__name__)


class UniqueId(ctypes.Structure):
    """`ncclUniqueId`: where rank 0 listens while a communicator is made. It is passed by value."""

    _fields_ = (("internal", ctypes.c_ubyte * 128),)  # NCCL_UNIQUE_ID_BYTES


class NcclConfig(ctypes.Structure):
    """`ncclConfig_t` as of NCCL 2.18, with the field that newer versions have where this one would have padding."""

    _fields_ = (
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("blocking", c_int),
        ("cgaClusterSize", c_int),
        ("minCTAs", c_int),
        ("maxCTAs", c_int),
        ("netName", c_char_p),
        ("splitShare", c_int),
        ("trafficClass", c_int),
    )

    @classmethod
    def nonblocking(cls, max_ctas: int | None = None) -> NcclConfig:
        """Give the settings of a non-blocking communicator, all else as NCCL has it.

        Args:
            max_ctas: Thread blocks that a kernel of NCCL may take, at most.
        """
        return cls(
            size=ctypes.sizeof(cls),
            magic=_MAGIC,
            version=LEAST_VERSION,
            blocking=0,
            cgaClusterSize=_UNDEFINED,
            minCTAs=_UNDEFINED,
            maxCTAs=_UNDEFINED if max_ctas is None else max_ctas,
            netName=None,
            splitShare=_UNDEFINED,
            trafficClass=_UNDEFINED,
        )


_STREAM = _COMM = _POINTER = c_void_p
_TYPE = _OPERATOR = _PEER = c_int

SIGNATURES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "ncclGetVersion": (c_int, (POINTER(c_int),)),
    "ncclGetUniqueId": (c_int, (POINTER(UniqueId),)),
    "ncclGetErrorString": (c_char_p, (c_int,)),
    "ncclGetLastError": (c_char_p, (_COMM,)),
    "ncclCommInitRankConfig": (c_int, (POINTER(_COMM), c_int, UniqueId, c_int, POINTER(NcclConfig))),
    "ncclCommFinalize": (c_int, (_COMM,)),
    "ncclCommDestroy": (c_int, (_COMM,)),
    "ncclCommAbort": (c_int, (_COMM,)),
    "ncclCommGetAsyncError": (c_int, (_COMM, POINTER(c_int))),
    "ncclGroupStart": (c_int, ()),
    "ncclGroupEnd": (c_int, ()),
    "ncclAllReduce": (c_int, (_POINTER, _POINTER, c_size_t, _TYPE, _OPERATOR, _COMM, _STREAM)),
    "ncclReduceScatter": (c_int, (_POINTER, _POINTER, c_size_t, _TYPE, _OPERATOR, _COMM, _STREAM)),
    "ncclReduce": (c_int, (_POINTER, _POINTER, c_size_t, _TYPE, _OPERATOR, _PEER, _COMM, _STREAM)),
    "ncclAllGather": (c_int, (_POINTER, _POINTER, c_size_t, _TYPE, _COMM, _STREAM)),
    "ncclBroadcast": (c_int, (_POINTER, _POINTER, c_size_t, _TYPE, _PEER, _COMM, _STREAM)),
    "ncclSend": (c_int, (_POINTER, c_size_t, _TYPE, _PEER, _COMM, _STREAM)),
    "ncclRecv": (c_int, (_POINTER, c_size_t, _TYPE, _PEER, _COMM, _STREAM)),
}
"""Result and arguments of each function that is used, as `nccl.h` declares them."""

_ADVICE = {
    UNHANDLED_CUDA_ERROR: "look at nvidia-smi: the driver must be new enough for this NCCL, the GPU visible",
    SYSTEM_ERROR: "a system call failed: memory, file descriptors or the network; set NCCL_DEBUG=WARN to see which",
    INTERNAL_ERROR: "set NCCL_DEBUG=INFO to see where it went wrong",
    INVALID_ARGUMENT: "set NCCL_DEBUG=WARN to see which argument",
    INVALID_USAGE: "set NCCL_DEBUG=WARN to see what was wrong; every rank must run the same NCCL, on a GPU of its own",
    REMOTE_ERROR: "a peer has ended or can't be reached: look at its output, and at NCCL_SOCKET_IFNAME",
}


class NcclLibrary:
    """A loaded copy of NCCL. Its functions are attributes with their C names; all of them release the GIL.

    Args:
        library: What `ctypes.CDLL` gave.
        path: The file, for errors.

    Raises:
        NcclError: It is too old, or it lacks a function.
    """

    def __init__(self, library: ctypes.CDLL, path: str) -> None:
        self.path = path
        self._library = library
        for name, (result, arguments) in SIGNATURES.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                raise self._too_old(f"but it has no function {name}") from None
            function.restype = result
            function.argtypes = arguments
        number = c_int()
        self.check("ncclGetVersion", self.ncclGetVersion(byref(number)))
        self.version = number.value
        """Such as 23203 for 2.32.3."""
        if self.version < LEAST_VERSION:
            raise self._too_old(f"got {version_text(self.version)}")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        # ctypes looks for any name; those without a signature would be called with wrong types.
        if name not in SIGNATURES:
            raise AttributeError(f"{name} must be one of the functions in SIGNATURES")
        function: Callable[..., Any] = getattr(self._library, name)
        return function

    def unique_id(self) -> bytes:
        """Make the 128 bytes that the ranks of one communicator share; rank 0 listens for the others from now on."""
        identity = UniqueId()
        self.check("ncclGetUniqueId", self.ncclGetUniqueId(byref(identity)))
        return bytes(identity)

    def init_rank(self, size: int, identity: bytes, rank: int, max_ctas: int | None = None) -> int:
        """Begin to make a non-blocking communicator on the current CUDA device.

        Returns:
            The communicator. `async_error` is IN_PROGRESS until all ranks have come.
        """
        comm = c_void_p()
        config = NcclConfig.nonblocking(max_ctas)
        shared = UniqueId.from_buffer_copy(identity)
        result = self.ncclCommInitRankConfig(byref(comm), size, shared, rank, byref(config))
        if result in (SUCCESS, IN_PROGRESS) and comm.value is not None:
            return comm.value
        error = self.error("ncclCommInitRankConfig", result)
        if comm.value is not None:
            self.ncclCommAbort(comm.value)
        else:
            # Where it finds no device it returns without closing the group that it opened, and each later call of
            # this thread would wait for a group's end. Where no group is open this does nothing.
            self.ncclGroupEnd()
        raise error

    def async_error(self, comm: int) -> int:
        """Give the state of a communicator: SUCCESS, IN_PROGRESS, or what went wrong."""
        state = c_int()
        result = self.ncclCommGetAsyncError(comm, byref(state))
        return state.value if result == SUCCESS else result

    def _too_old(self, got: str) -> NcclError:
        return NcclError(
            f"{self.path} must be NCCL {version_text(LEAST_VERSION)} or newer, {got}: install a newer nvidia-nccl "
            f"wheel, or name another file with {VARIABLE}"
        )

    def check(self, function: str, result: int) -> None:
        """Raise NcclError unless a function succeeded, or is on its way to."""
        if result not in (SUCCESS, IN_PROGRESS):
            raise self.error(function, result)

    def error(self, function: str, result: int, where: str = "") -> NcclError:
        """Make the error of a function that failed: what it was, what NCCL says to it, and what to do."""
        text = (self.ncclGetErrorString(result) or b"").decode(errors="replace").partition(" (run with")[0]
        last = (self.ncclGetLastError(None) or b"").decode(errors="replace").strip()
        said = f"; NCCL says: {last}" if last else ""
        place = f" in {where}" if where else ""
        advice = _ADVICE.get(result, "set NCCL_DEBUG=WARN to see more")
        return NcclError(f"{function} failed{place}: {text} ({result}){said}: {advice}")


def version_text(version: int) -> str:
    """Write NCCL's version as people do: 2.32.3 for 23203."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def load_nccl(environ: Mapping[str, str] | None = None) -> NcclLibrary:
    """Find and load NCCL, once for the process.

    Args:
        environ: In place of the process's environment variables; `HPSEARCH_COMM_NCCL` names a file to use.

    Raises:
        NcclError: There is none, or none that can be used; it says what was tried.
    """
    environ = os.environ if environ is None else environ
    wanted = environ.get(VARIABLE, "")
    with _lock:
        known = _loaded.get(wanted)
        if known is None:
            known = _loaded[wanted] = _load(environ)
        return known


_lock = threading.Lock()
_loaded: dict[str, NcclLibrary] = {}


def _load(environ: Mapping[str, str]) -> NcclLibrary:
    wheels = installed_nccl_wheels()
    loaded = loaded_copies()
    found = candidates(environ, loaded, wheels, torch.version.cuda, Path(torch.__file__).parent)
    failures = []
    conflict = wheel_conflict(wheels)
    for candidate in found:
        try:
            library = NcclLibrary(_open(candidate, loaded), candidate.path)
        except (OSError, NcclError) as error:
            failures.append(f"{candidate.path} ({candidate.origin}): {error}")
            continue
        _log.debug("NCCL %s from %s (%s)", version_text(library.version), candidate.path, candidate.origin)
        if conflict is not None and any(candidate.path.endswith(file) for wheel in wheels for file in wheel.libraries):
            _log.warning("%s. Loaded now: NCCL %s", conflict, version_text(library.version))
        return library
    tried = "; ".join(failures)
    cuda = (torch.version.cuda or "12").partition(".")[0]
    advice = conflict or f"pip install nvidia-nccl-cu{cuda}, or name the file with {VARIABLE}"
    raise NcclError(f"CUDA tensors go through NCCL, but it couldn't be loaded. Tried {tried}. {advice}")


def _open(candidate: NcclCandidate, loaded: tuple[str, ...]) -> ctypes.CDLL:
    mode = os.RTLD_LOCAL
    if loaded and not any(_same_file(candidate.path, path) for path in loaded):
        # A second copy beside another. NCCL calls its own functions through the dynamic linker, which must not give it
        # those of the first copy, should that one's be visible to all.
        mode |= os.RTLD_DEEPBIND
    return ctypes.CDLL(candidate.path, mode=mode)


def _same_file(first: str, second: str) -> bool:
    with contextlib.suppress(OSError):
        return Path(first).samefile(second)
    return first == second or "/" not in first
