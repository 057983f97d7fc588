"""The pages in a real browser, of a real server on a study that runs."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

import hpsearch
from hpsearch.journal.journal import Journal
from hpsearch.serving.access import VARIABLES
from tests.chromium import Browser, browser
from tests.hpsearch.serve.test_app import TOKENS, printing
from tests.hpsearch.support.command_line import begin, wait_for, write_sweep
from tests.hpsearch.support.pages import searched

needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium isn't installed")
ENVIRONMENT = {VARIABLES[role]: token for role, token in TOKENS.by_role.items()}
NAME = "<b>paced<"
KEY = "~3Cb~3Epaced~3C"
SCREENS = [("light", 1200, False), ("dark", 1200, False), ("light", 390, True)]


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """End a process with its block."""
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def server(folder: Path, port: int = 0) -> Iterator[str]:
    """Serve a folder by the command, and return the address."""
    with ended(begin("serve", "runs", "--port", port, cwd=folder, **ENVIRONMENT)) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found is not None, (line, process.communicate())
        yield found[0]
        process.terminate()
        _, err = process.communicate()
        assert (process.returncode, err) == (0, ""), "it ends in good order, also while pages are open"


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a sweep without an end."""
    write_sweep(folder / "sweep.yaml", "paced", run_cap=1_000_000, name="paced")
    words = ["--backend", "inline", "--dir", folder / "runs" / NAME, "--no-tensorboard", "--quiet"]
    with ended(begin("run", "sweep.yaml", *words, cwd=folder)) as process:
        wait_for((folder / "runs" / NAME / "study.db").exists, process)
        yield process


async def click(page: Browser, button: str) -> None:
    """Click a button once it is there."""
    await page.wait(f"document.querySelector({json.dumps(button)}) !== null")
    await page.value(f"document.querySelector({json.dumps(button)}).click()")


async def shows(page: Browser, text: str) -> None:
    """Wait until the page shows a text."""
    await page.wait(f"document.body.innerText.includes({json.dumps(text)})")


async def hover(page: Browser, x: float, y: float) -> None:
    """Move the pointer."""
    await page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)


@needs_chromium
@pytest.mark.exhaustive
def test_a_running_study_is_shown_live_and_steered(tmp_path: Path):
    async def look(process: subprocess.Popen[str]) -> None:
        async with browser() as page:
            await page.watch()
            with server(tmp_path) as address:
                await page.open(address, f"document.querySelector('a[href=\"/studies/{KEY}\"]') !== null", still=0)
                await shows(page, "running")
                await page.open(f"{address}/sign-in", "document.querySelector('#token') !== null", still=0)
                await page.value(f"document.querySelector('#token').value = {json.dumps(TOKENS.steer)}")
                await click(page, ".sign-in button")
                await shows(page, "Sign out")
                await page.open(f"{address}/studies/{KEY}", "document.querySelector('#trial-3') !== null", still=0)
                await page.value("window.here = true")
                await shows(page, "live")
                table = "document.querySelector('[data-part=trials] p').innerText"
                before = await page.value(table)
                await page.wait(f"{table} !== {json.dumps(before)}")

                await click(page, "#do-pause")
                await shows(page, "paused: running trials end at their next reports")
                await click(page, "#do-resume")
                await shows(page, "resumed")

                await page.wait("document.querySelector('[data-part=charts] svg') !== null")
                await page.value("document.querySelector('#filter-where').value = 'x <'")
                await click(page, "#filter")
                await shows(page, "must be an expression")
                await page.value("document.querySelector('#filter-where').value = 'x < 2'")
                await click(page, "#filter")
                await page.wait("location.search.includes('where') && !document.querySelector('[role=alert]')")
                await page.value("document.querySelector('#sort-0').focus()")
                await page.press("Enter", 13)
                await page.wait("document.querySelector('#trial-0') !== null && location.search.includes('sort=trial')")
                assert await page.value("document.activeElement.id") == "sort-0", "the focus stays where it was"
                assert await page.value("window.here"), "the page was never loaded anew"
                problems, page.problems = page.problems, []

            await shows(page, "not connected")
            with server(tmp_path, int(address.rpartition(":")[2])):
                await page.wait("document.querySelector('#link').textContent === 'live'")
                await page.wait(f"{table} !== {json.dumps(before)}")
                await click(page, "#do-stop")
                await shows(page, "Stop paced?")
                assert await page.value("document.activeElement.value") == "no"
                await click(page, "#question button[value=no]")
                assert process.poll() is None
                await click(page, "#do-stop")
                await click(page, "#question button[value=yes]")
                await shows(page, "No process runs this study. To go on: hpsearch resume")
                assert await page.value("window.here")
            assert problems == []
            assert not await page.value("document.cookie"), "scripts can't read the cookie"

    with running(tmp_path) as process:
        asyncio.run(look(process))
        assert process.wait(60) == 3
    assert hpsearch.load(tmp_path / "runs" / NAME).state == "stopped"
    verbs = [step.verb for step in hpsearch.load(tmp_path / "runs" / NAME).history()]
    assert [verb for verb in verbs if verb in ("pause", "resume", "stop")][-3:] == ["pause", "resume", "stop"]


