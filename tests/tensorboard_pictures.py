"""Takes pictures of TensorBoard on real sweeps, in headless Chromium: `python -m tests.tensorboard_pictures FOLDER`.

It runs the sweep of `configs/digits.yaml`, and those of `configs/simulated.yaml`, which play recorded trainings back,
with two methods and four seeds of each, and one of 499 trials. Sweeps that lie in FOLDER/runs stay. It prints how
long the first curves took. Pictures in docs/images are of these, made smaller by `--docs`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.chromium import COMMAND, ENVIRONMENT, ROOT, browser, hpsearch, small

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


@contextlib.contextmanager
def tensorboard(*words: object) -> Iterator[tuple[dict[str, str], float]]:
    """Run the command; return the addresses that it prints, and the seconds that it took to."""
    began = time.monotonic()
    process = subprocess.Popen(
        [*COMMAND, "tensorboard", *map(str, words), "--port", "0"], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
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
            hpsearch("run", ROOT / "configs" / file, "--dir", runs / name, *words)


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
