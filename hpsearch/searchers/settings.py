"""The section `search` of a sweep: how suggestions are requested from a searcher that learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from hpsearch.config.checks import InvalidKey, nearest
from hpsearch.config.settings import AtLeast, Count, Settings, settings_fields

__all__ = ["Search", "options_as"]


@dataclass(frozen=True)
class Search(Settings):
    """How suggestions are requested from a searcher that learns."""

    ahead: bool = True
    """The next suggestion is computed before it is needed. If none is ready when a worker is free, the worker runs a
    random configuration (origin `stand_in`). `false`: the worker waits for its suggestion."""
    lag: Count | None = None
    """Suggestion n waits for, and uses, the results of the trials up to n - `lag`, and no others. The table is then the
    same on any number of workers; at most `lag` of them have new trials."""
    startup: Annotated[int, AtLeast(0)] | None = None
    """Random trials before the model is used, including `points_to_try`; none: the method's default."""
    options: Mapping[str, Any] | None = None
    """Options of the [method](methods.md); of one from Optuna, the arguments of its sampler."""


S = TypeVar("S", bound=Settings)


def options_as(settings: type[S], search: Search, method: str) -> S:
    """Return the options of a method as its settings.

    Args:
        settings: Its fields are the known options; each has a default.
        search: The section of the sweep.
        method: The method that takes the options, for messages.

    Raises:
        InvalidKey: There is an unknown option, or one has an invalid value.
    """
    known, options = settings_fields(settings), search.options or {}
    for name in options:
        if name not in known:
            problem = f"isn't an option of {method}, which takes {', '.join(known)}"
            raise InvalidKey(("search", "options", name), problem, nearest(name, known))
    try:
        return settings(**options)
    except InvalidKey as error:
        raise error.under(("search", "options")) from None
