"""Who may send which HTTP request: tokens, and an ASGI middleware that checks them with each request's host and origin.

There are three tokens: `read` shows studies, `steer` shows and steers them, and `agent` runs trials.
A program sends its token in the header `Authorization: Bearer TOKEN`. A browser gets a cookie for it, which scripts
can't read and other sites can't send. Tokens are never part of an address, as addresses are kept in histories and logs.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hpsearch.errors import HpsearchError

Role = Literal["read", "steer", "agent"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
"""An ASGI application."""

ROLES = "hpsearch.roles"
"""Key of the ASGI scope under which an application finds what the client may do, a frozenset of `Role`."""

VARIABLES: Mapping[Role, str] = {
    "read": "HPSEARCH_READ_TOKEN",
    "steer": "HPSEARCH_STEER_TOKEN",
    "agent": "HPSEARCH_AGENT_TOKEN",
}
"""Environment variable, and name in the file of tokens, of each role's token."""

_INCLUDED: Mapping[Role, frozenset[Role]] = {
    "read": frozenset({"read"}),
    "steer": frozenset({"read", "steer"}),
    "agent": frozenset({"agent"}),
}
_SHORTEST = 16
"""Shortest token, in characters."""
_COOKIE_SECONDS = 12 * 3600

_HEADERS: Mapping[bytes, bytes] = {
    b"content-security-policy": (
        b"default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self'; "
        b"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    b"x-content-type-options": b"nosniff",
    # With `no-referrer`, browsers send `Origin: null` with forms.
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}


@dataclass(frozen=True)
class Tokens:
    """The token of each role.

    Raises:
        HpsearchError: A token is too short, has other characters than letters, digits and `._~+/=-`, or is used twice.
    """

    read: str
    steer: str
    agent: str

    def __post_init__(self) -> None:
        for role, token in self.by_role.items():
            _check_token(VARIABLES[role], token)
        if len(set(self.by_role.values())) < len(self.by_role):
            raise HpsearchError(f"{', '.join(VARIABLES.values())}: must differ, as each permits something else")

    def __repr__(self) -> str:
        return "Tokens(***)"

    @property
    def by_role(self) -> Mapping[Role, str]:
        """Each role's token."""
        return {"read": self.read, "steer": self.steer, "agent": self.agent}

    def role_of(self, token: str) -> Role | None:
        """Return the role of a token; None if it is none of them. The time doesn't depend on the tokens' characters."""
        return _matching(token, self.by_role)

    @property
    def cookie_name(self) -> str:
        """Name of the browser's cookie. Servers with other tokens on the same host have other names."""
        return f"hpsearch-{hashlib.sha256(self.steer.encode()).hexdigest()[:8]}"

    def cookie(self, role: Role, now: float) -> str:
        """Return the value of a cookie for a role. It expires, and the token can't be computed from it."""
        return self._signed(role, int(now) + _COOKIE_SECONDS)

    def role_of_cookie(self, value: str, now: float) -> Role | None:
        """Return the role of a cookie; None if it is expired or isn't from these tokens."""
        expiry = value.partition(".")[0]
        if not re.fullmatch(r"[0-9]{1,12}", expiry):
            return None
        role = _matching(value, {role: self._signed(role, int(expiry)) for role in self.by_role})
        return role if int(expiry) > now else None

    def _signed(self, role: Role, expiry: int) -> str:
        signature = hmac.new(self.by_role[role].encode(), f"cookie {expiry}".encode(), hashlib.sha256)
        return f"{expiry}.{signature.hexdigest()}"


def _matching(value: str, by_role: Mapping[Role, str]) -> Role | None:
    found: Role | None = None
    for role, expected in by_role.items():
        if secrets.compare_digest(value.encode(), expected.encode()):
            found = role
    return found


def _check_token(name: str, token: str) -> None:
    if len(token) < _SHORTEST or not re.fullmatch(r"[A-Za-z0-9._~+/=-]+", token):
        raise HpsearchError(
            f"{name}: must be a token of {_SHORTEST} or more letters, digits and ._~+/=-, got {len(token)} characters. "
            "`python3 -c 'import secrets; print(secrets.token_urlsafe(32))'` makes one"
        )


def token_file() -> Path:
    """Return the path of this user's tokens."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "hpsearch" / "tokens"


def load_tokens(path: Path | None = None, environment: Mapping[str, str] | None = None) -> Tokens:
    """Return the tokens of a server: from the environment, and those that it lacks from the user's file.

    The file is created if it is needed and missing. Only its owner can read it.

    Args:
        path: The file; None: `token_file()`.
        environment: Environment variables; None: those of this process.

    Raises:
        HpsearchError: A token is unusable, or the file can't be read, or others can read it.
    """
    path, environment = path or token_file(), os.environ if environment is None else environment
    given = {role: environment[name] for role, name in VARIABLES.items() if environment.get(name)}
    if len(given) < len(VARIABLES):
        if not path.exists():
            _create(path)
        given = _read(path) | given
    for role, name in VARIABLES.items():
        if role not in given:
            raise HpsearchError(f"{path}: must have a line {name}=TOKEN; delete the file, so that it is made anew")
    return Tokens(**given)


def client_token(role: Role, path: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Return the token that a client of a role sends: from the environment, or from the user's file.

    Args:
        role: The role.
        path: The file; None: `token_file()`.
        environment: Environment variables; None: those of this process.

    Raises:
        HpsearchError: There is none, it is unusable, or others can read the file.
    """
    path, environment = path or token_file(), os.environ if environment is None else environment
    name = VARIABLES[role]
    token = environment.get(name) or (_read(path).get(role) if path.exists() else None)
    if not token:
        raise HpsearchError(f"{name}: must be set to the server's token; its file is {path} on the server's machine")
    _check_token(name, token)
    return token


def _create(path: Path) -> None:
    """Create the file of tokens. If several processes do it at the same time, all of them use the same file."""
    lines = ["# Tokens of hpsearch's servers. Whoever has one can do what it permits.\n"]
    lines += [f"{name}={secrets.token_urlsafe(32)}\n" for name in VARIABLES.values()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file, temporary = tempfile.mkstemp(dir=path.parent)  # only its owner can read it
        try:
            with os.fdopen(file, "w", encoding="ascii") as stream:
                stream.writelines(lines)
            with suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            Path(temporary).unlink()
    except OSError as error:
        raise HpsearchError(
            f"{path}: expected a file that can be written, for the tokens, got: {error.strerror}. Or set "
            f"{', '.join(VARIABLES.values())}"
        ) from error


def _read(path: Path) -> dict[Role, str]:
    try:
        with path.open(encoding="utf-8") as stream:
            status = os.fstat(stream.fileno())
            lines = stream.read(1 << 16).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise HpsearchError(f"{path}: expected a file of tokens that can be read, got: {error}") from error
    if status.st_mode & 0o077 or status.st_uid not in (os.geteuid(), 0):
        raise HpsearchError(
            f"{path}: must be a file that only its owner, this user, can read, got mode {status.st_mode & 0o777:04o} "
            f"of user {status.st_uid}. Others may know the tokens: delete it, so that it is made anew"
        )
    values = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return {role: values[name].strip() for role, name in VARIABLES.items() if name in values}


@dataclass(frozen=True, slots=True)
class Rule:
    """What a request needs."""

    role: Role | None
    """None: anyone may send it."""
    most_bytes: int = 1 << 16
    """Largest body."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a request that is refused."""

    status: int
    message: str


@dataclass(frozen=True)
class Policy:
    """Who may send which request to a server."""

    tokens: Tokens
    rule: Callable[[str, str], Rule]
    """Returns what a request with this method and path needs."""
    reads_freely: bool = False
    """Whether `read` needs no token: only if the server can be reached from its own machine alone."""
    names: frozenset[str] = frozenset({"localhost", socket.gethostname().lower()})
    """Names of the server, in small letters. Its IP addresses are permitted in any case."""
    sign_in: str = ""
    """Path to which a browser without a token is sent; empty: there is none."""

    def check(
        self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]], now: float
    ) -> frozenset[Role] | Refusal:
        """Return what a client may do, or why its request is refused.

        Args:
            method: The request's method.
            path: The request's path.
            headers: The request's headers, with names in small letters.
            now: Time in seconds since the epoch.
        """
        values: dict[str, str] = {}
        for raw, value in headers:
            name = raw.decode("latin-1")
            if name in values and name in ("host", "origin", "authorization", "content-length"):
                return Refusal(400, f"{name}: must be sent once")
            values[name] = f"{values[name]}; {value.decode('latin-1')}" if name in values else value.decode("latin-1")
        host = values.get("host", "").lower()
        if not self._is_known(host):
            return Refusal(421, f"Host: must name this server, got {host!r}. See its option --name")
        origin = values.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            return Refusal(403, f"Origin: must be the page of this server, got {origin!r}")
        roles = self._roles(values, is_from_page=origin is not None or method in ("GET", "HEAD"), now=now)
        rule = self.rule(method, path)
        if "transfer-encoding" in values:
            return Refusal(411, "Content-Length: must be sent, as a body in chunks could have any length")
        length = values.get("content-length", "0")
        if not length.isdecimal() or int(length) > rule.most_bytes:
            return Refusal(413, f"the body must have at most {rule.most_bytes:,} bytes, got {length}")
        if rule.role is None:
            return roles or frozenset()
        if roles is None:
            return Refusal(401, "the token must be one of this server's")
        if rule.role in roles:
            return roles
        if roles - {"read"}:
            return Refusal(403, f"this needs the token for {rule.role!r}")
        return Refusal(401, f"this needs the token for {rule.role!r}, as the header `Authorization: Bearer TOKEN`")

    def _roles(self, headers: Mapping[str, str], is_from_page: bool, now: float) -> frozenset[Role] | None:
        """Return what a client may do; None if its token is wrong."""
        free: frozenset[Role] = frozenset({"read"}) if self.reads_freely else frozenset()
        sent = headers.get("authorization")
        if sent is not None:
            scheme, _, token = sent.partition(" ")
            role = self.tokens.role_of(token.strip()) if scheme.lower() == "bearer" else None
            return None if role is None else _INCLUDED[role] | free
        if not is_from_page:  # a browser names the origin; a cookie alone doesn't change anything
            return free
        roles = set(free)
        for pair in headers.get("cookie", "").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == self.tokens.cookie_name and (role := self.tokens.role_of_cookie(value, now)) is not None:
                roles |= _INCLUDED[role]
        return frozenset(roles)

    def _is_known(self, host: str) -> bool:
        """Return whether a `Host` is this server.

        A page of another site can make a browser send requests here under a name of its own, but not under an address.
        """
        match = re.fullmatch(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?", host)
        if match is None:
            return False
        name = match[1].strip("[]").removesuffix(".")
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self.names
        return True


class Access:
    """ASGI middleware that passes requests on if the policy permits them, and adds security headers to all answers."""

    def __init__(self, app: App, policy: Policy) -> None:
        self._app, self._policy = app, policy

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message.get("headers", ())}
                added = [(name, value) for name, value in _HEADERS.items() if name not in present]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        method, path = scope["method"], scope["path"]
        checked = self._policy.check(method, path, scope["headers"], time.time())
        if isinstance(checked, Refusal):
            location = self._policy.sign_in if checked.status == 401 and _wants_page(scope) else ""
            await _refuse(checked, send_safely, location)
            return
        scope[ROLES] = checked
        await self._app(scope, receive, send_safely)


def _wants_page(scope: Mapping[str, Any]) -> bool:
    return scope["method"] == "GET" and any(
        name == b"accept" and b"text/html" in value for name, value in scope["headers"]
    )


async def _refuse(refusal: Refusal, send: Send, location: str = "") -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    if location:
        headers.append((b"location", location.encode()))
    elif refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    status = 303 if location else refusal.status
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{refusal.message}\n".encode("utf-8", "backslashreplace")})
