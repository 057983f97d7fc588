"""Families: suites of different kinds of tasks. Methods are compared in each family, and by mean rank over all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from hpsearch.benchmark.report import Row, differences, over_tasks, shown_interval
from hpsearch.benchmark.rows import RunRow, Values, hits_of, runs_of

FEWEST_TASKS = 6
"""Families with fewer tasks (in both halves together) are reported, but don't count in the ranks."""


@dataclass(frozen=True)
class Family:
    """The rows of a suite of tasks of one kind."""

    rows: Sequence[RunRow]
    """At least one."""
    methods: Sequence[str]
    """The methods that are compared; the first is the base of the differences."""
    workers: int

    @property
    def name(self) -> str:
        """Name of the suite."""
        return self.rows[0].family

    @property
    def judged(self) -> bool:
        """Whether the family counts in the ranks."""
        return self.rows[0].tasks >= FEWEST_TASKS

    @property
    def budgets(self) -> Sequence[float]:
        """Budgets in full trainings."""
        return list(self.rows[0].hits)

    @cached_property
    def means(self) -> dict[str, Values]:
        """Each method with runs to their hits, averaged over the budgets."""
        means = {method: hits_of(runs_of(self.rows, method, self.workers)) for method in self.methods}
        return {method: values for method, values in means.items() if values}

    def hits(self, method: str, budget: float) -> float:
        """Return a method's mean hits over the tasks."""
        return over_tasks(hits_of(runs_of(self.rows, method, self.workers), budget)).value


def ranks(families: Sequence[Family]) -> dict[str, float]:
    """Return each method's mean rank over the judged families; 1 is the best.

    Methods are ranked by their hits, averaged over the budgets. Methods with equal hits share the mean of their ranks.
    A method without runs on one of the judged families has no rank.
    """
    by_method: dict[str, list[float]] = defaultdict(list)
    judged = [family for family in families if family.judged]
    everywhere = (
        [method for method in judged[0].means if all(method in each.means for each in judged)] if judged else []
    )
    for family in judged:
        # Rounded, so that sums in another order are equal.
        hits = {method: round(over_tasks(family.means[method]).value, 9) for method in everywhere}
        for method, value in hits.items():
            better = sum(other > value for other in hits.values())
            equal = sum(other == value for other in hits.values())
            by_method[method].append(better + (equal + 1) / 2)
    return {method: sum(values) / len(values) for method, values in by_method.items()}


def family_rows(families: Sequence[Family]) -> Iterator[Row]:
    """Yield the table of families: hits by the budgets, paired differences from the first method, and mean ranks.

    Methods are sorted by mean rank.
    """
    names = []
    for family in families:
        tasks = len({row.task for row in family.rows})
        names.append(f"{family.name} ({tasks})" + ("" if family.judged else "*"))
    yield ("method", *(cell for name in names for cell in (name, "difference")), "mean rank")
    by_rank = ranks(families)
    methods = list(dict.fromkeys(method for family in families for method in family.methods))
    for method in sorted(methods, key=lambda method: by_rank.get(method, inf)):
        cells = []
        for family in families:
            has_runs, base = method in family.means, family.methods[0]
            cells.append("/".join(f"{family.hits(method, each):.2f}" for each in family.budgets) if has_runs else "")
            is_compared = has_runs and method != base
            gain = differences(family.means[method], family.means.get(base, {})) if is_compared else {}
            cells.append(shown_interval(gain, "+.2f"))
        yield (method, *cells, f"{by_rank[method]:.1f}" if method in by_rank else "")
