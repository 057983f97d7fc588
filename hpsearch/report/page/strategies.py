"""What each strategy gave, where a sweep searched over them."""

from __future__ import annotations

from hpsearch.report.groups import by_strategy
from hpsearch.report.page.section import Section, Table
from hpsearch.report.study import Study

__all__ = ["strategies"]


def strategies(study: Study) -> Section | None:
    """Compare them in a table."""
    columns = by_strategy(study)
    if not columns or not columns[0].cells:
        return None
    told = ["How the workers of a trial trained it together; the strategy of the best trial comes first."]
    if study.sweep.strategies.asynchronous:
        told.append("A trial of an asynchronous one gives other numbers when it runs once more.")
    rows = list(zip(*(column.cells for column in columns), strict=True))
    return Section("Strategies", told, table=Table([column.head for column in columns], rows))
