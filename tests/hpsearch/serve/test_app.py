"""The addresses of `hpsearch serve`: who may use each, what they show, and what steering writes."""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

import hpsearch
from hpsearch.decision import Followed
from hpsearch.errors import SweepError
from hpsearch.events import Opened, Steered
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch.serve.app import application
from hpsearch.serve.live import ServedStudy, Studies, key_of
from hpsearch.serve.steering import read_request
from hpsearch.serving.access import Tokens
from tests.hpsearch.support.command_line import call
from tests.hpsearch.support.pages import searched

TOKENS = Tokens(read="read-" + "r" * 30, steer="steer-" + "s" * 30, agent="agent-" + "a" * 30)
HOST = "127.0.0.1:8642"
EVIL = "<script>alert(1)<"
KEY = "~3Cscript~3Ealert~281~29~3C"


def printing(trial: hpsearch.RunningTrial) -> None:
    for iteration in trial.iterations():
        trial.note(seen="<script>noted</script>")
        print(f"\x1b[31m<script>alert({iteration})</script>\x1b[0m")
        if trial.params["x"] > 0.8:
            raise ValueError("too <script>large</script> & 'wide'")
        trial.report({"loss": (trial.params["x"] - 0.37) ** 2 + 1 / iteration, "<i>": 1.0})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a study whose names and outputs are HTML."""
    folder = tmp_path_factory.mktemp("serve") / "runs"
    study = searched(folder / EVIL, printing, early_terminate=hpsearch.Hyperband(max_iter=3, eta=3), seed=5)
    with Journal.read(StudyDirectory(study.directory).journal) as journal:
        journal.request("note", {"text": "<script>note</script>"}, "ann@box:1")
    return folder


@contextmanager
def opened(folder: Path, *, is_local: bool = True, is_secure: bool = False) -> Iterator[tuple[TestClient, Studies]]:
    with Studies(folder) as studies:
        app = application(studies, TOKENS, is_local=is_local, is_secure=is_secure, names=frozenset({"localhost"}))
        studies.is_over.set()  # so that streams of events end
        with TestClient(app, base_url=f"http://{HOST}", follow_redirects=False) as client:
            yield client, studies


@contextmanager
def clients(folder: Path, *, is_local: bool = True) -> Iterator[TestClient]:
    with opened(folder, is_local=is_local) as (client, _):
        yield client


@contextmanager
def held(study: Path) -> Iterator[None]:
    """Let the study look as if a process ran it."""
    place = StudyDirectory(study)
    with place.running("ann@box:7"), Journal.open(place.journal) as journal:
        journal.append([Opened("inline", 1, "ann@box:7", "hpsearch resume")])
        yield


ADDRESSES: dict[tuple[str, str], str | None] = {
    ("GET", "/static/style.css"): None,
    ("GET", "/static/app.js"): None,
    ("GET", "/sign-in"): None,
    ("GET", "/"): "read",
    ("GET", "/live"): "read",
    ("GET", "/parts/studies"): "read",
    ("GET", f"/studies/{KEY}"): "read",
    ("GET", f"/studies/{KEY}/live"): "read",
    ("GET", f"/studies/{KEY}/parts/head"): "read",
    ("GET", f"/studies/{KEY}/parts/steering"): "read",
    ("GET", f"/studies/{KEY}/parts/trials"): "read",
    ("GET", f"/studies/{KEY}/parts/curves"): "read",
    ("GET", f"/studies/{KEY}/parts/charts"): "read",
    ("GET", f"/studies/{KEY}/trials/0"): "read",
    ("GET", f"/studies/{KEY}/trials/0/live"): "read",
    ("GET", f"/studies/{KEY}/trials/0/parts/trial"): "read",
    ("GET", f"/studies/{KEY}/trials/0/parts/log"): "read",
    ("POST", f"/studies/{KEY}/requests"): "steer",
}
MAY = {None: set(), "read": {"read"}, "steer": {"read", "steer"}, "agent": set()}


@pytest.mark.parametrize("role", [None, "read", "steer", "agent"])
@pytest.mark.parametrize("is_local", [True, False])
def test_every_address_with_every_token_origin_and_host(folder: Path, role: Any, is_local: bool):
    origins = [None, f"http://{HOST}", "https://evil.example", "null"]
    with clients(folder, is_local=is_local) as client:
        for ((method, path), needed), origin, host in itertools.product(
            ADDRESSES.items(), origins, [HOST, "evil.example:8642"]
        ):
            headers = {"host": host}
            if origin is not None:
                headers["origin"] = origin
            if role is not None:
                headers["authorization"] = f"Bearer {TOKENS.by_role[role]}"
            body = {"verb": "pause"} if method == "POST" else None
            status = client.request(method, path, headers=headers, data=body).status_code
            case = method, path, origin, host, status
            if host != HOST:
                assert status == 421, case
            elif origin not in (None, f"http://{HOST}"):
                assert status == 403, case
            elif needed is None or needed in MAY[role] or (is_local and needed == "read"):
                # No process runs the study, so a request that is permitted is refused as such.
                assert status == (409 if method == "POST" else 200), case
            else:
                assert status in (401, 403), case


def test_a_browser_signs_in_with_a_form_and_its_cookie_is_for_pages_alone(folder: Path):
    with clients(folder, is_local=False) as client:
        assert client.get("/", headers={"accept": "text/html"}).headers["location"] == "/sign-in"
        same = {"origin": f"http://{HOST}"}
        assert client.post("/sign-in", data={"token": "x" * 35}, headers=same).status_code == 401
        assert client.post("/sign-in", data={"token": TOKENS.agent}, headers=same).status_code == 401
        assert client.post("/sign-in", data={"token": TOKENS.steer}, headers={"origin": "null"}).status_code == 403
        answer = client.post("/sign-in", data={"token": TOKENS.steer}, headers=same)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert TOKENS.steer not in cookie
        assert client.get("/").status_code == 200
        request = f"/studies/{KEY}/requests"
        assert client.post(request, data={"verb": "pause"}, headers=same).status_code == 409
        assert client.post(request, data={"verb": "pause"}).status_code == 401, "a browser names the origin"
        client.post("/sign-out", headers=same)
        assert client.get("/").status_code == 401
    with opened(folder, is_local=False, is_secure=True) as (client, _):
        answer = client.post("/sign-in", data={"token": TOKENS.read}, headers={"origin": f"https://{HOST}"})
        assert "Secure" in answer.headers["set-cookie"]


class Elements(HTMLParser):
    """Collects the elements and the attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.scripts: list[str | None] = []
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "script":
            self.scripts.append(dict(attrs).get("src"))


