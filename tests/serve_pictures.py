"""Takes pictures of `hpsearch serve` on a real sweep while it runs: `python -m tests.serve_pictures FOLDER`.

The sweep is that of `tests/watch_pictures.py`, in headless Chromium on a desktop and on a phone. `--docs` puts the
pictures into docs/images.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chromium import COMMAND, ENVIRONMENT, Browser, browser, small
from tests.watch_pictures import sweep

TOKENS = {f"HPSEARCH_{role}_TOKEN": f"{role.lower()}-{'x' * 30}" for role in ("READ", "STEER", "AGENT")}
_MAX_ITER = 27
_LONGEST = (
    "Math.max(...[...document.querySelectorAll('[data-part=curves] [data-values]')].map((one) => one.points.length))"
)
_SHOWN = "document.querySelector('[data-part=curves] [data-values]') !== null"
_MIDST = f"{_SHOWN} && document.querySelectorAll('.state.running, .state.waiting').length > 1"
_COMPLETE = "document.querySelectorAll('.state.complete').length"


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Serve `runs` of a folder, and return the address."""
    words = [*COMMAND, "serve", "runs", "--port", "0"]
    with subprocess.Popen(
        words, cwd=folder, env={**ENVIRONMENT, **TOKENS}, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+:\d+", process.stdout.readline())
            assert found is not None
            yield found[0]
        finally:
            process.terminate()


async def look(page: Browser, address: str, folder: Path) -> None:
    """Take the pictures."""
    await page.open(f"{address}/sign-in", "document.querySelector('#token') !== null", still=0.0)
    await page.value(f"document.querySelector('#token').value = '{TOKENS['HPSEARCH_STEER_TOKEN']}'")
    await page.value("document.querySelector('.sign-in button').click()")
    await page.wait("document.body.innerText.includes('Sign out')")
    await page.wait("document.querySelector('[href=\"/studies/digits-1\"]') !== null", 900.0)
    await page.size(1200, 1560)
    study = f"{address}/studies/digits-1"
    await page.open(study, f"{_MIDST} && {_COMPLETE} > 1 && {_LONGEST} >= {_MAX_ITER}", still=1.0, patience=900.0)
    x, y = await page.value(
        "(() => { const lines = [...document.querySelectorAll('[data-part=curves] [data-values]')];"
        "const line = lines.reduce((one, other) => (other.points.length > one.points.length ? other : one));"
        "const point = line.points[Math.floor(line.points.length / 3)];"
        "const place = new DOMPoint(point.x, point.y).matrixTransform(line.getScreenCTM());"
        "return [place.x, place.y] })()"
    )
    await page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    await asyncio.sleep(0.3)
    await page.save(folder / "serve.png")
    await page.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    await page.size(390, 1000, mobile=True)
    for name, where, until in (
        ("home", address, "document.querySelector('table.rows') !== null"),
        ("phone", study, _SHOWN),
    ):
        await page.open(where, until, still=1.0)
        await page.save(folder / f"serve-{name}.png")


def main() -> None:
    """Take them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--docs", action="store_true", help="put them into docs/images")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)

    async def take(runs: Path) -> None:
        with (
            sweep(runs / "runs" / "digits-1", _MAX_ITER, "--workers", "1", "--backend", "inline"),
            server(runs) as address,
        ):
            async with browser() as page:
                await look(page, address, given.folder)

    with tempfile.TemporaryDirectory(dir=given.folder) as runs:
        (Path(runs) / "runs").mkdir()
        asyncio.run(take(Path(runs)))
    if given.docs:
        for name in ("serve", "serve-phone"):
            small(given.folder / f"{name}.png", f"{name}.png", share=0.8 if name == "serve" else 1.0)


if __name__ == "__main__":
    main()
