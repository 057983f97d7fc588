"""The application behind `hpsearch serve`: its addresses, and the events that keep pages up to date."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from hpsearch.errors import HpsearchError
from hpsearch.page.charts.picture import STYLE
from hpsearch.page.html import PAGE_STYLE, escaped
from hpsearch.serve.live import ServedStudy, Studies
from hpsearch.serve.pages import (
    charts_parts,
    head_part,
    part,
    problem_page,
    shell,
    sign_in_page,
    studies_part,
)
from hpsearch.serve.steering import read_request, steering_part, trial_buttons
from hpsearch.serve.trials import TableQuery, filters, log_part, log_stamp, trial_part, trials_part
from hpsearch.serving.access import ROLES, Access, Policy, Rule, Tokens
from hpsearch.tables.wording import counted
from hpsearch.trial import TrialState
from hpsearch.watch.live_study import DONE

_TICK = 5.0
"""Seconds after which estimates of the time left are shown anew."""
_LOOK_SECONDS = 0.5
_ALIVE_SECONDS = 15.0
"""Seconds without news after which the browser gets a sign of life, so that neither side drops the connection."""
_MOST_FIELDS = 10

_WAITS = {"head": "journal", "trials": "trials", "curves": "reports", "charts": "journal", "trial": "journal"}
"""What is read for a part of a page."""

_Versions = Callable[[], Mapping[str, Any]]


def application(studies: Studies, tokens: Tokens, *, is_local: bool, is_secure: bool, names: frozenset[str]) -> Access:
    """Return the application.

    Args:
        studies: The studies.
        tokens: The tokens of readers and of those who steer.
        is_local: Whether only this machine can send requests, so that reading needs no token.
        is_secure: Whether it is reached by TLS.
        names: Names of the server.
    """
    pages = _Pages(studies, tokens, is_secure)
    app = Starlette(routes=pages.routes(), exception_handlers={HTTPException: _not_found, HpsearchError: _unreadable})
    policy = Policy(tokens, _rule, reads_freely=is_local, names=names, sign_in="/sign-in")
    return Access(app, policy)


def _rule(method: str, path: str) -> Rule:
    """Return what a request needs: reading for what shows, steering for what changes something."""
    if path in ("/sign-in", "/sign-out"):
        return Rule(None, most_bytes=1024)
    if method in ("GET", "HEAD"):
        return Rule(None if path.startswith("/static/") else "read", most_bytes=0)
    return Rule("steer")


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _problem(request, error.detail, error.status_code)


async def _unreadable(request: Request, error: Exception) -> Response:
    return _problem(request, str(error), 404)


def _problem(request: Request, message: str, status: int) -> Response:
    """Return an error: text for the page's script, a page for everybody else."""
    if "/parts/" in request.url.path or request.method == "POST":
        return PlainTextResponse(message, status)
    return HTMLResponse(problem_page(message), status)


