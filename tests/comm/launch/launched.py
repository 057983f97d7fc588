"""Environments of ranks that a launcher has started."""

from __future__ import annotations


def launched(**changes: str | None) -> dict[str, str]:
    """Return the variables of rank 1 of 4, with changes."""
    env: dict[str, str | None] = {
        "RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "HOME": "/root",
        **changes,
    }
    return {name: value for name, value in env.items() if value is not None}


def under_torchrun(**changes: str | None) -> dict[str, str]:
    torchrun: dict[str, str | None] = {
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "job 7",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "GROUP_WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "4",
    }
    return launched(**(torchrun | changes))
