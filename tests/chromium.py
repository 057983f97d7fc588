"""Headless Chromium, for pictures of what people see of real sweeps; and those pictures made small, for the docs."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from PIL import Image

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
COMMAND = [sys.executable, "-c", "import sys; from hpsearch.cli import main; sys.exit(main())"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "comm"), str(ROOT / "trainers")])}
SIZE = 1500, 900
PATIENCE = 150.0
"""Seconds to wait for what is to be seen."""


class NoAnswerError(Exception):
    """The browser couldn't carry out a method."""


class Browser:
    """A page of headless Chromium, by its DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0
        self.problems: list[str] = []
        """Errors of scripts and of the page, and dialogs that scripts opened, once `watch` was called."""

    async def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        while True:
            answer = await self._socket.receive_json()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise NoAnswerError(answer["error"])
                return answer["result"]
            told = answer.get("params", {})
            if answer.get("method") in ("Runtime.exceptionThrown", "Page.javascriptDialogOpening") or (
                answer.get("method") == "Log.entryAdded" and told["entry"]["level"] == "error"
            ):
                self.problems.append(str(told))

    async def watch(self) -> None:
        """Collect problems from now on."""
        for domain in ("Runtime", "Log"):
            await self.call(f"{domain}.enable")

    async def open(self, address: str, until: str, still: float = 4.0, patience: float = PATIENCE) -> float:
        """Open an address; return the seconds until an expression holds. Then wait until all is drawn."""
        await self.call("Page.navigate", url="about:blank")
        began = time.monotonic()
        await self.call("Page.navigate", url=address)
        await self.wait(until, patience)
        took = time.monotonic() - began
        await asyncio.sleep(still)
        return took

    async def wait(self, until: str, patience: float = PATIENCE) -> None:
        """Wait until an expression holds."""
        began = time.monotonic()
        while True:
            with contextlib.suppress(NoAnswerError):  # the page is just left for another one
                if await self.value(until):
                    return
            if time.monotonic() - began > patience:
                raise TimeoutError(f"it never came to {until}: {await self.value('document.body.innerText')}")
            await asyncio.sleep(0.1)

    async def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        """Show pages on a screen of so many pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )

    async def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression on the page; of a promise, what it comes to."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return answer["result"].get("value")

    async def press(self, key: str, code: int) -> None:
        """Press a key, by its name and its number."""
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    async def save(self, path: Path) -> None:
        """Save what is to be seen."""
        shot = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Start Chromium."""
    profile = tempfile.mkdtemp()
    words = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--remote-debugging-port=0"]
    words += [f"--user-data-dir={profile}", f"--window-size={SIZE[0]},{SIZE[1]}", "--hide-scrollbars", "about:blank"]
    process = await asyncio.create_subprocess_exec("chromium", *words, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        found = None
        while found is None:
            found = re.search(r"ws://([\w.:]+)/", (await process.stderr.readline()).decode())
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{found[1]}/json") as answer:
                pages = [page for page in await answer.json() if page["type"] == "page"]
            async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Browser(socket)
                await page.call("Page.enable")
                await page.size(*SIZE)
                yield page
    finally:
        process.terminate()
        await process.wait()
        shutil.rmtree(profile, ignore_errors=True)


def hpsearch(*words: object) -> None:
    """Run a command of this tree's hpsearch."""
    subprocess.run([*COMMAND, *map(str, words)], check=True, env=ENVIRONMENT)


def small(source: Path, name: str, share: float = 0.75) -> None:
    """Put a picture into the docs, at a share of its size and with 256 colours."""
    image = Image.open(source).convert("RGB")
    size = round(image.width * share), round(image.height * share)
    written = io.BytesIO()
    image = image.resize(size, Image.Resampling.LANCZOS)
    # The median cut forgets colours of few pixels, such as those of a key.
    image.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=1).save(written, "PNG", optimize=True)
    (IMAGES / name).write_bytes(written.getvalue())
