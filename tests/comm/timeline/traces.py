"""Reads traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def load(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    if text.startswith("[") and not text.rstrip().endswith("]"):  # as Chrome's viewer does
        text = text.rstrip().rstrip(",") + "]"
    events = json.loads(text)
    return events if isinstance(events, list) else events["traceEvents"]


def named(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["name"] == name]
