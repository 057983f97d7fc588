"""Requests that a browser sends to steer a study, and the form that sends them.

A request is one of docs/steering.md. It never holds code, a program, a path or where something is stored.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpsearch.config.strict_json import parse_json
from hpsearch.errors import SweepError
from hpsearch.page.html import escaped
from hpsearch.trial import TrialRow, TrialState
from hpsearch.watch.live_study import LiveStudy

_MOST_TRIALS = 1000
_DIGITS = 9


def read_request(fields: Sequence[tuple[str, str]]) -> tuple[str, dict[str, Any]]:
    """Return the verb and the details of a request.

    Args:
        fields: Names and values of a form: `verb`, and what it needs.

    Raises:
        SweepError: There is no such verb, or a field is missing, unknown, given twice or unusable.
    """
    values = dict(fields)
    if len(values) < len(fields):
        raise SweepError("a request must have each field once")
    verb = values.pop("verb", "")
    if verb not in _FIELDS:
        raise SweepError(f"verb: must be one of {', '.join(_FIELDS)}, got {verb!r}")
    known = _FIELDS[verb]
    if unknown := values.keys() - known:
        raise SweepError(f"{verb}: takes {', '.join(known) or 'no fields'}, got {', '.join(sorted(unknown))}")
    details = {name: known[name](name, value) for name, value in values.items() if value.strip()}
    needed = {"prune": ["trials"], "add": ["points"], "extend": ["run_cap", "brackets", "max_iter"]}.get(verb, [])
    if needed and not details.keys() & set(needed):
        raise SweepError(f"{verb}: must have {' or '.join(needed)}")
    if "trials" in details and verb == "extend" and "max_iter" not in details:
        raise SweepError("extend: trials must come with max_iter, the iteration to train them on to")
    return verb, {"trials": [], **details} if verb == "retry" else details


def _number(name: str, text: str) -> int:
    if not re.fullmatch(rf"[1-9][0-9]{{0,{_DIGITS - 1}}}", text.strip()):
        raise SweepError(f"{name}: must be a whole number, at least 1, got {text!r}")
    return int(text)


def _numbers(name: str, text: str) -> list[int]:
    words = text.replace(",", " ").split()
    if len(words) > _MOST_TRIALS or not all(re.fullmatch(rf"[0-9]{{1,{_DIGITS}}}", word) for word in words):
        raise SweepError(f"{name}: must be numbers of up to {_MOST_TRIALS:,} trials, got {text!r}")
    return list(dict.fromkeys(map(int, words)))


def _points(name: str, text: str) -> list[dict[str, Any]]:
    try:
        read = parse_json(text)
        points = read if isinstance(read, list) else [read]
        json.dumps(points, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise SweepError(f"{name}: must be JSON with finite numbers: {error}") from None
    if not points or not all(isinstance(point, dict) for point in points):
        raise SweepError(f"{name}: must be an object of parameters and their values, or an array of such")
    return points


_FIELDS: Mapping[str, Mapping[str, Callable[[str, str], Any]]] = {
    "pause": {},
    "resume": {},
    "stop": {},
    "cancel": {},
    "prune": {"trials": _numbers},
    "retry": {"trials": _numbers},
    "extend": {"run_cap": _number, "brackets": _number, "max_iter": _number, "trials": _numbers},
    "add": {"points": _points},
}
"""The fields of each verb, with the function that reads each."""


def steering_part(live: LiveStudy, path: Path, action: str, may_steer: bool) -> str:
    """Return the buttons that steer a study.

    Args:
        live: The study.
        path: Its directory.
        action: Address for requests.
        may_steer: Whether the client may use them.
    """
    state, pasted = live.ended.state, shlex.quote(str(path))
    if not live.is_live or live.is_ask_tell:
        commands = {"finished": "extend", "open": "ask"}
        command = f"hpsearch {commands.get(state, 'resume')} {pasted}"
        return f"<p>No process runs this study. To go on: <code>{escaped(command)}</code></p>"
    if not may_steer:
        return ""
    rest = "resume" if state == "paused" else "pause"
    name = live.sweep.name
    buttons = [
        _button(action, rest, rest.capitalize()),
        _button(
            action, "stop", "Stop", f"Stop {name}? Its trials end at their next reports. hpsearch resume continues it."
        ),
        _button(
            action,
            "cancel",
            "Cancel",
            f"Cancel {name}? It ends at once. What ran since the last checkpoints runs again on resume.",
        ),
    ]
    if live.journaled.counts().get(TrialState.FAILED):
        buttons.append(_button(action, "retry", "Retry failed trials"))
    early = live.sweep.early_terminate
    bounds = {
        "run_cap": "Trials in all" if live.sweep.run_cap is not None else "",
        "brackets": "Brackets in all" if early is not None and "brackets" in early.raisable else "",
        "max_iter": "Iterations of the best trial in all",
    }
    fields = "".join(
        f'<label>{text} <input name="{bound}" inputmode="numeric" size="6"></label>'
        for bound, text in bounds.items()
        if text
    )
    extend = f"""<details><summary>Extend</summary>
<form data-request="{escaped(action)}"><input type="hidden" name="verb" value="extend">{fields}
<button>Extend</button></form></details>"""
    add = f"""<details><summary>Add configurations</summary>
<form data-request="{escaped(action)}"><input type="hidden" name="verb" value="add">
<label>Configurations as JSON; parameters that are missing are sampled
<textarea name="points" rows="3" spellcheck="false" placeholder='{{"lr": 0.1}}'></textarea></label>
<button>Add</button></form></details>"""
    return f'<div class="buttons">{"".join(buttons)}</div>{extend}{add}'


def trial_buttons(live: LiveStudy, row: TrialRow, action: str, may_steer: bool) -> str:
    """Return the buttons that steer a trial."""
    if not may_steer or not live.is_live or live.is_ask_tell:
        return ""
    trial = {"trials": str(row.number)}
    if row.state in (TrialState.RUNNING, TrialState.WAITING):
        question = f"End trial {row.number}, and go on without it? It can't be retried."
        return _button(action, "prune", "Prune this trial", question, trial)
    return _button(action, "retry", "Retry this trial", "", trial) if row.state is TrialState.FAILED else ""


def _button(action: str, verb: str, text: str, question: str = "", fields: Mapping[str, str] | None = None) -> str:
    inputs = "".join(
        f'<input type="hidden" name="{name}" value="{escaped(value)}">'
        for name, value in {"verb": verb, **(fields or {})}.items()
    )
    asks = f' data-question="{escaped(question)}"' if question else ""
    return (
        f'<form data-request="{escaped(action)}"{asks}>{inputs}<button id="do-{verb}">{escaped(text)}</button></form>'
    )