def test_what_users_wrote_is_text_everywhere(folder: Path):
    shown = ""
    with clients(folder) as client:
        failed = next(row.number for row in hpsearch.load(folder / EVIL).trials if row.failure is not None)
        addresses = [path for method, path in ADDRESSES if method == "GET" and not path.startswith("/static")]
        trial = f"/studies/{KEY}/trials/{failed}"
        for path in [*addresses, f"{trial}/parts/trial", f"{trial}/parts/log", f"/studies/{KEY}?where=<script>x"]:
            text = client.get(path).text
            elements = Elements(text)
            assert elements.scripts in ([], ["/static/app.js"]), path
            assert "i" not in elements.tags, path
            assert not [name for name in elements.attributes if name.startswith("on")], path
            shown += text
    for text in (
        "&lt;script&gt;alert(1)&lt;",
        "too &lt;script&gt;large",
        "&lt;script&gt;note&lt;",
        "&lt;script&gt;noted&lt;",
        "&lt;i&gt;",
    ):
        assert text in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    "key",
    ["%2e%2e", "..%2f..%2fetc", "~2E~2E", "~2Fetc", "nope", "%00", "x" * 5000, "~3Cscript~3E%0a"],
)
def test_only_studies_of_the_folder_have_addresses(folder: Path, key: str):
    with clients(folder) as client:
        for path in ("", "/parts/head", "/trials/0/parts/log", "/live"):
            assert client.get(f"/studies/{key}{path}").status_code in (404, 307), path
        client.get(f"/studies/{KEY}/parts/head")
        for missing in (f"/studies/{KEY}/trials/9999", f"/studies/{KEY}/trials/-1", f"/studies/{KEY}/parts/x"):
            assert client.get(missing).status_code == 404
        assert client.get("/static/../app.py").status_code == 404
        assert client.get("/static/..%2fapp.py").status_code == 404


