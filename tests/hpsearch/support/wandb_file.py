"""Read the file that W&B writes offline and `wandb sync` sends: records of protobuf in blocks, as LevelDB logs have."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK = 32768
_HEAD = struct.Struct("<IHB")  # checksum, length, kind: 1 whole, 2 first, 3 middle, 4 last


def _records(content: bytes) -> Iterator[bytes]:
    assert content[:4] == b":W&B"
    at, parts = 7, b""
    while at < len(content):
        if _BLOCK - at % _BLOCK < _HEAD.size:  # too short for another head: it is filled with zeros
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = _HEAD.unpack_from(content, at)
        at += _HEAD.size
        parts += content[at : at + length]
        at += length
        if kind in (1, 4):
            yield parts
            parts = b""


def read_run(directory: Path) -> dict[str, Any]:
    """Return `run` (its protobuf), `config`, `history` (rows by step), `summary` and `exit_code` of a run."""
    from wandb.proto import wandb_internal_pb2

    (path,) = directory.glob("*.wandb")
    found: dict[str, Any] = {"config": {}, "history": [], "summary": {}, "exit_code": None}
    for content in _records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(content)
        match record.WhichOneof("record_type"):
            case "run":
                found["run"] = record.run
                found["config"] |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            case "history":
                row = {
                    ".".join([item.key, *item.nested_key]).strip("."): json.loads(item.value_json)
                    for item in record.history.item
                }
                found["history"].append(row)
            case "summary":
                for item in record.summary.update:
                    name = ".".join([item.key, *item.nested_key]).strip(".")
                    found["summary"][name] = json.loads(item.value_json)
            case "exit":
                found["exit_code"] = record.exit.exit_code
    return found
