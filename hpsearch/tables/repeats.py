"""Whether the lead of the best configuration of a study with repeats is more than noise, in words."""

from __future__ import annotations

from hpsearch.objective.repeats import SIGNIFICANT, paired_p_value
from hpsearch.results.study import Study
from hpsearch.tables.wording import first_of, number
from hpsearch.trial import Repeated

_MOST_NAMED = 10


def lead_text(study: Study) -> str:
    """Describe the lead of the best configuration over the others, by a paired t-test of their repeats.

    Returns:
        A sentence without a full stop; empty without repeats or a best configuration, and with several goals.
    """
    best, *others = [row.repeated for row in study.configurations if row.standing is not None] or [None]
    if best is None or study.sweep.objective.several:
        return ""
    n = f"({best.statistic} of {best.n})"
    lead = f"configuration {best.configuration}, {study.sweep.objective.title} {_shown(best)} {n}"
    rivals = [entry for entry in others if entry is not None]
    if not rivals:
        eliminated = "the race eliminated all others" if study.sweep.repeats.racing else "no other has all its repeats"
        return f"{lead}; {eliminated}"
    values = {entry.configuration: study.repeated_values(entry.configuration) for entry in (best, *rivals)}
    p_values = {
        entry.configuration: paired_p_value(values[best.configuration], values[entry.configuration]) for entry in rivals
    }
    noise = [configuration for configuration, p_value in p_values.items() if p_value >= SIGNIFICANT]
    second = rivals[0]
    text = f"{lead}; next is configuration {second.configuration}, {_shown(second)}"
    if not noise:
        return f"{text}; the lead is more than noise (paired t-test, p = {max(p_values.values()):.2g})"
    named = f"configuration{'s' if len(noise) > 1 else ''} {first_of(noise, _MOST_NAMED)}"
    least = min(p_values[configuration] for configuration in noise)
    p_text = f"p = {least:.2g}" if len(noise) == 1 else f"p of at least {least:.2g}"
    return f"{text}; the lead over {named} is within noise (paired t-test, {p_text})"


def _shown(entry: Repeated) -> str:
    (deviation,) = entry.deviations
    spread = "" if deviation is None else f" ± {number(deviation)}"
    return f"{number(entry.values[0])}{spread}"
