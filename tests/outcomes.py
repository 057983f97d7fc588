"""A plugin of pytest that writes what came of each test to a file as it comes: `-p tests.outcomes --outcomes FILE`."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, metavar="FILE", help="gains a line for each outcome: word, tab, test")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcomes")
    if path is not None:
        config.pluginmanager.register(_Writer(path))


class _Writer:
    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._write(report.outcome, report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._write(report.outcome, report.nodeid)

    def _write(self, outcome: str, test: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{outcome}\t{test}\n")
