"""The pages as HTML. What users wrote (names, logs, notes, parameters) is escaped text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlencode

from hpsearch.page.brackets import brackets
from hpsearch.page.goals import front
from hpsearch.page.html import Section, chart_names, escaped, section_html
from hpsearch.page.params import parallel
from hpsearch.page.progress import curves, history
from hpsearch.page.trials import failures, strategies
from hpsearch.page.workers import workers
from hpsearch.results.study import load
from hpsearch.serve.live import ServedStudy, StudyLine
from hpsearch.tables.layout import one_line
from hpsearch.tables.outline import outline
from hpsearch.tables.wording import amount_of, best_parts, by_state, duration, front_line, params_line
from hpsearch.trial import TrialState
from hpsearch.watch.live_study import LiveStudy

_SIGNS = {
    "running": "▶",
    "open": "▶",
    "paused": "‖",
    "waiting": "…",
    "complete": "✓",
    "finished": "✓",
    "stopped": "■",
    "failed": "✗",
    "error": "✗",
    "killed": "✗",
    "unreadable": "✗",
}
"""A sign beside the name of a state, so that colours aren't needed."""


def shell(title: str, body: str, *, live: str = "", may_steer: bool = False, signs_in: bool = True) -> str:
    """Return a page.

    Args:
        title: Its title.
        body: The content of its `main` element.
        live: Path of the events that say which parts of the page have changed; empty: it doesn't change.
        may_steer: Whether the client may steer studies.
        signs_in: Whether to offer to sign in or out.
    """
    events = f' data-live="{escaped(live)}"' if live else ""
    account = ""
    if signs_in and may_steer:
        account = '<form method="post" action="/sign-out"><button>Sign out</button></form>'
    elif signs_in:
        account = '<a href="/sign-in">Sign in to steer</a>'
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escaped(title)}</title>
<link rel="icon" href="/static/icon.svg">
<link rel="stylesheet" href="/static/style.css">
<script src="/static/app.js" defer></script>
</head>
<body>
<a class="skip" href="#content">To the content</a>
<header class="top"><a class="home" href="/">hpsearch</a><span id="link" role="status"></span>{account}</header>
<main id="content"{events}>
{body}
</main>
<div id="messages" role="status"></div>
<div id="tip" hidden></div>
<dialog id="question" aria-labelledby="asked"><form method="dialog"><p id="asked"></p>
<button value="yes">Yes</button> <button value="no" autofocus>No</button></form></dialog>
</body>
</html>
"""


def part(name: str, source: str, inside: str, version: str = "", query: bool = False) -> str:
    """Return a part of a page that the page's script replaces when its version changes.

    Args:
        name: Its name among the versions.
        source: Its address.
        inside: Its content.
        version: The content's version; empty: none yet.
        query: Whether the query of the page's address belongs to the part's address.
    """
    added = " data-query" if query else ""
    attributes = f'data-part="{name}" data-source="{escaped(source)}" data-version="{escaped(version)}"{added}'
    return f"<div {attributes}>{inside}</div>"


def sign_in_page(problem: str = "") -> str:
    """Return the page on which a browser sends a token."""
    told = f'<p class="problem" role="alert">{escaped(problem)}</p>' if problem else ""
    return shell(
        "Sign in: hpsearch",
        f"""<h1>Sign in</h1>{told}
