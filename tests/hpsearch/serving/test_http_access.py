"""Who may send which request: every token with every kind of request, origin and host."""

from __future__ import annotations

import itertools
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from hpsearch.errors import HpsearchError
from hpsearch.serving.access import (
    ROLES,
    VARIABLES,
    Access,
    Policy,
    Refusal,
    Role,
    Rule,
    Tokens,
    client_token,
    load_tokens,
)

TOKENS = Tokens(read="read-" + "r" * 30, steer="steer-" + "s" * 30, agent="agent-" + "a" * 30)
ENVIRONMENT = {VARIABLES[role]: token for role, token in TOKENS.by_role.items()}
HOST = "127.0.0.1:8800"
NOW = 1_000_000.0

RULES: dict[tuple[str, str], Rule] = {
    ("GET", "/open"): Rule(None),
    ("GET", "/page"): Rule("read"),
    ("POST", "/stop"): Rule("steer", most_bytes=100),
    ("POST", "/lease"): Rule("agent", most_bytes=100),
}
PERMITTED = {
    (None, False): {"/open"},
    (None, True): {"/open", "/page"},
    ("read", False): {"/open", "/page"},
    ("steer", False): {"/open", "/page", "/stop"},
    ("agent", False): {"/open", "/lease"},
    ("agent", True): {"/open", "/page", "/lease"},
}
"""Paths that a token opens, and one that it opens if reading is free."""


def policy(**changes: Any) -> Policy:
    return Policy(**{"tokens": TOKENS, "rule": lambda method, path: RULES[method, path], **changes})


def status(rules: Policy, method: str, path: str, headers: dict[str, str]) -> int:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    answer = rules.check(method, path, raw, NOW)
    return answer.status if isinstance(answer, Refusal) else 200


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("role", [None, "read", "steer", "agent"])
@pytest.mark.parametrize("by", ["header", "cookie"])
def test_each_token_opens_its_own_requests_alone(role: Role | None, free: bool, by: str):
    rules = policy(reads_freely=free)
    permitted = PERMITTED[None, free] | PERMITTED[role, False]
    for (method, path), origin in itertools.product(RULES, [None, f"http://{HOST}", "https://evil.example", "null"]):
        headers = {"host": HOST}
        if origin is not None:
            headers["origin"] = origin
        if role is not None and by == "header":
            headers["authorization"] = f"Bearer {TOKENS.by_role[role]}"
        elif role is not None:
            headers["cookie"] = f"other=1; {TOKENS.cookie_name}={TOKENS.cookie(role, NOW)}"
        got = status(rules, method, path, headers)
        if origin in ("https://evil.example", "null"):
            assert got == 403, (path, origin)
        elif by == "cookie" and method == "POST" and origin is None:
            assert got in (401, 403), "a browser always names the origin of what changes something"
        else:
            assert (got == 200) == (path in permitted), (path, origin, got)
            assert got in (200, 401, 403)


@pytest.mark.parametrize(
    ("host", "is_known"),
    [
        ("127.0.0.1:8800", True),
        ("localhost:9000", True),
        ("LOCALHOST", True),
        ("[::1]:8800", True),
        ("192.168.1.5", True),
        ("gpu.example:8800", True),
        ("gpu.example.", True),
        ("evil.example:8800", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("user@localhost", False),
        ("localhost/x", False),
        ("", False),
    ],
)
def test_a_request_must_name_this_server(host: str, is_known: bool):
    rules = policy(reads_freely=True, names=frozenset({"localhost", "gpu.example"}))
    assert status(rules, "GET", "/open", {"host": host}) == (200 if is_known else 421)
    assert status(rules, "GET", "/open", {}) == 421


def test_an_origin_of_another_port_or_name_of_this_machine_is_refused():
    for origin in (f"http://{HOST}0", "http://127.0.0.1", "http://localhost:8800", "ftp://127.0.0.1:8800", ""):
        headers = {"host": HOST, "origin": origin, "authorization": f"Bearer {TOKENS.steer}"}
        assert status(policy(), "POST", "/stop", headers) == 403, origin


@pytest.mark.parametrize(
    "sent",
    [
        "Bearer",
        "Bearer ",
        f"Basic {TOKENS.steer}",
        TOKENS.steer,
        f"Bearer {TOKENS.steer}x",
        f"Bearer {TOKENS.steer[:-1]}",
    ],
)
def test_a_wrong_token_is_refused_also_where_reading_is_free(sent: str):
    assert status(policy(reads_freely=True), "GET", "/page", {"host": HOST, "authorization": sent}) == 401


def test_headers_that_decide_are_sent_once():
    twice = [(b"host", HOST.encode()), (b"authorization", b"Bearer x"), (b"authorization", b"Bearer y")]
    answer = policy().check("GET", "/page", twice, NOW)
    assert isinstance(answer, Refusal)
    assert answer.status == 400


def test_a_cookie_expires_and_does_not_hold_the_token():
    cookie = TOKENS.cookie("steer", NOW)
    assert TOKENS.steer not in cookie
    assert TOKENS.role_of_cookie(cookie, NOW) == "steer"
    assert TOKENS.role_of_cookie(cookie, NOW + 12 * 3600) is None
    later = cookie.replace(cookie.partition(".")[0], str(int(NOW) + 10**6))
    assert TOKENS.role_of_cookie(later, NOW) is None, "its time is signed"
    others = Tokens(read="x" * 20, steer="y" * 20, agent="z" * 20)
    assert others.role_of_cookie(cookie, NOW) is None
    assert others.cookie_name != TOKENS.cookie_name


@given(st.text())
def test_any_text_is_no_token(text: str):
    assert TOKENS.role_of(text) is None
    assert TOKENS.role_of_cookie(text, NOW) is None


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the roles and the number of bytes of the body."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    text = f"{','.join(sorted(scope[ROLES]))} {len(body)}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"cache-control", b"max-age=60")]})
    await send({"type": "http.response.body", "body": text})