def test_a_log_that_is_a_link_is_not_shown(tmp_path: Path):
    study = searched(tmp_path / "runs" / "one", printing, early_terminate=None, run_cap=1, max_iter=1)
    secret = tmp_path / "secret"
    secret.write_text("the secret\n")
    log = study.directory / "trials" / "00000" / "1" / "output.log"
    address = "/studies/one/trials/0/parts/log"
    with clients(tmp_path / "runs") as client:
        assert "&lt;script&gt;alert(1)" in client.get(address).text
        log.unlink()
        log.symlink_to(secret)
        answer = client.get(address)
        assert answer.status_code == 200
        assert "secret" not in answer.text


REQUESTS = [
    ({"verb": "pause"}, "pause", {}),
    ({"verb": "resume"}, "resume", {}),
    ({"verb": "stop"}, "stop", {}),
    ({"verb": "cancel"}, "cancel", {}),
    ({"verb": "prune", "trials": "3, 5 3"}, "prune", {"trials": [3, 5]}),
    ({"verb": "retry"}, "retry", {"trials": []}),
    ({"verb": "retry", "trials": "2"}, "retry", {"trials": [2]}),
    ({"verb": "extend", "run_cap": "60", "brackets": "", "max_iter": ""}, "extend", {"run_cap": 60}),
    ({"verb": "extend", "max_iter": "9", "trials": "1"}, "extend", {"max_iter": 9, "trials": [1]}),
    ({"verb": "add", "points": '{"x": 0.5}'}, "add", {"points": [{"x": 0.5}]}),
]
WRONG = [
    {"verb": ""},
    {"verb": "run"},
    {"verb": "change", "set": "parameters.x.max=2"},
    {"verb": "on_end", "command": "rm -rf /"},
    {"verb": "pause", "trainable": "os:system"},
    {"verb": "extend", "run_cap": "60", "program": "x.py"},
    {"verb": "extend", "run_cap": "60", "storage": "/etc"},
    {"verb": "extend"},
    {"verb": "extend", "run_cap": "-1"},
    {"verb": "extend", "run_cap": "1e9"},
    {"verb": "extend", "run_cap": "9" * 30},
    {"verb": "extend", "trials": "1"},
    {"verb": "prune"},
    {"verb": "prune", "trials": "one"},
    {"verb": "prune", "trials": "1 " * 2000},
    {"verb": "add", "points": "x"},
    {"verb": "add", "points": "[]"},
    {"verb": "add", "points": "[1]"},
    {"verb": "add", "points": '{"x": NaN}'},
    {"verb": "add", "points": "[" * 5000},
]


def test_steering_writes_the_requests_of_the_command_line_and_nothing_else(tmp_path: Path):
    study = searched(tmp_path / "runs" / "one", run_cap=2, early_terminate=None, max_iter=1).directory
    headers = {"authorization": f"Bearer {TOKENS.steer}"}
    with clients(tmp_path / "runs") as client, held(study):
        address = "/studies/one/requests"
        for fields in WRONG:
            answer = client.post(address, data=fields, headers=headers)
            assert answer.status_code == 409, fields
            assert answer.json()["refused"], fields
        for content, kind in [(b"verb=pause", "text/plain"), (b'{"verb": "pause"}', "application/json")]:
            assert client.post(address, content=content, headers={**headers, "content-type": kind}).status_code == 415
        form = {**headers, "content-type": "application/x-www-form-urlencoded"}
        assert client.post(address, content=b"verb=pause&verb=stop", headers=form).status_code == 409
        assert client.post(address, content=b"verb=pa%ffuse", headers=form).status_code == 400
        assert client.post(address, content=b"a=1&" * 40, headers=form).status_code == 400
        assert client.post(address, content=b"verb=add&points=" + b" " * (1 << 16), headers=form).status_code == 413
        for fields, _, _ in REQUESTS:
            assert client.post(address, data=fields, headers=headers).status_code == 202, fields
    with Journal.read(StudyDirectory(study).journal) as journal:
        written = [(request.verb, request.details) for request in journal.all_requests()]
    assert written == [(verb, details) for _, verb, details in REQUESTS]


