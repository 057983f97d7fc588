"""Which parameters mattered, by each goal."""

from __future__ import annotations

from collections.abc import Sequence

from hpsearch.objective import Metric
from hpsearch.page.axes import told_name
from hpsearch.page.charts import Picture, fitted, width_of
from hpsearch.page.charts.picture import Box, Words
from hpsearch.page.section import Section
from hpsearch.results.importance import importance_of
from hpsearch.results.study import Study

__all__ = ["importance"]

_WIDTH, _LONGEST = 490.0, 180.0
"""Width of the picture, which fits on a phone, and of the longest name, in pixels."""


def importance(study: Study, goals: Sequence[Metric] | None = None) -> list[Section]:
    """Plot the share of each goal's variance that the parameters explain, or say why it is unknown.

    Args:
        study: The study.
        goals: Goals to draw; None: all.
    """
    objective = study.sweep.objective
    several = objective.several
    return [
        _drawn(study, place, f"What mattered: {goal.name}" if several else "What mattered")
        for place, goal in enumerate(objective.goals)
        if goals is None or goal in goals
    ]


def _drawn(study: Study, index: int, title: str) -> Section:
    found, goal = importance_of(study, index), study.sweep.objective.goals[index].name
    if found.missing:
        return Section(title, [found.missing])
    shares = found.shares
    of_them = f", by {found.fitted} of them" if found.fitted < found.reached else ""
    told = f"By {goal} at iteration {found.iteration}, the last one that {found.reached} trials reached{of_them}: "
    told += ", ".join(f"{told_name(name, study)} {share:.0%}" for name, share in list(shares.items())[:3])
    row = 24
    names = {name: fitted(told_name(name, study), _LONGEST, 12) for name in shares}
    left = 28 + max(width_of(text, 12) for text in names.values())
    all_of_it = _WIDTH - left - 60
    picture = Picture(_WIDTH, 20 + row * len(shares), title, told)
    for line, (name, share) in enumerate(shares.items()):
        y = 10 + row * line
        picture.draw(Words(left - 8, y + 15, names[name], "end"))
        picture.draw(
            Box(left, y + 3, max(1.0, all_of_it * share), row - 8, "s0", f"{told_name(name, study)}: {share:.1%}")
        )
        picture.draw(Words(left + all_of_it * share + 8, y + 15, f"{share:.1%}", "start", "muted"))
    words = [
        f"{told}.",
        "Shares of the variance that the parameters explain together, each alone and with others (fANOVA), of those "
        "that all of these trials have. With few trials they are rough.",
    ]
    return Section(title, words, picture)
