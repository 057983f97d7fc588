"""What Ray raises, in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from ray.exceptions import RayError

from hpsearch.errors import BackendError

__all__ = ["as_backend_error", "first_line"]


@contextmanager
def as_backend_error() -> Iterator[None]:
    """Turn what Ray raises about itself into our own error; what workers raise comes as the answers of calls."""
    try:
        yield
    except (RayError, ConnectionError) as error:
        raise BackendError(
            f"Ray failed: {first_line(error)}. What had counted is in the journal; `hpsearch resume` goes on."
        ) from error


def first_line(error: BaseException) -> str:
    """Describe an error in a line; what was raised in a worker without Ray's own words."""
    error = getattr(error, "cause", None) or error
    text = str(error).strip().splitlines()
    if getattr(error, "actor_init_failed", False):  # a traceback ends the text, and what was raised follows its frames
        raised = [line for before, line in pairwise(text) if before.startswith(" ") and not line.startswith(" ")]
        return raised[-1] if raised else text[0]
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