@given(st.lists(st.tuples(st.sampled_from(["verb", "trials", "run_cap", "points", "program"]) | st.text(), st.text())))
def test_any_form_is_a_request_or_an_error(fields: list[tuple[str, str]]):
    try:
        verb, details = read_request(fields)
    except SweepError:
        return
    assert verb in ("pause", "resume", "stop", "cancel", "retry")
    assert details.keys() <= {"trials"}


def test_the_page_offers_what_a_client_may_do(tmp_path: Path):
    study = searched(tmp_path / "runs" / "one", run_cap=2, early_terminate=None, max_iter=1).directory
    address = "/studies/one/parts/steering"
    steers = {"authorization": f"Bearer {TOKENS.steer}"}
    with opened(tmp_path / "runs") as (client, studies):
        assert "hpsearch extend" in client.get(address).text
        with held(study):
            studies.all()["one"].look()
            assert client.get(address).text == ""
            shown = client.get(address, headers=steers).text
            assert [verb for verb in ("pause", "resume", "stop", "cancel") if f'value="{verb}"' in shown] == [
                *("pause", "stop", "cancel")
            ]
            assert 'name="run_cap"' in shown
            assert 'name="brackets"' not in shown, "this sweep has none"


def many(count: int, folder: Path) -> None:
    def quick(trial: hpsearch.RunningTrial) -> None:
        for _ in trial.iterations():
            trial.report({"loss": trial.params["x"]})

    searched(folder, quick, early_terminate=None, run_cap=count, max_iter=1)


def test_the_table_is_sorted_filtered_and_paged_by_the_server(tmp_path: Path):
    many(120, tmp_path / "runs" / "many")
    rows = hpsearch.load(tmp_path / "runs" / "many").trials
    address = "/studies/many/parts/trials"

    def numbers(query: str) -> list[int]:
        text = client.get(f"{address}?{query}").text
        return [int(cell.partition('"')[0]) for cell in text.split('id="trial-')[1:]]

    with clients(tmp_path / "runs") as client:
        by_loss = [row.number for row in sorted(rows, key=lambda row: row.values[0])]
        assert numbers("") == by_loss[:100]
        assert numbers("page=2") == by_loss[100:]
        assert numbers("page=99") == by_loss[100:]
        assert numbers("page=-1&sort=nope&state=nope&order=x") == by_loss[:100]
        assert numbers("sort=trial&order=desc") == list(range(119, 19, -1))
        assert numbers("state=failed") == []
        assert set(numbers("where=x%20%3C%200.1")) == {row.number for row in rows if row.params["x"] < 0.1}
        text = client.get(f"{address}?where=y%20%3C%200.1").text
        assert "must name what trials have, got &#x27;y&#x27;" in text
        assert 'aria-sort="ascending"' in text


def test_a_study_is_read_and_drawn_once_for_all_clients(tmp_path: Path):
    path = searched(tmp_path / "one", run_cap=2, early_terminate=None, max_iter=1).directory
    study, drawn = ServedStudy(path), []

    def draw() -> dict[str, str]:
        drawn.append(study.version)
        return {"charts": f"drawing {len(drawn)}"}

    study.look()
    first = study.version
    study.want()
    study.look()
    study.look()
    assert study.version == first + 1, "it was read again, as somebody wants it, and then nothing was new"
    assert {study.drawn("charts", draw)["charts"] for _ in range(5)} == {"drawing 1"}
    with held(path):
        study.look()
        with study.reading() as live:
            assert live.is_live
        assert study.version > first + 1
        assert study.line.state == "running"
    study.look()
    assert study.line.state == "killed"


