"""The documents of a driver and its agents over HTTP, with checkpoints and output.

GET  /announcement                                  what the driver announces
POST /exchange                                      an agent's document; the answer is the driver's for it
GET  /checkpoint                                    the checkpoint that the agent's task starts from, packed
PUT  /checkpoint/<trial>/<attempt>/<iteration>      a checkpoint of the agent's attempt, packed
PUT  /output/<trial>/<attempt>                      the end of the attempt's output

An agent names itself in a header, by a number that only it and the driver know, and may speak of its own task alone.
Clients never name paths.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import shutil
import ssl
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO
from urllib.parse import urlsplit

from hpsearch.backends.agents.messages import AgentState, Announcement, Orders, decode, encode
from hpsearch.config.strict_json import parse_json
from hpsearch.errors import BackendError, CheckpointError, HpsearchError
from hpsearch.serving.access import Access, Policy, Rule, load_tokens
from hpsearch.serving.server import Listen, running
from hpsearch.trainable.addresses import path_of
from hpsearch.trainable.checkpoints import name_of, pack_into, unpack
from hpsearch.trial import Segment
from hpsearch.worker.attempt import LOG, attempt_directory

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

AGENT = "x-hpsearch-agent"
"""Header with the agent."""

_AGENT = re.compile(r"[0-9a-f]{32}")
_LARGEST_DOCUMENT = 64 << 20
_LARGEST_CHECKPOINT = 64 << 30
LARGEST_OUTPUT = 1 << 20
"""Last bytes of an attempt's output that are sent."""
_CHUNK = 1 << 20
_SECONDS = 30.0
"""Longest time without a byte from the other side."""
_DOCUMENT_SECONDS = 10.0
"""The same for documents. An agent enforces no time-outs meanwhile."""
_LAST_SECONDS = 3.0
"""How long a driver that ends waits for its agents."""
_MOST_MISTAKES = 10


def _rule(method: str, path: str) -> Rule:
    """Return what a request needs."""
    if path.startswith("/checkpoint/"):
        return Rule("agent", _LARGEST_CHECKPOINT)
    return Rule("agent", LARGEST_OUTPUT if path.startswith("/output/") else _LARGEST_DOCUMENT)