class _Pages:
    """The functions behind the addresses. What reads files or draws runs in threads."""

    def __init__(self, studies: Studies, tokens: Tokens, is_secure: bool) -> None:
        self._studies, self._tokens, self._is_secure = studies, tokens, is_secure
        static = files("hpsearch.serve") / "static"
        style = f"{PAGE_STYLE}{STYLE}{(static / 'style.css').read_text(encoding='utf-8')}"
        self._static = {
            "style.css": ("text/css", style),
            "app.js": ("text/javascript", (static / "app.js").read_text(encoding="utf-8")),
            "icon.svg": ("image/svg+xml", (static / "icon.svg").read_text(encoding="utf-8")),
        }

    def routes(self) -> list[Route]:
        study, trial = "/studies/{key}", "/studies/{key}/trials/{trial:int}"
        return [
            Route("/", self.home),
            Route("/live", self.home_live),
            Route("/parts/studies", lambda request: HTMLResponse(self._studies_html(request))),
            Route(study, self.study),
            Route(trial, self.trial),
            *(Route(f"{base}/live", self.live) for base in (study, trial)),
            *(Route(f"{base}/parts/{{name}}", self.fragment) for base in (study, trial)),
            Route(f"{study}/requests", self.steer, methods=["POST"]),
            Route("/static/{name}", self.static),
            Route("/sign-in", lambda _: HTMLResponse(sign_in_page())),
            Route("/sign-in", self.sign_in, methods=["POST"]),
            Route("/sign-out", self.sign_out, methods=["POST"]),
        ]

    def static(self, request: Request) -> Response:
        found = self._static.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404, "there is no such file")
        return Response(found[1], media_type=found[0])

    async def sign_in(self, request: Request) -> Response:
        token = dict(await _fields(request)).get("token", "").strip()
        role = self._tokens.role_of(token)
        if role not in ("read", "steer"):
            return HTMLResponse(sign_in_page("This isn't a token of this server for reading or steering."), 401)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(
            self._tokens.cookie_name,
            self._tokens.cookie(role, time.time()),
            httponly=True,
            samesite="strict",
            secure=self._is_secure,
        )
        return answer

    def sign_out(self, request: Request) -> Response:
        answer = RedirectResponse("/", 303)
        answer.delete_cookie(self._tokens.cookie_name, httponly=True, samesite="strict", secure=self._is_secure)
        return answer

    def home(self, request: Request) -> Response:
        versions = self._home_versions()
        inside = part("studies", "/parts/studies", self._studies_html(request), versions["studies"], query=True)
        body = f"<h1>Studies in {escaped(str(self._studies.folder))}</h1>{inside}"
        return HTMLResponse(shell("hpsearch", body, live="/live", may_steer=_may_steer(request)))

    def _studies_html(self, request: Request) -> str:
        studies = self._studies
        return studies_part(studies.all(), studies.folder, studies.problems, request.query_params)

    def _home_versions(self) -> dict[str, str]:
        studies = self._studies.all()
        runs = any(study.line.workers is not None for study in studies.values())
        versions = ",".join(f"{key}.{study.version}" for key, study in studies.items())
        return {"studies": _short(f"{versions} {_tick() if runs else ''}")}

    def home_live(self, request: Request) -> Response:
        return self._events(lambda: {"parts": self._home_versions()})

    def _study(self, request: Request) -> ServedStudy:
        """Return the study of an address. This may look for new studies in the folder."""
        found = self._studies.find(request.path_params["key"])
        if found is None:
            raise HTTPException(404, f"There is no study {request.path_params['key']!r} in {self._studies.folder}.")
        return found

    def study(self, request: Request) -> Response:
        study, base = self._study(request), _base(request)
        title = study.line.name or study.path.name
        query = TableQuery.read(request.query_params)
        names = ("head", "steering", "curves", "trials", "charts")
        head, steering, curves, trials, charts = (self._part(request, study, name, base) for name in names)
        body = (
            f'<h1>{escaped(title)}</h1><p class="crumbs"><a href="/">All studies</a></p>{head}{steering}'
            f"{curves}<section><h2>Trials</h2>{filters(query, base)}{trials}</section>{charts}"
        )
        return HTMLResponse(shell(f"{title}: hpsearch", body, live=f"{base}/live", may_steer=_may_steer(request)))

    def _part(self, request: Request, study: ServedStudy, name: str, base: str) -> str:
        """Return a part of a new page. What takes long is left to the page's script."""
        source = f"{base}/parts/{name}"
        if name in ("curves", "charts", "trial") or not study.is_read:
            waits = "" if name in ("steering", "log") else f'<p class="soft">Reading the {_WAITS[name]} ...</p>'
            return part(name, source, waits, query=name == "trials")
        version = self._versions(request, study)["parts"][name]
        return part(name, source, self._html(request, name), version, query=name == "trials")

    def fragment(self, request: Request) -> Response:
        return HTMLResponse(self._html(request, request.path_params["name"]))

    def live(self, request: Request) -> Response:
        study = self._study(request)
        return self._events(lambda: self._versions(request, study), study)

    def _html(self, request: Request, name: str) -> str:
        return self._trial_html(request, name) if "trial" in request.path_params else self._study_html(request, name)

    def _study_html(self, request: Request, name: str) -> str:
        study, base = self._study(request), _base(request)
        if name in ("curves", "charts"):
            return study.drawn("charts", lambda: charts_parts(study.path))[name]
        with study.reading() as live:
            if name == "head":
                return head_part(live, study.line, study.path)
            if name == "steering":
                return steering_part(live, study.path, f"{base}/requests", _may_steer(request))
            if name == "trials":
                return trials_part(live, base, TableQuery.read(request.query_params))
        raise HTTPException(404, "there is no such part")

    def _versions(self, request: Request, study: ServedStudy) -> dict[str, Any]:
        """Return the version of each part of the page of a study or a trial, and the answers to requests."""
        line = study.line
        runs = line.workers is not None
        failed = bool(line.counts.get(TrialState.FAILED))
        parts = {
            "head": f"{study.version}.{_tick() if runs else ''}",
            "steering": f"{line.state}.{runs}.{failed}",
            "trials": f"{study.version}",
            "curves": f"{study.slow_version}",
            "charts": f"{study.slow_version}",
        }
        if (number := request.path_params.get("trial")) is not None:
            with study.reading() as live:
                state = live.rows[number].state if number < len(live.rows) else ""
            parts = {
                "trial": f"{study.slow_version}",
                "steering": f"{state}.{runs}",
                "log": log_stamp(study.path, number),
            }
        answers = {
            number: {"text": answer.refused or DONE.get(answer.verb, answer.verb), "refused": bool(answer.refused)}
            for number, answer in study.answers().items()
        }
        return {"parts": parts, "answers": answers, "runs": runs}

    def trial(self, request: Request) -> Response:
        study, number = self._study(request), request.path_params["trial"]
        base, count = _base(request), sum(study.line.counts.values())
        if study.is_read and number >= count:
            raise HTTPException(404, f"{study.line.name} has no trial {number}, but {counted(count, 'trial')}")
        above, title = base.rpartition("/trials/")[0], study.line.name or study.path.name
        links = [("/", "All studies"), (above, title)]
        links += [(f"{above}/trials/{number - 1}", f"Trial {number - 1}")] if number else []
        links += [(f"{above}/trials/{number + 1}", f"Trial {number + 1}")] if number + 1 < count else []
        crumbs = " ".join(f'<a href="{escaped(address)}">{escaped(text)}</a>' for address, text in links)
        parts = "".join(self._part(request, study, name, base) for name in ("steering", "trial", "log"))
        body = f'<h1>Trial {number}</h1><p class="crumbs">{crumbs}</p>{parts}'
        heading = f"Trial {number} of {title}: hpsearch"
        return HTMLResponse(shell(heading, body, live=f"{base}/live", may_steer=_may_steer(request)))

    def _trial_html(self, request: Request, name: str) -> str:
        study, number = self._study(request), request.path_params["trial"]
        if name == "trial":
            return study.drawn(f"trial {number}", lambda: {name: trial_part(study.path, number)})[name]
        with study.reading() as live:
            if number >= len(live.rows):
                raise HTTPException(
                    404, f"{live.sweep.name} has no trial {number}, but {counted(len(live.rows), 'trial')}"
                )
            if name == "steering":
                action = f"{_base(request).rpartition('/trials/')[0]}/requests"
                return trial_buttons(live, live.rows[number], action, _may_steer(request))
        if name == "log":
            return log_part(study.path, number)
        raise HTTPException(404, "there is no such part")

    def _events(self, versions: _Versions, study: ServedStudy | None = None) -> Response:
        return StreamingResponse(self._changes(versions, study), media_type="text/event-stream")

    async def _changes(self, versions: _Versions, study: ServedStudy | None) -> AsyncIterator[str]:
        """Yield all versions at once, so that a browser that reconnects catches up, and then again when one changes."""
        sent, when = "", time.monotonic()
        while not self._studies.is_over.is_set():
            try:
                text = json.dumps(await run_in_threadpool(versions))
            except HpsearchError as error:
                text = json.dumps({"problem": str(error)})
            if text != sent:
                yield f"data: {text}\n\n"
                sent, when = text, time.monotonic()
            elif time.monotonic() - when > _ALIVE_SECONDS:
                yield ": still here\n\n"
                when = time.monotonic()
            if study is not None:
                study.want()
            await asyncio.sleep(_LOOK_SECONDS)

    async def steer(self, request: Request) -> Response:
        study = await run_in_threadpool(self._study, request)
        try:
            verb, details = read_request(await _fields(request))
            number = await run_in_threadpool(study.request, verb, details)
        except HpsearchError as error:
            return JSONResponse({"refused": str(error)}, 409)
        return JSONResponse({"request": number, "verb": verb}, 202)


async def _fields(request: Request) -> list[tuple[str, str]]:
    """Return the fields of a form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "must be a form, application/x-www-form-urlencoded")
    try:
        text = (await request.body()).decode("ascii")
        return parse_qsl(
            text, keep_blank_values=True, strict_parsing=bool(text), errors="strict", max_num_fields=_MOST_FIELDS
        )
    except (ValueError, ClientDisconnect) as error:
        raise HTTPException(400, "must be a form with few fields in UTF-8") from error


def _may_steer(request: Request) -> bool:
    return "steer" in request.scope[ROLES]


def _base(request: Request) -> str:
    """Return the address of a study or a trial."""
    params = request.path_params
    study = f"/studies/{params['key']}"
    return f"{study}/trials/{params['trial']}" if "trial" in params else study


def _tick() -> int:
    return int(time.monotonic() / _TICK)


def _short(text: str) -> str:
    return f"{hash(text):x}"
