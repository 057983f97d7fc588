"""POSIX robust mutexes in shared memory, through ctypes: the next thread to lock one learns that its holder has died.

The kernel keeps a list of the mutexes that a thread holds, and marks them when the thread ends for any reason. So a
killed process never leaves others waiting.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

from hpsearch_comm.errors import CommError

MUTEX_BYTES = 48
"""Maximum size of the C library's pthread_mutex_t, on the machines that torch runs on."""

_PROCESS_SHARED = _ROBUST = 1  # PTHREAD_PROCESS_SHARED and PTHREAD_MUTEX_ROBUST, of glibc and of musl
_ATTRIBUTE_BYTES = 64
_MONOTONIC = 1  # CLOCK_MONOTONIC

_keeping_lock: Any = ctypes.PyDLL(None)
_releasing_lock: Any = ctypes.CDLL(None)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def make_mutex(address: int) -> None:
    """Create an unlocked mutex in memory that nobody uses yet.

    Raises:
        CommError: The C library has no robust mutexes, or none with a timeout.
    """
    attributes = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
    try:
        codes = [
            _keeping_lock.pthread_mutexattr_init(attributes),
            _keeping_lock.pthread_mutexattr_setpshared(attributes, _PROCESS_SHARED),
            _keeping_lock.pthread_mutexattr_setrobust(attributes, _ROBUST),
            _keeping_lock.pthread_mutex_init(ctypes.c_void_p(address), attributes),
        ]
        missing = "" if _releasing_lock.pthread_mutex_clocklock else "pthread_mutex_clocklock"
    except AttributeError as error:
        codes, missing = [], str(error)
    if missing or any(codes):
        why = missing or ", ".join(os.strerror(code) for code in codes if code)
        raise CommError(
            f"locks in shared memory need POSIX's robust mutexes, which can't be had here ({why}): the C library must "
            "be glibc 2.30 or newer"
        )


def try_lock(address: int) -> int:
    """Lock the mutex if it is free. Return 0, EBUSY, ENOTRECOVERABLE, or EOWNERDEAD, which also locks it."""
    return int(_keeping_lock.pthread_mutex_trylock(ctypes.c_void_p(address)))


def lock(address: int, seconds: float) -> int:
    """Lock the mutex, waiting at most for `seconds`. Return the same as `try_lock`, but ETIMEDOUT instead of EBUSY."""
    until = time.clock_gettime(_MONOTONIC) + seconds
    span = _Timespec(int(until), int(until % 1 * 1e9))
    return int(
        _releasing_lock.pthread_mutex_clocklock(ctypes.c_void_p(address), ctypes.c_int(_MONOTONIC), ctypes.byref(span))
    )


def give_back(address: int) -> None:
    """Unlock the mutex. After EOWNERDEAD it can't be locked again: all calls return ENOTRECOVERABLE from then on."""
    code = _keeping_lock.pthread_mutex_unlock(ctypes.c_void_p(address))
    assert code == 0, os.strerror(code)
