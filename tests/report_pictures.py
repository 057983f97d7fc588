"""Takes pictures of `hpsearch report` on real sweeps, in headless Chromium: `python -m tests.report_pictures FOLDER`.

It runs the sweeps of `configs/digits.yaml` and `configs/narrowing_digits.yaml`, unless they lie in FOLDER/runs;
`--docs` puts pictures into docs/images.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from tests.chromium import ROOT, browser, hpsearch, small

SCREENS = {"wide": (1200, False, "light"), "phone": (390, True, "light"), "dark": (1200, False, "dark")}
"""Of each picture: how many pixels wide, whether on a phone, and in which colours."""
SECTIONS = {"wide": 1, "phone": 3, "dark": 4}
"""Of each picture: the section that it begins with; the first one and the last have paths of this machine."""


def sweep(name: str, folder: Path) -> Path:
    """Return the directory of a study of one of `configs`."""
    study = folder / "runs" / f"{name}-1"
    if not study.exists():
        hpsearch("run", ROOT / "configs" / f"{name}.yaml", "--dir", study)
    return study


def narrowing(folder: Path) -> Path:
    """Draw the brackets of the sweep that goes from many trials on a worker to many workers for a trial."""
    pictures = folder / "narrowing"
    study = sweep("narrowing_digits", folder)
    hpsearch("report", study, "--output", folder / "narrowing.html", "--svg", pictures)
    return pictures / "brackets.svg"


async def take(folder: Path) -> None:
    """Take all pictures, each of one screen and of the whole page."""
    page_file = folder / "report.html"
    hpsearch("report", sweep("digits", folder), "--output", page_file)
    rungs = narrowing(folder)
    async with browser() as page:
        await page.open(rungs.as_uri(), "document.documentElement.tagName === 'svg'", still=0.5)
        await page.size(
            *await page.value("document.documentElement.getAttribute('viewBox').split(' ').slice(2).map(Number)")
        )
        await page.save(folder / "narrowing.png")
        for name, (width, mobile, colours) in SCREENS.items():
            await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])
            await page.size(width, 900, mobile=mobile)
            await page.open(page_file.as_uri(), "document.querySelector('svg') !== null", still=0.5)
            needed = await page.value("document.documentElement.scrollWidth")
            if needed > width:
                raise ValueError(f"{name}: the page is {needed} pixels wide on a screen of {width}")
            await page.value(f"document.querySelectorAll('h2')[{SECTIONS[name]}].scrollIntoView()")
            await asyncio.sleep(0.3)
            await page.save(folder / f"{name}.png")
            await page.size(width, await page.value("document.documentElement.scrollHeight"), mobile=mobile)
            await page.save(folder / f"{name}-whole.png")


def main() -> None:
    """Take them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--docs", action="store_true", help="put those of docs/images there")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    folder = given.folder.absolute()
    asyncio.run(take(folder))
    if given.docs:
        small(folder / "narrowing.png", "lanes-to-gang.png", share=1.0)
        for name in SCREENS:
            small(folder / f"{name}.png", f"report-{name}.png", share=1.0)


if __name__ == "__main__":
    main()