class DriverServer:
    """The driver's side: a server in threads of this process.

    Args:
        listen: Where it listens.
        names: Names of the server, besides its addresses.
        study: The study's directory.
    """

    def __init__(self, listen: Listen, names: frozenset[str], study: Path) -> None:
        self._listen = listen
        self._names = names
        self._study = study
        self._guard = threading.Lock()
        self._writing = threading.Lock()
        self._stack = contextlib.ExitStack()
        self._announcement = b""
        self._states: dict[str, AgentState] = {}
        self._mistakes: list[str] = []
        self._orders: dict[str, Orders] = {}
        self._left: dict[str, Orders] = {}
        self._told: set[str] = set()
        """Agents that have received orders to end."""
        self.address = ""
        """Where agents find this driver."""

    def open(self, announcement: Announcement) -> None:
        """Start the server.

        Raises:
            HpsearchError: It can't listen there, or has no tokens.
        """
        self._announcement = encode(announcement)
        policy = Policy(load_tokens(), _rule, names=self._names)
        port = self._stack.enter_context(running(Access(self._application(), policy), self._listen))
        self.address = self._listen.url(port)

    def collect(self) -> tuple[list[AgentState], list[str]]:
        """Return the new documents of agents, and what is wrong with others."""
        with self._guard:
            states, self._states = list(self._states.values()), {}
            mistakes, self._mistakes = self._mistakes, []
        return states, mistakes

    def publish(self, orders: Mapping[str, Orders]) -> None:
        """Replace the answers to agents."""
        with self._guard:
            self._orders = {**self._left, **orders}

    def forget(self, agent: str) -> None:
        """Forget an agent that has left, except the orders that say that its last document was received."""
        with self._guard:
            self._left[agent] = self._orders[agent]

    def close(self, announcement: Announcement, present: Collection[str]) -> None:
        """End the server, once the agents that are present know that the driver has ended, or some seconds later."""
        self._announcement = encode(announcement)
        deadline = time.monotonic() + _LAST_SECONDS
        while not self._told.issuperset(present) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._stack.close()

    def _application(self) -> Access:
        from starlette.applications import Starlette
        from starlette.requests import ClientDisconnect
        from starlette.routing import Route

        application: Access = Starlette(  # type: ignore[assignment]
            routes=[
                Route("/announcement", self._announce, methods=["GET"]),
                Route("/exchange", self._exchange, methods=["POST"]),
                Route("/checkpoint", self._send_checkpoint, methods=["GET"]),
                Route("/checkpoint/{trial:int}/{attempt:int}/{iteration:int}", self._take_checkpoint, methods=["PUT"]),
                Route("/output/{trial:int}/{attempt:int}", self._take_output, methods=["PUT"]),
            ],
            exception_handlers=dict.fromkeys((HpsearchError, OSError, ClientDisconnect), _refusal),
        )
        return application

    def _announce(self, request: Request) -> Response:
        from starlette.responses import Response

        return Response(self._announcement, media_type="application/json")

    async def _exchange(self, request: Request) -> Response:
        from starlette.responses import Response

        agent = _agent_of(request)
        try:
            state = decode(AgentState, await request.body())
            if state.agent != agent or not _AGENT.fullmatch(agent):
                raise ValueError("it must be of the agent that sends it")
        except ValueError as error:
            with self._guard:
                if len(self._mistakes) < _MOST_MISTAKES:
                    self._mistakes.append(f"a document of an agent was refused: {error}")
            raise RefusedError(400, str(error)) from error
        with self._guard:
            newest = self._states.get(agent)
            if newest is None or newest.counter < state.counter:
                self._states[agent] = state
            orders = self._orders.get(agent)
            if orders is not None and orders.stop:
                self._told.add(agent)
        return Response(status_code=204) if orders is None else Response(encode(orders), media_type="application/json")

    def _segment_of(self, request: Request) -> Segment:
        """Return the segment of the agent that sends a request.

        Raises:
            RefusedError: It has none, or speaks of another.
        """
        with self._guard:
            orders = self._orders.get(_agent_of(request))
        task = None if orders is None else orders.task
        given = request.path_params
        if task is None or ("trial" in given and (given["trial"], given["attempt"]) != task.key):
            raise RefusedError(409, "this attempt is not this agent's")
        return task.segment

    def _send_checkpoint(self, request: Request) -> Response:
        from starlette.responses import StreamingResponse

        checkpoint = self._segment_of(request).checkpoint
        if checkpoint is None:
            raise RefusedError(409, "this agent's task begins without a checkpoint")
        file = tempfile.TemporaryFile(dir=self._study / "trials")  # noqa: SIM115 (it is sent later)
        try:
            pack_into(file, self._study / checkpoint)
        except HpsearchError as error:
            file.close()
            raise RefusedError(404 if isinstance(error, CheckpointError) else 507, str(error)) from error
        length = file.tell()
        file.seek(0)
        return StreamingResponse(_chunks(file), headers={"Content-Length": str(length)})

    async def _take_checkpoint(self, request: Request) -> Response:
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import Response

        segment, iteration = self._segment_of(request), request.path_params["iteration"]
        with tempfile.TemporaryFile(dir=self._study / "trials") as file:
            async for chunk in request.stream():
                await run_in_threadpool(file.write, chunk)
            if file.tell() != int(request.headers.get("content-length", "-1")):
                raise RefusedError(400, "the checkpoint must come with its length, and whole")
            file.seek(0)
            await run_in_threadpool(self._write_checkpoint, file, segment, iteration)
        return Response(status_code=204)

    def _write_checkpoint(self, file: BinaryIO, segment: Segment, iteration: int) -> None:
        checkpoint = self._study / attempt_directory(segment) / name_of(iteration)
        with self._writing:  # one that comes twice is written once
            if not checkpoint.exists():
                unpack(file, checkpoint)

    async def _take_output(self, request: Request) -> Response:
        from starlette.responses import Response

        directory = self._study / attempt_directory(self._segment_of(request))
        content = await request.body()
        directory.mkdir(parents=True, exist_ok=True)
        (directory / LOG).write_bytes(content)
        return Response(status_code=204)


def _agent_of(request: Request) -> str:
    return request.headers.get(AGENT, "")


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _refusal(request: Request, error: Exception) -> Response:
    """Answer a request that raised: 507 if the driver can't write, 400 if what came isn't whole, or no checkpoint."""
    from starlette.responses import PlainTextResponse

    if isinstance(error, RefusedError):
        return PlainTextResponse(str(error), error.status)
    can_write = not isinstance(error, OSError | HpsearchError) or isinstance(error, CheckpointError)
    return PlainTextResponse(str(error), 400 if can_write else 507)


