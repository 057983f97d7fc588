"""The pages on trials: the table of a study's trials, and each trial with its output."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from hpsearch.errors import HpsearchError
from hpsearch.objective import Objective
from hpsearch.page.charts.chart import Chart
from hpsearch.page.charts.scales import Linear, Log, Marked, scale_of
from hpsearch.page.html import Section, SectionTable, escaped
from hpsearch.results.over_time import over_iterations
from hpsearch.results.study import load
from hpsearch.results.trial_logs import logs_of
from hpsearch.serve.pages import facts_html, sections_html, state_html, table_html
from hpsearch.tables.formats import param_cell
from hpsearch.tables.layout import one_line
from hpsearch.tables.outline import outline
from hpsearch.tables.selection import Fields, where
from hpsearch.tables.trial_columns import Columns, in_order
from hpsearch.tables.trial_page import TrialPage, origin_facts, trial_page
from hpsearch.tables.wording import counted, duration, number, numbers
from hpsearch.trial import Report, TrialRow, TrialState
from hpsearch.watch.live_study import LiveStudy

ROWS = 100
"""Trials on a page of the table."""
_MOST_REPORTS = 100
_LOG_BYTES, _LOG_LINES = 1 << 16, 300
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""What colours the text of a terminal and moves its cursor."""


@dataclass(frozen=True, slots=True)
class TableQuery:
    """Which trials the table shows."""

    sort: str = ""
    """Head of a column; empty: the metric if there is one, or the number."""
    descending: bool = False
    page: int = 1
    state: str = ""
    """Only trials in this state; empty: all."""
    where: str = ""
    """Only trials for which this expression holds; empty: all."""

    @classmethod
    def read(cls, query: Mapping[str, str]) -> TableQuery:
        """Return what the query of an address asks for. Unknown and impossible values are those of a plain address."""
        page, state = query.get("page", ""), query.get("state", "")
        return cls(
            query.get("sort", ""),
            query.get("order") == "desc",
            int(page) if re.fullmatch(r"[1-9][0-9]{0,8}", page) else 1,
            state if state in set(TrialState) else "",
            query.get("where", "").strip(),
        )

    def link(self, base: str, **changes: object) -> str:
        """Return the address of the same table with changes."""
        values = {
            "sort": self.sort,
            "order": "desc" if self.descending else "",
            "state": self.state,
            "where": self.where,
            "page": "",
        }
        kept = {name: value for name, value in {**values, **changes}.items() if value}
        return f"{base}?{urlencode(kept)}" if kept else base


def trials_part(live: LiveStudy, base: str, query: TableQuery) -> str:
    """Return a page of the table of trials, with what filters it.

    Args:
        live: The study.
        base: Address of the study.
        query: Which trials.
    """
    columns = Columns(live.sweep)
    columns.see(live.rows)
    column = next((column for column in columns.all if column.head == query.sort), columns.first)
    rows: Sequence[TrialRow] = live.rows
    problem = ""
    if query.where:
        try:
            names = live.sweep.parameters.columns(row.params for row in rows)
            rows = where(rows, Fields(rows, names, live.sweep.objective), query.where)
        except HpsearchError as error:
            problem = f'<p class="problem" role="alert">{escaped(str(error).removeprefix("--where: "))}</p>'
    if query.state:
        rows = [row for row in rows if row.state == query.state]
    numbered = in_order({row.number: column.sorts_by(row) for row in rows}, query.descending)
    rows = [live.rows[trial] for trial in numbered]
    pages = max(1, math.ceil(len(rows) / ROWS))
    page = min(query.page, pages)
    shown = rows[(page - 1) * ROWS : page * ROWS]
    best = {row.number for row in live.journaled.leaders() if row.feasible}
    cells = [list(map(one_line, each.cells(shown))) for each in columns.all]
    lines = []
    for index, row in enumerate(shown):
        line = [escaped(texts[index]) for texts in cells]
        mark = ' <span class="best">best</span>' if row.number in best else ""
        line[0] = f'<a id="trial-{row.number}" href="{escaped(base)}/trials/{row.number}">{line[0]}</a>{mark}'
        line[1] = state_html(str(row.state))
        lines.append(line)
    first = (page - 1) * ROWS
    where_to = f"{first + 1:,} to {first + len(shown):,} of {len(rows):,}" if shown else "none"
    heads = [(each.head, each.is_text) for each in columns.all]
    # The best values come first, which are the largest ones if the metric is maximized.
    is_maximized = any(goal.name == column.head and goal.goal == "maximize" for goal in live.sweep.objective.goals)

    def link(name: str) -> str:
        down = not query.descending if name == column.head else False
        return query.link(base, sort=name, order="desc" if down else "")

    table = table_html("Trials", heads, lines, column.head, query.descending != is_maximized, link)
    return f"{problem}<p>Trials: {where_to}.{_pages(query, base, page, pages)}</p>{table}"


