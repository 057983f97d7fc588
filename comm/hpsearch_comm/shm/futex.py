"""Sleeping until a word of shared memory changes: Linux's futex, called through ctypes.

A wait lets go of the interpreter lock. A wake keeps it: the call returns within a microsecond, and handing the lock
over would take longer. Words are 32 bits, aligned, and shared between processes.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from functools import partial

from hpsearch_comm.errors import ConfigurationError

ORDERED = platform.machine() in ("x86_64", "AMD64")
"""Whether plain stores are seen by other cores in the order in which they were made. Elsewhere an `adder`, which the
kernel carries out as a full barrier, must stand between the data and the word that announces them, on both sides."""

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
_ADD, _EQUAL = 1, 0  # the operation and the comparison of FUTEX_WAKE_OP

_keeping_lock = ctypes.PyDLL(None).syscall
_releasing_lock = ctypes.CDLL(None).syscall
_keeping_lock.restype = _releasing_lock.restype = ctypes.c_long
give_way: Callable[[], int] = ctypes.CDLL(None).sched_yield
"""Yields the core and the interpreter to other threads that are ready."""

_number = _NUMBERS.get(platform.machine(), -1)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def wait(address: int, expected: int, seconds: float) -> None:
    """Sleep until the word is woken, unless it differs from `expected` already; for so many seconds at most.

    It may also return for no reason: look at the word again.
    """
    span = _Timespec(int(seconds), int(seconds % 1 * 1e9))
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
    """Return a function that wakes everybody who waits for the word."""
    return _call(_WAKE, address, _EVERYBODY, 0, 0, 0)


def adder(address: int, amount: int, wake_if: int, quiet: int) -> Callable[[], object]:
    """Return a function that adds to the word as one indivisible step, which is a full memory barrier as well.

    Args:
        address: Of the word.
        amount: What to add, from -2048 to 2047.
        wake_if: Everybody who waits for the word is woken if this was its value before; from 0 to 2047.
        quiet: Address of a word that nobody waits for; the kernel wants one.
    """
    encoded = _ADD << 28 | _EQUAL << 24 | (amount & 0xFFF) << 12 | wake_if
    return _call(_WAKE_OP, quiet, 1, _EVERYBODY, address, encoded)


def ringer(address: int) -> Callable[[], object]:
    """Return a function that adds 1 to the word and wakes everybody who waits for it."""
    return _call(_WAKE_OP, address, _EVERYBODY, 0, address, _ADD << 28 | _EQUAL << 24 | 1 << 12)


def check_works(address: int, words: memoryview, index: int) -> None:
    """Try it on a word that nobody else uses.

    Raises:
        ConfigurationError: This machine or sandbox has no futexes that we know how to call.
    """
    before = words[index]
    if _number >= 0:
        ringer(address)()
    if words[index] != before + 1:
        raise ConfigurationError(
            f"shared memory needs the futex system call, which doesn't work here (machine {platform.machine()}): "
            'make the group with transport="tcp"'
        )


def _call(operation: int, address: int, value: int, second_value: int, second: int, third: int) -> Callable[[], object]:
    """Prepare a system call: converting the arguments anew each time would take as long as the call itself."""
    numbers = (_number, address, operation, value, second_value, second, third)
    return partial(_keeping_lock, *(ctypes.c_long(number) for number in numbers))
