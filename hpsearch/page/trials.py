"""Tables of trials: values and reasons of their ends, comparison of strategies, and failures by cause."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hpsearch.page.endings import endings_of
from hpsearch.page.html import Section, SectionTable
from hpsearch.results.study import Study
from hpsearch.tables.formats import param_cells
from hpsearch.tables.groups import by_strategy
from hpsearch.tables.outline import outline
from hpsearch.tables.repeats import lead_text
from hpsearch.tables.status import failures_by_kind
from hpsearch.tables.trial_columns import OWN, SHOWN, goal_columns, repeat_columns
from hpsearch.tables.wording import counted, first_of
from hpsearch.trial import Params, TrialRow

_MOST_ROWS = 20
_MOST_KINDS = 10
_MOST_NAMED = 20


def trials(study: Study) -> Section | None:
    """Show the best trials, with their parameters and why they ended."""
    rows, ranked = study.configurations or study.trials, (study.configurations or study.ranked)[:_MOST_ROWS]
    if not ranked:
        return None
    table, constants = table_of(study, ranked)
    if study.configurations:
        shown = f"The {len(ranked)} best of {len(rows):,} configurations" if len(rows) > len(ranked) else "All of them"
        lead = lead_text(study)
        best = [f"In the lead is {lead}."] if lead else []
        paragraphs = [f"{shown}, the best first, each by its last trial and over its repeats.", *best, *constants]
        return Section("Configurations", paragraphs, table=table)
    if not any(row.values for row in ranked):
        summary = (
            f"The first {len(ranked)} of {len(rows):,}; none has a value." if len(rows) > len(ranked) else "All trials."
        )
    else:
        is_part = len(rows) > len(ranked)
        summary = f"The {len(ranked)} best of {len(rows):,}." if is_part else "All trials, the best first."
    return Section("Trials", [summary, *constants], table=table)


def table_of(study: Study, rows: Sequence[TrialRow], checkpoints: bool = False) -> tuple[SectionTable, list[str]]:
    """Return a table of trials, and notes on constant columns and the checkpoints' folder, which it leaves out.

    Args:
        study: The trials' study.
        rows: The trials, at least one.
        checkpoints: Whether to show the paths of checkpoints.
    """
    objective, endings = study.sweep.objective, endings_of(study)
    points = [outline(row.params, study.sweep.parameters) for row in rows]
    names = list(dict.fromkeys(name for point in points for name in point))
    params = {name: param_cells(name, points) for name in names}
    fixed = [name for name in names if len(rows) > 1 and _is_same(name, points)]
    first = [OWN["trial"], OWN["state"], OWN["iterations"], *goal_columns(objective), *repeat_columns(rows, objective)]
    columns: list[tuple[str, Sequence[str]]] = [(column.head, column.cells(rows)) for column in first]
    columns += [(name, cells) for name, cells in params.items() if name not in fixed]
    if any(row.asynchronous for row in rows):
        columns.append(("asynchronous", SHOWN["asynchronous"].cells(rows)))
    if endings.brackets:
        columns.append(("bracket", [endings.bracket(row) for row in rows]))
    columns.append(("why it ended", [endings.why(row) for row in rows]))
    notes = (
        [f"The same in all of these: {', '.join(f'{name} = {params[name][0]}' for name in fixed)}."] if fixed else []
    )
    if checkpoints:
        paths = [study.checkpoint_path(row) for row in rows]
        saved = ["" if path is None else str(path.relative_to(study.directory)) for path in paths]
        columns.append(("checkpoint", saved))
        notes.append(f"Checkpoints lie in {study.directory}." if any(saved) else "None of these has a checkpoint.")
    head, cells = zip(*columns, strict=True)
    return SectionTable(head, list(zip(*cells, strict=True))), notes


def _is_same(name: str, points: Sequence[Params]) -> bool:
    """Return whether all values of a param are equal. Cells aren't compared, as different values may look equal."""
    return len({json.dumps(point[name]) if name in point else None for point in points}) == 1


def strategies(study: Study) -> Section | None:
    """Return a table that compares the parallel strategies."""
    columns = by_strategy(study)
    if not columns or not columns[0].cells:
        return None
    paragraphs = ["How the workers of a trial trained it together; the strategy of the best trial comes first."]
    if study.sweep.strategies.asynchronous:
        paragraphs.append("A trial of an asynchronous one gives other numbers when it runs once more.")
    rows = list(zip(*(column.cells for column in columns), strict=True))
    return Section("Strategies", paragraphs, table=SectionTable([column.head for column in columns], rows))


def failures(study: Study) -> Section | None:
    """Show each kind of failure once with its trials, and a traceback of the most frequent kind."""
    kinds = sorted(failures_by_kind(study).values(), key=lambda kind: -len(kind[1]))
    if not kinds:
        return None
    rows = []
    for first, struck in kinds[:_MOST_KINDS]:
        rows.append((str(len(struck)), first.kind, first.message, first_of(struck, _MOST_NAMED)))
    failed = sum(len(struck) for _, struck in kinds)
    paragraphs = [
        f"{counted(failed, 'trial')} failed, of {counted(len(kinds), 'cause')}. The most frequent one's traceback:"
    ]
    table = SectionTable(("trials", "what", "message", "which"), rows)
    return Section("Failures", paragraphs, table=table, code=kinds[0][0].traceback.strip() or kinds[0][0].message)
