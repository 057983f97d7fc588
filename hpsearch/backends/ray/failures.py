"""Translate Ray's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from ray.exceptions import RayError

from hpsearch.errors import BackendError


@contextmanager
def as_backend_error() -> Iterator[None]:
    """Raise Ray's own errors as `BackendError`; workers' errors are results of calls."""
    try:
        yield
    except (RayError, ConnectionError) as error:
        raise BackendError(
            f"Ray failed: {first_line(error)}. All results are in the journal; `hpsearch resume` continues."
        ) from error


def first_line(error: BaseException) -> str:
    """Describe an error in one line, without the text that Ray adds to a worker's error."""
    error = getattr(error, "cause", None) or error
    text = str(error).strip().splitlines()
    if getattr(error, "actor_init_failed", False):  # the text ends with a traceback: the exception follows its frames
        raised = [line for before, line in pairwise(text) if before.startswith(" ") and not line.startswith(" ")]
        return raised[-1] if raised else text[0]
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
