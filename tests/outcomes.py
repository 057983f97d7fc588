"""A plugin of pytest that writes what came of each test to a file as it comes: `-p tests.outcomes --outcomes FILE`.

A line is made of an outcome, a test, and, of what failed, how it ended and where; with tabs between them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

_LONGEST = 300
"""Characters of how a test failed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, metavar="FILE", help="gains a line for each outcome")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcomes")
    if path is not None:
        config.pluginmanager.register(_Writer(path))


class _Writer:
    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._write(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._write(report)

    def _write(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        with self._path.open("a") as file:
            file.write(f"{report.outcome}\t{report.nodeid}\t{_how(report) if report.failed else ''}\n")


def _how(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Say in a line how a test failed."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return " ".join(report.longreprtext.split())[-_LONGEST:]
    return f"{Path(crash.path).name}:{crash.lineno}: {' '.join(crash.message.split())}"[:_LONGEST]