def filters(query: TableQuery, base: str) -> str:
    """Return a form that filters the table of trials."""
    options = "".join(
        f'<option value="{state}"{" selected" if state == query.state else ""}>{state}</option>' for state in TrialState
    )
    hidden = f'<input type="hidden" name="sort" value="{escaped(query.sort)}">' if query.sort else ""
    hidden += '<input type="hidden" name="order" value="desc">' if query.descending else ""
    return f"""<form class="filters" method="get" action="{escaped(base)}" data-same>{hidden}
<label>State <select id="filter-state" name="state"><option value="">all</option>{options}</select></label>
<label>Where <input id="filter-where" name="where" value="{escaped(query.where)}" size="28" maxlength="500"
placeholder="lr &gt; 0.01 and state == 'complete'" spellcheck="false"></label>
<button id="filter">Filter</button></form>"""


def _pages(query: TableQuery, base: str, page: int, pages: int) -> str:
    if pages == 1:
        return ""
    numbers = sorted({1, page - 1, page, page + 1, pages} & set(range(1, pages + 1)))
    links = []
    for number_ in numbers:
        if number_ == page:
            links.append(f'<span aria-current="page">{number_:,}</span>')
        else:
            address = escaped(query.link(base, page=number_))
            links.append(f'<a id="page-{number_}" data-same href="{address}">{number_:,}</a>')
    return f' <span class="pages">Page {" ".join(links)}</span>'


def trial_part(path: Path, number_: int) -> str:
    """Return all about a trial, but for its output.

    Raises:
        HpsearchError: There is no such trial, or the study can't be read.
    """
    study = load(path)
    with study.entries_in_memory():
        page = trial_page(study, number_)
        metrics = over_iterations(study.entries(), lambda report: report if report.trial == number_ else None)
    reports = [report for _, report in metrics.get(number_, ())]
    row = page.row
    facts = [
        ("state", f"{state_html(str(row.state))} {escaped(one_line(row.reason))}"),
        *(
            (escaped(goal.name), f"<strong>{escaped(f'{value:.6g}')}</strong> at iteration {row.value_iteration}")
            for goal, value in zip(study.sweep.objective.goals, row.values, strict=False)
        ),
        ("ran", escaped(f"{counted(row.iterations, 'iteration')} in {duration(row.seconds)}")),
        *((name, escaped(text)) for name, text in origin_facts(row)),
    ]
    saved = (
        escaped(str(page.checkpoint)) if page.checkpoint else "none: none was saved with its value, or it was deleted"
    )
    facts.append(("checkpoint", f"<code>{saved}</code>" if page.checkpoint else saved))
    return facts_html(facts) + sections_html(_sections(page, reports), "trial")