@needs_chromium
@pytest.mark.exhaustive
def test_pages_are_accessible_fit_a_phone_and_run_no_script_of_users(tmp_path: Path):
    study = searched(tmp_path / "runs" / NAME, printing, early_terminate=hpsearch.Hyperband(max_iter=9, eta=3))
    failed = next(row.number for row in study.trials if row.failure is not None)
    axe = (files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
    complete = f"/studies/{KEY}/trials/{study.best_trial.number}"
    drawn = "!document.body.innerText.includes('Reading the')"

    async def look(address: str) -> None:
        async with browser() as page:
            await page.watch()
            for scheme, width, mobile in SCREENS:
                await page.call(
                    "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
                )
                await page.size(width, 900, mobile=mobile)
                for path in ("/", "/sign-in", f"/studies/{KEY}", complete, f"/studies/{KEY}/trials/{failed}"):
                    until = f"document.querySelector('main') !== null && document.readyState === 'complete' && {drawn}"
                    await page.open(f"{address}{path}", until, still=0)
                    assert await page.value("document.documentElement.scrollWidth") <= width, (path, scheme)
                    await page.value(f"{axe};0")
                    found = "axe.run().then((found) => found.violations.map((one) => [one.id, one.nodes[0].html]))"
                    assert await page.value(found) == [], (path, scheme)
            await page.size(1200, 2000)
            await page.open(f"{address}{complete}", "document.querySelector('[data-values]') !== null", still=0)
            x, y = await page.value(
                "(() => { const line = document.querySelector('[data-values]'); const point = line.points[8];"
                "const place = new DOMPoint(point.x, point.y).matrixTransform(line.getScreenCTM());"
                "return [place.x, place.y] })()"
            )
            await hover(page, x + 2, y - 2)
            await page.wait("!document.querySelector('#tip').hidden")
            value = study.best_trial.values["loss"]
            assert await page.value("document.querySelector('#tip').innerText") == f"iteration 9: loss {value:.6g}"
            await hover(page, 5, 5)
            await page.wait("document.querySelector('#tip').hidden")
            assert page.problems == []

    with server(tmp_path) as address:
        asyncio.run(look(address))


@pytest.mark.exhaustive
def test_events_are_sent_on_change_and_whole_after_a_reconnect(tmp_path: Path):
    def read(stream: Any) -> Any:
        line = ""
        while not line.startswith("data: "):
            line = stream.readline().decode()
        return json.loads(line.removeprefix("data: "))

    with running(tmp_path), server(tmp_path) as address:
        with urlopen(f"{address}/studies/{KEY}/live", timeout=120) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            first = read(stream)
            later = read(stream)
            assert later["parts"] != first["parts"]
        with urlopen(f"{address}/studies/{KEY}/live", timeout=120) as stream:
            again = read(stream)
            assert again["parts"].keys() == {"head", "steering", "curves", "trials", "charts"}
        with pytest.raises(HTTPError, match="421"):
            urlopen(Request(f"{address}/", headers={"Host": "evil.example"}), timeout=120)


@pytest.mark.exhaustive
def test_a_running_process_answers_every_request(tmp_path: Path):
    requests = [
        ({"verb": "extend", "run_cap": "2000000"}, ""),
        ({"verb": "extend", "run_cap": "7"}, "run_cap"),
        ({"verb": "add", "points": '{"x": 0.5}'}, ""),
        ({"verb": "add", "points": '{"y": 0.5}'}, "y"),
        ({"verb": "prune", "trials": "0"}, "0"),
        ({"verb": "retry"}, "fail"),
        ({"verb": "pause"}, ""),
        ({"verb": "pause"}, "paused already"),
        ({"verb": "resume"}, ""),
        ({"verb": "cancel"}, ""),
    ]
    headers = {"Authorization": f"Bearer {TOKENS.steer}"}
    with running(tmp_path) as process, server(tmp_path) as address:
        place = f"{address}/studies/{KEY}/requests"
        for fields, refused in requests:
            with urlopen(Request(place, urlencode(fields).encode(), headers), timeout=120) as answer:
                number = json.load(answer)["request"]
            with Journal.read(tmp_path / "runs" / NAME / "study.db") as journal:
                wait_for(partial(lambda found, number: found.answer(number) is not None, journal, number))
                answered = journal.answer(number)
            assert answered is not None
            assert refused in answered.refused if refused else answered.refused == "", (fields, answered)
        assert process.wait(60) == 130
        with pytest.raises(HTTPError, match="409"):
            urlopen(Request(place, b"verb=pause", headers), timeout=120)
