"""The best trials' structures as graphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpsearch.page.network_graph import graph_of, operations_of, structures_of
from hpsearch.page.network_picture import Drawn, Look, looks_of, network_picture
from hpsearch.page.section import Section, SectionTable
from hpsearch.results.study import Study
from hpsearch.space import Space
from hpsearch.space.parameter import Structure
from hpsearch.tables.outline import written
from hpsearch.tables.wording import number
from hpsearch.trial import Params, TrialRow, Value

__all__ = ["looks_in", "networks"]

_MOST = 3
"""Most trials that are drawn: the best ones with different structures."""
_HOW = (
    "Of the best trials whose structures differ. An operation has the same colour in all of them; one that gives zeros "
    "has none, and a dashed border."
)


def looks_in(studies: Iterable[Study]) -> dict[str, Look]:
    """Return the looks of all operations that there may be in some studies: one operation has one look on a page."""
    spaces = [study.sweep.parameters for study in studies]
    return looks_of([name for space in spaces for one in space.declared for name in operations_of(one.holds)])


def networks(study: Study, looks: Mapping[str, Look] | None = None) -> list[Section]:
    """Draw the structures of the best trials in common pictures; return no section if there are none.

    Args:
        study: The study.
        looks: Looks by operation, shared with other studies on the page; None: there are no others.
    """
    space = study.sweep.parameters
    if not any(isinstance(one.holds, Structure) for one in space.declared):  # no need to look at thousands of trials
        return []
    best = _best(study)
    looks = looks_in([study]) if looks is None else looks
    sections = []
    for name in dict.fromkeys(name for _, found in best for name in found):
        drawn, rows = [], []
        for row, found in best:
            if (graph := graph_of(found.get(name))) is not None:
                pairs = zip(study.sweep.objective.goals, row.values, strict=True)
                values = [f"{goal.name} {number(value)}" for goal, value in pairs]
                drawn.append(Drawn(f"Trial {row.number}", values, graph))
                rows.append((str(row.number), ", ".join(values), written(found[name])))
        if drawn:
            title = f"Best networks: {name}"
            told = "; ".join(f"trial {trial}, {values}: {network}" for trial, values, network in rows)
            picture = network_picture(drawn, looks, title, told)
            table = SectionTable(("trial", "values", name), rows)
            sections.append(Section(title, [_HOW], picture, table, folded=True))
    return sections


def _best(study: Study) -> list[tuple[TrialRow, Mapping[str, Value]]]:
    """Return the best trials that differ in their structures, with these."""
    best: list[tuple[TrialRow, Mapping[str, Value]]] = []
    for row in study.ranked:
        found = _structures(study.sweep.parameters, row.params) if row.values else {}
        if found and all(found != other for _, other in best):
            best.append((row, found))
        if len(best) == _MOST:
            break
    return best


def _structures(space: Space, params: Params) -> dict[str, Value]:
    holds = {".".join(one.path): one.holds for one in space.declared}
    return {
        name: value
        for top, whole, is_structure in space.top_level(params)
        if is_structure
        for name, value in structures_of(top, holds[top], whole)
    }
