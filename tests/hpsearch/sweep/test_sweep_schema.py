"""The sweep file as JSON Schema and as tables: what is published is what the reader takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from hpsearch.sweep.schema import json_schema, with_key_tables
from tests.hpsearch.support.sweep_schema import validator

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"

SWEEP: dict[str, Any] = {
    "trainable": "package.module:train",
    "metric": {"name": "loss"},
    "method": "random",
    "run_cap": 3,
    "parameters": {"lr": {"min": 0.1, "max": 1.0}, "group": {"parameters": {"x": {"values": [1, None]}}}},
}


def test_the_schema_and_the_tables_of_the_docs_are_those_of_the_code():
    assert json.loads((DOCS / "sweep.schema.json").read_text()) == json_schema()
    page = (DOCS / "sweep-file.md").read_text()
    assert with_key_tables(page) == page


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_every_config_passes_the_schema(path):
    validator().validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    "change",
    [
        {"run_capp": 3},
        {"metric": {"name": "loss", "goal": "up"}},
        {"resources": {"workers": 0}},
        {"resources": {"wrokers": 1}},
        {"limits": {"max_time": 0}},
        {"early_terminate": {"type": "hyperband", "max_iter": 9, "trials": 3}},
        {"early_terminate": {"type": "hyperband"}},
        {"parameters": {"lr": {"minimum": 1}}},
        {"parameters": {}},
    ],
    ids=str,
)
def test_the_schema_refuses(change):
    validator().validate(SWEEP)
    with pytest.raises(jsonschema.ValidationError):
        validator().validate({**SWEEP, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"limits": {"max_time": "90m", "trial_timeout": 3, "max_retries": 0}, "resources": None},
        {"early_terminate": {"type": "hyperband", "max_iter": 9, "brackets": None}},
        {"early_terminate": {"type": "my.package:Scheduler", "anything": 9}},
        {"metric": {"name": "loss", "scope": "best"}},
        {"limits": {"patience": "none", "max_time": "none", "max_failures": None}, "run_cap": "none"},
        {"scaling": {"lr": None, "warmup_epochs": 0.5}, "checkpoints": {"keep": "all"}, "description": 3},
    ],
    ids=str,
)
def test_the_schema_takes(change):
    validator().validate({**SWEEP, **change})