def test_answers_reach_the_clients(tmp_path: Path):
    path = searched(tmp_path / "one", run_cap=2, early_terminate=None, max_iter=1).directory
    place, study = StudyDirectory(path), ServedStudy(path)
    study.want()
    with place.running("ann@box:7"), Journal.open(place.journal) as journal:
        journal.append([Opened("inline", 1, "ann@box:7", "hpsearch resume")])
        number = study.request("prune", {"trials": [0]})
        assert study.answers() == {}
        steered = Steered("prune", "ann@box:7", number, {"trials": [0]}, "it has ended")
        journal.append([steered], [Followed()])
        study.look()
        assert study.answers() == {number: steered}


def test_a_damaged_study_is_a_line_with_its_problem_and_others_are_shown(folder: Path, tmp_path: Path):
    searched(tmp_path / "good", run_cap=1, early_terminate=None, max_iter=1)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "study.db").write_text("not a journal")
    for name, details in {"array": "[1]", "tags": '{"tags": 5}'}.items():
        shutil.copytree(tmp_path / "good", tmp_path / name)
        with contextlib.closing(sqlite3.connect(tmp_path / name / "study.db")) as database, database:
            database.execute("INSERT INTO requests (time, verb, details) VALUES (1, 'tag', ?)", (details,))
        database.close()
    with opened(tmp_path) as (client, studies):
        for study in studies.all().values():
            study.look()
        lines = {key: (study.line.state, study.line.message) for key, study in studies.all().items()}
        assert lines["good"] == ("finished", "")
        assert lines["bad"][0] == lines["array"][0] == lines["tags"][0] == "unreadable"
        assert "request 1 can't be read: its details must be an object, got '[1]'" in lines["array"][1]
        assert "request 1 can't be read: its tags must be a list, got 5" in lines["tags"][1]
        answer = client.get("/studies/bad/parts/head")
        assert answer.status_code == 404
        assert "SQLite says: file is not a database" in answer.text


def test_the_command_says_what_it_needs_before_it_serves(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    cases: list[tuple[list[object], str]] = [
        (["nowhere"], "nowhere: expected a folder with studies, but there is none"),
        ([folder, "--host", "0.0.0.0"], "--host 0.0.0.0: other machines would send tokens that anyone on the way"),
        ([folder, "--port", "65536"], "--port: must be from 0 to 65535, got 65536"),
        ([folder, "--tls-cert", tmp_path / "none.pem"], "must be a PEM file with a certificate"),
    ]
    for words, told in cases:
        answer = call(capsys, "serve", *words)
        assert answer.code == 1
        assert told in answer.err
    monkeypatch.setenv("HPSEARCH_STEER_TOKEN", "short")
    answer = call(capsys, "serve", folder)
    assert "HPSEARCH_STEER_TOKEN: must be a token of 16 or more letters" in answer.err


def test_a_single_study_can_be_served(folder: Path):
    with clients(folder / EVIL) as client:
        assert client.get(f"/studies/{KEY}").status_code == 200


@given(st.lists(st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_keys_are_letters_and_no_two_studies_share_one(parts: list[str]):
    relative = Path(*parts)
    key = key_of(relative, Path("runs"))
    assert key.isascii()
    assert not set(key) & set("/%?#& <>\"'")
    decoded = re.sub("~(..)", lambda match: chr(int(match[1], 16)), key).encode("latin-1").decode()
    assert decoded == str(relative)


def test_keys_of_similar_paths_differ():
    paths = ["a/b", "a~b", "a~2Fb", "a b", "a", "A", "a.b", "ä"]
    assert len({key_of(Path(path), Path("runs")) for path in paths}) == len(paths)
