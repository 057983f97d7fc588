"""Takes pictures of TensorBoard on real sweeps, in headless Chromium: `python -m tests.tensorboard_pictures FOLDER`.

It runs the sweep of `configs/digits.yaml`, and those of `configs/simulated.yaml`, which play recorded trainings back,
with two methods and four seeds of each, and one of 499 trials. Sweeps that lie in FOLDER/runs stay. It prints how
long the first curves took. Pictures in docs/images are of these, made smaller by `--docs`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from PIL import Image

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
SIZE = 1500, 900
PATIENCE = 60.0
"""Seconds to wait for what is to be seen."""

_CURVES = "document.querySelectorAll('scalar-card tb-data-table-content-row, scalar-card .row').length > 0"
_LINES = """(function () {
    const charts = [];
    const look = root => root.querySelectorAll('*').forEach(one => {
        if (one.shadowRoot) look(one.shadowRoot);
        if (one.tagName === 'path' && (one.getAttribute('d') || '').length > 20) charts.push(one);
    });
    look(document);
    return charts.length > 5;
})()"""
_ROWS = _LINES.replace(
    "one.tagName === 'path' && (one.getAttribute('d') || '').length > 20", "one.tagName === 'VAADIN-GRID-CELL-CONTENT'"
)


class Browser:
    """A page of headless Chromium, by its DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0

    async def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        while True:
            answer = await self._socket.receive_json()
            if answer.get("id") == self._number:
                return answer["result"]

    async def open(self, address: str, until: str, still: float = 4.0) -> float:
        """Open an address; give the seconds until an expression holds. Then wait until all is drawn."""
        await self.call("Page.navigate", url="about:blank")
        began = time.monotonic()
        await self.call("Page.navigate", url=address)
        while not (await self.call("Runtime.evaluate", expression=until))["result"].get("value"):
            if time.monotonic() - began > PATIENCE:
                raise TimeoutError(f"{address}: it never came to {until}")
            await asyncio.sleep(0.1)
        took = time.monotonic() - began
        await asyncio.sleep(still)
        return took

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
                await page.call(
                    "Emulation.setDeviceMetricsOverride",
                    width=SIZE[0],
                    height=SIZE[1],
                    deviceScaleFactor=1,
                    mobile=False,
                )
                yield page
    finally:
        process.terminate()
        await process.wait()
        shutil.rmtree(profile, ignore_errors=True)


@contextlib.contextmanager
def tensorboard(*words: object) -> Iterator[tuple[dict[str, str], float]]:
    """Run the command; give the addresses that it prints, and the seconds that it took to."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "comm"), str(ROOT / "trainers")])}
    began = time.monotonic()
    command = [sys.executable, "-c", "import sys; from hpsearch.cli import main; sys.exit(main())"]
    process = subprocess.Popen(
        [*command, "tensorboard", *map(str, words), "--port", "0"], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        addresses = {}
        for line in process.stdout:
            print(line, end="")
            if (found := re.match(r"(\w+) +(http\S+)", line)) is not None:
                addresses[found[1]] = found[2]
            if line.startswith("Ctrl-C"):
                break
        yield addresses, time.monotonic() - began
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def sweeps(runs: Path) -> None:
    """Run what isn't there yet."""
    recorded = ("simulated.yaml", "--backend", "simulated", "--workers", "1")
    wanted: dict[str, Sequence[str]] = {"digits-1": ("digits.yaml", "--backend", "inline")}
    for method in ("random", "tpe"):
        for seed in range(1, 5):
            sets = (f"name={method}", f"method={method}", f"seed={seed}")
            wanted[f"{method}-{seed}"] = (*recorded, *(word for one in sets for word in ("--set", one)))
    wanted["many"] = (*recorded, "--set", "name=many", "--set", "run_cap=499")
    for name, (file, *words) in wanted.items():
        if not (runs / name).exists():
            command = [sys.executable, "-c", "import sys; from hpsearch.cli import main; sys.exit(main())"]
            command += ["run", str(ROOT / "configs" / file), "--dir", str(runs / name), *words]
            subprocess.run(command, check=True)


async def take(folder: Path) -> None:
    """Take all pictures."""
    runs = folder / "runs"
    sweeps(runs)
    shown = {
        "one": ["digits-1"],
        "two": [f"{method}-{seed}" for method in ("random", "tpe") for seed in range(1, 5)],
        "many": ["many"],
    }
    async with browser() as page:
        for name, studies in shown.items():
            with tensorboard(*(runs / study for study in studies)) as (addresses, took):
                curves = addresses["curves"]
                first = await page.open(curves, _CURVES)
                print(f"{name}: addresses after {took:.1f} s, first curves {first:.1f} s after that")
                await page.save(folder / f"{name}-time-series.png")
                fragment = addresses["studies"].partition("#custom_scalars")[2]
                await page.open(addresses["studies"], _LINES)
                await page.save(folder / f"{name}-custom-scalars.png")
                server = curves.partition("?")[0]
                await page.open(f"{server}#scalars{fragment}", _LINES)
                await page.save(folder / f"{name}-scalars.png")
                await page.open(f"{server}#hparams", _ROWS)
                await page.save(folder / f"{name}-hparams.png")


def small(source: Path, name: str) -> None:
    """Put a picture into the docs, with few colours."""
    image = Image.open(source).convert("RGB").resize((1125, 675), Image.Resampling.LANCZOS)
    written = io.BytesIO()
    image.quantize(96, method=Image.Quantize.MEDIANCUT).save(written, "PNG", optimize=True)
    (IMAGES / name).write_bytes(written.getvalue())


def main() -> None:
    """Take them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--docs", action="store_true", help="put those of docs/images there")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(take(given.folder.absolute()))
    if given.docs:
        small(given.folder / "two-time-series.png", "tensorboard-curves.png")
        small(given.folder / "two-custom-scalars.png", "tensorboard-studies.png")


if __name__ == "__main__":
    main()