def _sections(page: TrialPage, reports: Sequence[Report]) -> Iterator[Section]:
    row, study = page.row, page.study
    params = [(name, param_cell(value)) for name, value in outline(row.params, study.sweep.parameters).items()]
    yield Section("Parameters", table=SectionTable(("parameter", "value"), params))
    for name, curve in page.curves.items():
        if (drawn := _curve(name, curve, page.study.sweep.objective)) is not None:
            yield drawn
    if row.notes:
        yield Section("Notes", table=SectionTable(("note", "text"), sorted(row.notes.items())))
    if row.failure is not None:
        yield Section("Failure", [f"{row.failure.kind}: {row.failure.message}"], code=row.failure.traceback.strip())
    attempts = [
        (
            str(segment.attempt),
            f"{segment.start} to {'the end' if segment.end is None else segment.end}",
            str(segment.width),
            segment.ended,
            one_line(segment.reason),
        )
        for segment in page.segments
    ]
    head = ("attempt", "iterations", "workers", "ended", "why")
    yield Section("Attempts", [] if attempts else ["It hasn't started."], table=SectionTable(head, attempts))
    if reports:
        yield _reports(reports)
    if len(page.decisions) > 1:
        decisions = [(decision.action, one_line(decision.reason)) for decision in page.decisions]
        yield Section("Decisions", table=SectionTable(("decision", "why"), decisions))


def _curve(name: str, curve: Sequence[tuple[int, float]], objective: Objective) -> Section | None:
    """Plot a trial's learning curve; None without two finite points."""
    finite = [value for _, value in curve if math.isfinite(value)]
    if len(finite) < 2:
        return None
    goal = next(goal for goal in objective.goals if goal.name == name)
    up = scale_of(finite, log=min(finite) > 0 and max(finite) > 20 * min(finite))
    first, last = float(curve[0][0]), float(curve[-1][0])
    across = Marked(
        Log(1, last) if last >= 30 and first >= 1 else Linear(min(first, 1), last, is_integer=True), (last,)
    )
    best = min(finite, key=goal.signed)
    summary = f"{name} went from {number(curve[0][1])} to {number(curve[-1][1])}; the best was {number(best)}."
    chart = Chart(f"{name} by iteration", summary, across, up, ("iteration", name), (760, 260))
    chart.line([(float(at), value) for at, value in curve], "s0", 2.0)
    return Section(name, [summary], chart.picture)


def _reports(reports: Sequence[Report]) -> Section:
    """Return the last reports as a table."""
    shown = reports[-_MOST_REPORTS:]
    metrics = sorted({metric for report in shown for metric in report.metrics})
    columns = [[str(report.iteration) for report in shown]]
    columns += [numbers([report.metrics.get(metric) for report in shown]) for metric in metrics]
    columns.append([duration(report.seconds) for report in shown])
    told = [f"The last {len(shown)} of {len(reports):,}."] if len(shown) < len(reports) else []
    table = SectionTable(("iteration", *metrics, "time"), list(zip(*columns, strict=True)))
    return Section("Reports", told or [counted(len(reports), "report") + "."], table=table, folded=True)


def log_stamp(path: Path, trial: int) -> str:
    """Return a text that changes when a trial prints something."""
    logs = [log for log in logs_of(path, trial) if log.rank == 0]
    try:
        status = logs[-1].path.lstat() if logs else None
    except OSError:
        status = None
    return "" if status is None else f"{logs[-1].attempt}.{status.st_size}.{status.st_mtime_ns}"


def log_part(path: Path, trial: int) -> str:
    """Return the end of what a trial's last attempt printed, as text."""
    logs = [log for log in logs_of(path, trial) if log.rank == 0]
    lines = _last_lines(logs[-1].path) if logs else []
    if not lines:
        return "<h2>Output</h2><p>It has printed nothing so far.</p>"
    text = escaped("\n".join(lines))
    return (
        f"<h2>Output</h2><p>The end of what attempt {logs[-1].attempt} printed.</p>"
        f'<pre id="log" tabindex="0" role="region" aria-label="Output">{text}</pre>'
    )


def _last_lines(path: Path) -> list[str]:
    """Return the last lines of a log, which is no link: a study from elsewhere could link to any file."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES)
            file.seek(start)
            text = file.read(_LOG_BYTES).decode("utf-8", "backslashreplace")
    except OSError:
        return []
    lines = _COLOURS.sub("", text).removesuffix("\n").split("\n")
    # Of a progress bar, only its last text is shown.
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in lines[1 if start else 0 :]]
    return lines[-_LOG_LINES:] if any(lines) else []