def client(**changes: Any) -> TestClient:
    return TestClient(Access(echo, policy(**changes)), base_url=f"http://{HOST}", follow_redirects=False)


def test_an_application_sees_what_the_client_may_do_and_all_answers_have_the_headers():
    answer = client().post("/stop", content=b"x" * 100, headers={"authorization": f"Bearer {TOKENS.steer}"})
    assert answer.text == "read,steer 100"
    assert answer.headers["cache-control"] == "max-age=60", "its own headers stay"
    refused = client().get("/page")
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    for each in (answer, refused):
        policy_text = each.headers["content-security-policy"]
        assert "default-src 'none'" in policy_text
        assert "script-src 'self';" in policy_text
        assert "frame-ancestors 'none'" in policy_text
        assert each.headers["x-content-type-options"] == "nosniff"
        assert each.headers["cross-origin-resource-policy"] == "same-origin"


def test_a_body_that_is_too_long_or_has_no_length_is_refused():
    headers = {"authorization": f"Bearer {TOKENS.steer}"}
    assert client().post("/stop", content=b"x" * 101, headers=headers).status_code == 413
    assert client().post("/stop", content=iter([b"x" * 60, b"x" * 40]), headers=headers).status_code == 411


def test_a_token_in_an_address_opens_nothing():
    assert client().get(f"/page?token={TOKENS.read}&HPSEARCH_READ_TOKEN={TOKENS.read}").status_code == 401


def test_a_browser_without_a_token_is_sent_to_sign_in_and_a_program_is_not():
    browser = client(sign_in="/sign-in")
    answer = browser.get("/page", headers={"accept": "text/html"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert browser.get("/page").status_code == 401


def test_the_file_of_tokens_is_made_once_for_its_owner_alone(tmp_path: Path):
    path = tmp_path / "new" / "tokens"
    tokens = load_tokens(path, {})
    assert load_tokens(path, {}) == tokens
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [child.name for child in path.parent.iterdir()] == ["tokens"]
    assert len({*tokens.by_role.values()}) == 3
    assert tokens.read not in repr(tokens)
    assert client_token("agent", path, {}) == tokens.agent
    mixed = load_tokens(path, {"HPSEARCH_STEER_TOKEN": TOKENS.steer})
    assert (mixed.read, mixed.steer) == (tokens.read, TOKENS.steer)


def test_the_environment_alone_is_enough(tmp_path: Path):
    path = tmp_path / "tokens"
    assert load_tokens(path, ENVIRONMENT) == TOKENS
    assert client_token("read", path, ENVIRONMENT) == TOKENS.read
    assert not path.exists()


def test_unusable_tokens_are_named(tmp_path: Path):
    path = tmp_path / "tokens"
    with pytest.raises(HpsearchError, match="HPSEARCH_AGENT_TOKEN: must be set to the server's token"):
        client_token("agent", path, {})
    for bad in ("short", "with spaces in it " * 2, "ä" * 40):
        with pytest.raises(HpsearchError, match="HPSEARCH_STEER_TOKEN: must be a token of 16 or more letters"):
            load_tokens(path, {**ENVIRONMENT, "HPSEARCH_STEER_TOKEN": bad})
    with pytest.raises(HpsearchError, match="must differ"):
        load_tokens(path, {**ENVIRONMENT, "HPSEARCH_STEER_TOKEN": TOKENS.read})
    path.write_text("HPSEARCH_READ_TOKEN=x\n")
    path.chmod(0o640)
    with pytest.raises(HpsearchError, match=r"must be a file that only its owner.*got mode 0640"):
        load_tokens(path, {})
    path.chmod(0o600)
    with pytest.raises(HpsearchError, match="must have a line HPSEARCH_STEER_TOKEN=TOKEN"):
        load_tokens(path, {})
