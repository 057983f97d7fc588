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
        A sentence without a full stop; empty without repeats or a feasible configuration, and with several goals. Of a
        quantile it says nothing about noise, as the test compares means.
    """
    objective, repeats = study.sweep.objective, study.sweep.repeats
    feasible = [row.repeated for row in study.configurations if objective.is_feasible(row.standing)]
    ranked = [entry for entry in feasible if entry is not None]
    if not ranked or objective.several:
        return ""
    best, *rivals = ranked
    lead = f"configuration {best.configuration}, {objective.title} {_shown(best)} ({best.statistic} of {best.n})"
    if not rivals:
        others = "the race eliminated all others" if repeats.racing else "no other has a value that counts"
        return f"{lead}; {others}"
    text = f"{lead}; next is configuration {rivals[0].configuration}, {_shown(rivals[0])}"
    if repeats.quantile is not None:
        return text
    values = {entry.configuration: study.repeated_values(entry.configuration) for entry in (best, *rivals)}
    p_values = {
        entry.configuration: paired_p_value(values[best.configuration], values[entry.configuration]) for entry in rivals
    }
    noise = [configuration for configuration, p_value in p_values.items() if p_value >= SIGNIFICANT]
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
