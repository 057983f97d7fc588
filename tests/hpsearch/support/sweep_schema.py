"""The validator of the published schema of sweep files."""

from __future__ import annotations

import functools
from typing import Any

import jsonschema

from hpsearch.sweep.schema import json_schema


@functools.cache
def validator() -> Any:
    """Return what says whether a sweep is one of the schema, which is itself checked once."""
    schema = json_schema()
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)