<form method="post" action="/sign-in" class="sign-in">
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button>Sign in</button>
</form>
<p>The token is in the file that <code>hpsearch serve</code> named when it began: <code>HPSEARCH_READ_TOKEN</code> to
look at studies, <code>HPSEARCH_STEER_TOKEN</code> to steer them as well.</p>""",
        signs_in=False,
    )


def problem_page(message: str) -> str:
    """Return a page with an error."""
    return shell(
        "hpsearch", f'<h1>Not found</h1><p role="alert">{escaped(message)}</p><p><a href="/">All studies</a></p>'
    )


def state_html(state: str) -> str:
    """Return the state of a study or a trial as HTML, with a sign, so that nobody needs its colour."""
    sign = _SIGNS.get(state, "■")
    return (
        f'<span class="state {escaped(state.replace(" ", "-"))}"><span aria-hidden="true">{sign}</span> {state}</span>'
    )


def _clock(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(when)) if when else ""


def table_html(
    label: str,
    heads: Sequence[tuple[str, bool]],
    rows: Sequence[Sequence[str]],
    sort: str,
    descending: bool,
    link: Callable[[str], str],
) -> str:
    """Return a table with links that sort it.

    Args:
        label: The table's name, for screen readers.
        heads: Name of each column, and whether it holds text.
        rows: Cells as HTML. The first cell of each row is its header.
        sort: Name of the column that the rows are sorted by.
        descending: Whether in descending order.
        link: Returns the address that a column's head leads to.
    """
    cells = []
    for index, (name, is_text) in enumerate(heads):
        order = ("descending" if descending else "ascending") if name == sort else ""
        aria = f' aria-sort="{order}"' if order else ""
        arrow = f'<span aria-hidden="true"> {"▼" if descending else "▲"}</span>' if order else ""
        kind = "" if is_text or not index else ' class="number"'
        cells.append(
            f'<th scope="col"{aria}{kind}><a id="sort-{index}" data-same href="{escaped(link(name))}">'
            f"{escaped(name)}{arrow}</a></th>"
        )
    kinds = ["" if is_text else ' class="number"' for _, is_text in heads[1:]]
    lines = []
    for first, *rest in rows:
        inside = "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, rest, strict=True))
        lines.append(f'<tr><th scope="row">{first}</th>{inside}</tr>')
    return (
        f'<div class="wide scroll" tabindex="0" role="region" aria-label="{escaped(label)}"><table class="rows">'
        f"<thead><tr>{''.join(cells)}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


_STUDY_KEYS: Mapping[str, Callable[[str, StudyLine], object]] = {
    "study": lambda key, line: key,
    "state": lambda key, line: line.state,
    "best": lambda key, line: line.value,
    "done": lambda key, line: _done(line),
    "running": lambda key, line: line.counts.get(TrialState.RUNNING, 0),
    "failed": lambda key, line: line.counts.get(TrialState.FAILED, 0),
    "workers": lambda key, line: None if line.workers is None else line.workers.busy,
    "time left": lambda key, line: line.remaining,
    "started": lambda key, line: line.created,
}
_TEXTS = ("study", "state", "best")


def _done(line: StudyLine) -> int:
    return line.counts.get(TrialState.COMPLETE, 0) + line.counts.get(TrialState.STOPPED, 0)


def studies_part(
    studies: Mapping[str, ServedStudy], folder: Path, problems: Sequence[str], query: Mapping[str, str]
) -> str:
    """Return the table of all studies.

    Args:
        studies: The studies by key.
        folder: The folder that they are in.
        problems: Why other studies can't be shown.
        query: `sort` and `order`.
    """
    sort = query.get("sort", "started")
    sort = sort if sort in _STUDY_KEYS else "started"
    descending = query.get("order", "desc" if sort == "started" else "asc") == "desc"
    lines = {key: study.line for key, study in studies.items()}
    keyed = [(_STUDY_KEYS[sort](key, line), key) for key, line in sorted(lines.items())]
    having = sorted((pair for pair in keyed if pair[0] is not None), key=lambda pair: pair[0], reverse=descending)  # type: ignore[arg-type,return-value]
    lacking = [pair for pair in keyed if pair[0] is None]
    rows = []
    for _, key in [*having, *lacking]:
        line, path = lines[key], studies[key].path
        name = str(path.relative_to(folder)) if path != folder else folder.absolute().name
        extra = "" if line.name in name else f'<br><span class="soft">{escaped(line.name)}</span>'
        labels = " ".join(f"#{tag}" for tag in line.labels.tags)
        if labels or line.labels.note:
            extra += f'<br><span class="soft">{escaped(f"{labels} {one_line(line.labels.note)}".strip())}</span>'
        message = (
            f'<br><span class="soft">{escaped(one_line(line.message))}</span>' if line.state == "unreadable" else ""
        )
        of = "" if line.total is None else f" of {line.total:,}"
        failed = line.counts.get(TrialState.FAILED, 0)
        rows.append(
            [
                f'<a id="study-{escaped(key)}" href="/studies/{escaped(key)}">{escaped(name)}</a>{extra}',
                state_html(line.state) + message,
                escaped(line.best) + ("" if line.trial is None else f'<span class="soft">, trial {line.trial}</span>'),
                f"{_done(line):,}{of}",
                f"{line.counts.get(TrialState.RUNNING, 0):,}",
                f'<span class="bad">{failed:,}</span>' if failed else "0",
                "" if line.workers is None else f"{line.workers.busy:,} of {line.workers.ready:,} busy",
                "" if line.remaining is None else f"~{escaped(duration(line.remaining))}",
                escaped(_clock(line.created)),
            ]
        )
    told = "".join(f'<p class="problem">{escaped(problem)}</p>' for problem in problems)
    if not rows:
        return f"{told}<p>No study in {escaped(str(folder))} so far. <code>hpsearch run</code> makes one.</p>"
    heads = [(name, name in _TEXTS) for name in _STUDY_KEYS]

    def link(name: str) -> str:
        down = not descending if name == sort else name == "started"
        return f"/?{urlencode({'sort': name, 'order': 'desc' if down else 'asc'})}"

    table = table_html("Studies", heads, rows, sort, descending, link)
    return f"{told}{table}"


def head_part(live: LiveStudy, line: StudyLine, path: Path) -> str:
    """Return the facts of a study: its state, best trial, progress, workers and time left."""
    sweep, state = live.sweep, live.ended
    total, objective = live.journaled.total, sweep.objective
    facts: list[tuple[str, str]] = []
    holder = f" in {live.holder}" if live.holder else ""
    message = f" {state.message}" if state.message else ""
    facts.append(("state", f"{state_html(state.state)}{escaped(message)}<span class='soft'>{escaped(holder)}</span>"))
    if objective.goals:
        facts.append(("front" if objective.several else "best", _best(live)))
    counts = live.journaled.counts()
    ended = sum(counts.get(each, 0) for each in (TrialState.COMPLETE, TrialState.STOPPED, TrialState.FAILED))
    bar = (
        ""
        if total is None
        else (f'<progress aria-label="trials that have ended" max="{max(total[0], 1)}" value="{ended}"></progress>')
    )
    of_all = "" if total is None else f"; {total[0]:,} in all"
    facts.append(("trials", f"{escaped(by_state(counts) or 'none yet')}{of_all}{bar}"))
    facts.append(("iterations", escaped(amount_of(live.journaled.iterations, None if total is None else total[1]))))
    if line.workers is not None:
        facts.append(("workers", f"{line.workers.busy:,} of {line.workers.ready:,} busy"))
    if line.remaining is not None:
        facts.append(("time left", f"~{escaped(duration(line.remaining))}"))
    facts.append(("started", escaped(_clock(line.created))))
    facts.append(("goal", escaped(f"{objective.aim}, by {sweep.method}" if objective.goals else sweep.method)))
    if line.labels.tags:
        facts.append(("tags", escaped(" ".join(line.labels.tags))))
    if line.labels.note:
        facts.append(("note", escaped(line.labels.note)))
    if live.failure is not None:
        trial, failed = live.failure
        facts.append(("failed", f'<span class="bad">trial {trial}</span>: {escaped(one_line(failed))}'))
    facts.append(("folder", f"<code>{escaped(str(path))}</code>"))
    return facts_html(facts)


def facts_html(facts: Iterable[tuple[str, str]]) -> str:
    """Return names and values, which are HTML, as a list."""
    return f"<dl>{''.join(f'<div><dt>{name}</dt><dd>{value}</dd></div>' for name, value in facts)}</dl>"


def _best(live: LiveStudy) -> str:
    objective, leaders = live.sweep.objective, live.journaled.leaders()
    if not leaders or objective.several:
        return escaped(front_line(leaders, objective))
    title, value, trial = best_parts(leaders[0], objective)
    params = params_line(outline(leaders[0].params, live.sweep.parameters))
    return (
        f"<strong>{escaped(title)} {escaped(value)}</strong>{escaped(trial)}"
        f"<br><span class='params'>{escaped(one_line(params))}</span>"
    )


def charts_parts(path: Path) -> dict[str, str]:
    """Return the pictures of a study, which are those of `hpsearch report`: its learning curves, and all others.

    Raises:
        HpsearchError: The study can't be read.
    """
    study = load(path)
    with study.entries_in_memory():
        first = curves(study)
        others = [
            front(study),
            history(study),
            brackets(study),
            workers(study, time.time() if study.state == "running" else None),
            parallel(study),
            strategies(study),
            failures(study),
        ]
    return {
        "curves": sections_html(first, "curve") or "<p>Learning curves appear when trials have reported.</p>",
        "charts": sections_html([section for section in others if section is not None], "chart"),
    }


def sections_html(sections: Iterable[Section], prefix: str) -> str:
    """Return sections as HTML. Their pictures have unique names that begin with a prefix."""
    names = chart_names(prefix)
    return "".join(section_html(section, "", names, values=True) for section in sections)
