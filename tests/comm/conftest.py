"""Lets these tests run where there is nothing but torch, pytest and this repository, as on a bare machine with a GPU.

`pytest -m gpu tests/comm` needs no more. Modules that do are left out there, which the report's head says.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest


def _needing(package: str) -> list[str]:
    """Name the test modules that import a package which isn't installed."""
    if find_spec(package) is not None:
        return []
    folder = Path(__file__).parent
    modules = folder.rglob("test_*.py")
    imports = (f"\nfrom {package} import", f"\nimport {package}\n")
    return sorted(
        str(module.relative_to(folder)) for module in modules if any(line in module.read_text() for line in imports)
    )


collect_ignore = [module for package in ("hypothesis", "psutil") for module in _needing(package)]


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Know the setting of pytest-timeout where that isn't installed."""
    if not pluginmanager.hasplugin("timeout"):
        parser.addini("timeout", "Seconds that a test may take; nobody looks at it without pytest-timeout.")


def pytest_configure(config: pytest.Config) -> None:
    """Let torch be imported where NumPy isn't installed, of which it warns; know pytest-timeout's mark without it."""
    if not config.pluginmanager.hasplugin("timeout"):
        config.addinivalue_line("markers", "timeout(seconds): of pytest-timeout")
    config.addinivalue_line("filterwarnings", "ignore:Failed to initialize NumPy:UserWarning")


def pytest_report_header() -> list[str]:
    """Say what is left out."""
    return [f"left out without hypothesis or psutil: {', '.join(collect_ignore)}"] if collect_ignore else []
