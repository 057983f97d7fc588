"""Results of a rerun, as a DataFrame and as text."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpsearch.objective import is_valid
from hpsearch.results.rerun import OWN, SPREAD, Configuration, Rerun, result_of
from hpsearch.tables.formats import frame_of, param_cells
from hpsearch.tables.layout import WHOLE, Column, Screen, table_text
from hpsearch.tables.wording import LONGEST_CELL, counted, numbers, shortened
from hpsearch.trial import TrialState

if TYPE_CHECKING:
    import pandas as pd

_MOST_NAMED = 10


def rerun_dataframe(rerun: Rerun) -> pd.DataFrame:
    """Return every configuration as a row: see `Rerun.dataframe` for the columns."""
    import pandas as pd

    configurations = rerun.configurations
    columns = {
        **{name: [getattr(config, name) for config in configurations] for name in OWN},
        **{f"params.{name}": [config.params.get(name, pd.NA) for config in configurations] for name in rerun.varying},
    }
    came = [result_of(config) for config in configurations]
    frame = frame_of(columns | {name: [config[name] for config in came] for name in came[0]})
    return frame.astype({name: "float64" for name in ("value", "mean", "std", "min", "max")})


def rerun_text(rerun: Rerun, screen: Screen | None = None) -> str:
    """Return the table as text, with notes on what the table leaves out and on the best configuration."""
    configurations, metric = rerun.configurations, rerun.metric
    points = [config.params for config in configurations]
    columns = [
        Column("trial", [str(config.trial) for config in configurations], is_kept=True),
        Column(f"its {metric}", numbers([config.value for config in configurations])),
        Column("iterations", [str(config.iterations) for config in configurations]),
        *(Column(name, param_cells(name, points), is_text=True) for name in rerun.varying),
        *(Column(name, numbers([getattr(config, name) for config in configurations]), is_kept=True) for name in SPREAD),
        Column("runs", [f"{config.succeeded} of {config.asked}" for config in configurations], is_kept=True),
    ]
    table = table_text(columns, screen or WHOLE, "with hpsearch best --format json")
    return table + "".join(f"{line}\n" for line in [*_missing(rerun), *_verdict(rerun)])


def _missing(rerun: Rerun) -> list[str]:
    """Return notes on the runs that no mean includes."""
    unended, lines = 0, []
    for config in rerun.former:
        unended += config.asked - len(config.runs)
        for row in config.runs:
            which = f"run {row.number} (of trial {config.trial})"
            if row.failure is not None:
                lines.append(f"failed:       {which}: {shortened(row.failure.message, LONGEST_CELL)}")
            elif row.state is not TrialState.COMPLETE:
                unended += 1
            elif not is_valid(row.value):
                lines.append(f"no value:     {which}: {rerun.metric} is NaN")
    if len(lines) > _MOST_NAMED:
        more = counted(len(lines) - _MOST_NAMED, "more run")
        lines[_MOST_NAMED:] = [f"              and {more}: hpsearch trials {shlex.quote(str(rerun.study.directory))}"]
    if unended:
        total = sum(config.asked for config in rerun.former)
        lines.append(f"not ended:    {unended} of {counted(total, 'run')}")
    return lines


def _verdict(rerun: Rerun) -> Sequence[str]:
    best, first = rerun.configurations[0], rerun.former[0]
    if not is_valid(best.mean):
        return ["best by mean: none, no run has a value"]
    broken = " and ".join(rerun.broken(best))
    line = f"best by mean: trial {best.trial} of {rerun.directory}, {_config_text(rerun.metric, best)}"
    line += f", but the means break {broken}, as all do" if broken else ""
    if best is first:
        return [line, "              which was the best trial there, too"]
    rank = rerun.configurations.index(first) + 1
    return [
        line,
        f"              not trial {first.trial}, the best there: place {rank} by mean, "
        f"{_config_text(rerun.metric, first)}",
    ]


def _config_text(metric: str, config: Configuration) -> str:
    if config.mean is None:
        return f"none of {counted(config.asked, 'run')} has a value"
    spread = "" if config.std is None else f" ± {_shown(config.std)}"
    return f"{metric} {_shown(config.mean)}{spread} over {config.succeeded} of {config.asked} runs"


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
