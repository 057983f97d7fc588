"""Sleep until a word of shared memory changes: Linux's futex, called through ctypes.

A wait releases the interpreter lock. A wake keeps it: the call returns within a microsecond, and passing the lock on
would take longer. Words are 32 bits, aligned, and shared between processes.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from functools import partial

from hpsearch_comm.errors import ConfigurationError

ORDERED = platform.machine() in ("x86_64", "AMD64")
"""Whether other cores see plain stores in program order. On other machines, writer and reader must call an `adder`,
which is a full memory barrier, between their accesses to the data and to the word that announces the data."""

_NUMBERS = {
    "x86_64": 202,
    "AMD64": 202,
    "aarch64": 98,
    "riscv64": 98,
    "loongarch64": 98,
    "ppc64le": 221,
    "s390x": 238,
}
_WAIT, _WAKE, _WAKE_OP = 0, 1, 5
_EVERYBODY = 0x7FFFFFFF
_ADD = 1  # the operation of FUTEX_WAKE_OP

_keeping_lock = ctypes.PyDLL(None).syscall
_releasing_lock = ctypes.CDLL(None).syscall
_keeping_lock.restype = _releasing_lock.restype = ctypes.c_long
give_way: Callable[[], int] = ctypes.CDLL(None).sched_yield
"""Yields the core and the interpreter lock to other threads that are ready."""

_number = _NUMBERS.get(platform.machine(), -1)


class Timespec(ctypes.Structure):
    """C's struct timespec."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def wait(address: int, expected: int, seconds: float) -> None:
    """Sleep on a word until it is woken, at most for `seconds`. Return at once if the word isn't `expected`.

    It may also return for no reason: check the word again.
    """
    span = Timespec(int(seconds), int(seconds % 1 * 1e9))
    _releasing_lock(
        ctypes.c_long(_number),
        ctypes.c_void_p(address),
        ctypes.c_long(_WAIT),
        ctypes.c_uint(expected),
        ctypes.byref(span),
        ctypes.c_long(0),
        ctypes.c_long(0),
    )


def waker(address: int) -> Callable[[], object]:
    """Return a function that wakes all threads that wait for the word."""
    return _call(_WAKE, address, _EVERYBODY, 0, 0, 0)


def adder(address: int, amount: int) -> Callable[[], object]:
    """Return a function that atomically adds to a word that nobody waits for, and so is a full memory barrier."""
    return _call(_WAKE_OP, address, 1, 0, address, _ADD << 28 | amount << 12)


def check_works(address: int, words: memoryview, index: int) -> None:
    """Check that futexes work, on a word that nobody else uses.

    Raises:
        ConfigurationError: This machine or sandbox has no futexes, or we can't call them.
    """
    before = words[index]
    if _number >= 0:
        adder(address, 1)()
    if words[index] != before + 1:
        raise ConfigurationError(
            f"shared memory needs the futex system call, which doesn't work here (machine {platform.machine()}): "
            'make the group with transport="tcp"'
        )


def _call(operation: int, address: int, value: int, second_value: int, second: int, third: int) -> Callable[[], object]:
    """Prepare a system call. Converting the arguments for each call would take as long as the call itself."""
    numbers = (_number, address, operation, value, second_value, second, third)
    return partial(_keeping_lock, *(ctypes.c_long(number) for number in numbers))