class RefusedError(HpsearchError):
    """The driver refused a request.

    Args:
        status: The HTTP status.
        message: Why.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Client:
    """An agent's requests to a driver. It is sent to the process that runs segments.

    Raises:
        HpsearchError: The address can't be one of a driver.
    """

    url: str
    token: str
    agent: str

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise HpsearchError(
                f"{self.url}: must be a study's directory, or the address that the driver prints, such as "
                "https://lab-1:8643"
            )

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    @property
    def is_safe(self) -> bool:
        """Whether nobody on the way can read the token."""
        parts = urlsplit(self.url)
        return parts.scheme == "https" or Listen(parts.hostname or "", insecure=True).is_local

    def connect(self, seconds: float = _SECONDS) -> http.client.HTTPConnection:
        """Return a new connection, which fails after so many seconds without a byte."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None, "checked"
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=seconds)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=seconds, context=context)

    def request(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | BinaryIO = b"",
        length: int | None = None,
    ) -> http.client.HTTPResponse:
        """Send a request, and return its answer if it is a success.

        Raises:
            OSError: The driver can't be reached, or can't do it now.
            RefusedError: The driver refuses the request.
            BackendError: The driver refuses this agent, or isn't the one that its certificate is for.
        """
        headers = {"Authorization": f"Bearer {self.token}", AGENT: self.agent}
        headers["Content-Length"] = str(len(body) if isinstance(body, bytes) else length)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
        except ssl.SSLCertVerificationError as error:
            raise BackendError(
                f"{self.url}: must have a certificate that this machine trusts, got: {error.verify_message}. Name the "
                "file of its certificate, or of its authority's, in SSL_CERT_FILE"
            ) from error
        except http.client.HTTPException as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from error
        if answer.status in (200, 204):
            return answer
        text = answer.read(2000).decode("utf-8", "replace").strip()
        if answer.status in (401, 403, 421):
            raise BackendError(f"{self.url}: the driver refuses this agent: {text}")
        if answer.status in (400, 404, 409, 413, 507):
            raise RefusedError(answer.status, text)
        raise ConnectionError(f"the driver answers {answer.status}: {text}")

    def fetch(self, checkpoint: Path) -> None:
        """Write the checkpoint that the task starts from.

        Raises:
            OSError, RefusedError, BackendError: As in `request`.
            HpsearchError: It can't be written.
        """
        with contextlib.closing(self.connect()) as connection, tempfile.TemporaryFile() as file:
            answer = self.request(connection, "GET", "/checkpoint")
            shutil.copyfileobj(answer, file, _CHUNK)
            if file.tell() != int(answer.headers.get("content-length", "-1")):
                raise ConnectionError("the checkpoint didn't come whole")
            file.seek(0)
            unpack(file, checkpoint)

    def send(self, checkpoint: Path, segment: Segment, iteration: int) -> None:
        """Send a checkpoint of an attempt.

        Raises:
            OSError, RefusedError, BackendError: As in `request`.
            HpsearchError: It can't be read, or is too large.
        """
        with contextlib.closing(self.connect()) as connection, tempfile.TemporaryFile() as file:
            pack_into(file, checkpoint)
            length = file.tell()
            if length > _LARGEST_CHECKPOINT:
                raise CheckpointError(f"a checkpoint must have at most {_LARGEST_CHECKPOINT:,} bytes, got {length:,}")
            file.seek(0)
            path = f"/checkpoint/{segment.trial}/{segment.attempt}/{iteration}"
            self.request(connection, "PUT", path, file, length).read()


class AgentClient:
    """An agent's side, with a folder of its own for attempts.

    Args:
        client: Its requests.
    """

    def __init__(self, client: Client) -> None:
        self.where = client.url
        self.client: Client | None = client
        self._client = client
        self.root = Path(tempfile.mkdtemp(prefix="hpsearch-agent-"))
        self.scratch: Path | None = self.root
        self._connection = client.connect(_DOCUMENT_SECONDS)
        self._driver = ""
        self._announced = ""

    def announcement(self) -> bytes | None:
        """Return what a driver announces, if it is new."""
        if self._announced and self._announced == self._driver:
            return None
        content = self._ask("GET", "/announcement")
        parsed = parse_json(content)
        self._announced = self._driver = str(parsed.get("driver", "")) if isinstance(parsed, dict) else ""
        return content

    def exchange(self, state: AgentState) -> Orders | None:
        """Send a document; return the orders if there are some."""
        try:
            content = self._ask("POST", "/exchange", encode(state))
        except RefusedError as error:
            raise ValueError(str(error)) from error
        if not content:
            return None
        orders = decode(Orders, content)
        self._driver = orders.driver
        return orders

    def settle(self, segment: Segment) -> None:
        """Send an attempt's output, and delete its files here."""
        log = self.root / attempt_directory(segment) / LOG
        try:
            content = log.read_bytes()[-LARGEST_OUTPUT:]
            if content:
                self._ask("PUT", f"/output/{segment.trial}/{segment.attempt}", content)
        except (OSError, HpsearchError):  # there is none; or the driver is gone, and its attempt will be lost
            pass
        for folder in (attempt_directory(segment), *([] if segment.checkpoint is None else [segment.checkpoint])):
            shutil.rmtree(self.root / path_of(folder), ignore_errors=True)

    def close(self) -> None:
        """Delete the folder."""
        self._connection.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def _ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Return the body of an answer, over a connection that is kept."""
        is_kept = self._connection.sock is not None
        try:
            return self._client.request(self._connection, method, path, body).read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            if is_kept:  # the driver may have closed it, as nothing was sent for a while
                return self._ask(method, path, body)
            raise ConnectionError(f"{type(error).__name__}: {error}") from error
        except HpsearchError:
            self._connection.close()
            raise
