"""Where a study comes from: the code, the environment and the command that made it."""

from __future__ import annotations

import getpass
import os
import platform
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["command_line", "identity_of", "process_name", "provenance"]

_PACKAGES = ("hpsearch", "torch", "ray", "numpy", "optuna", "nvidia-nccl-cu12", "nvidia-nccl-cu13")

_GIT_SECONDS = 10.0


def provenance(directory: Path) -> dict[str, Any]:
    """Give what is recorded with a study; plain JSON.

    Args:
        directory: A folder of the user's code, whose git commit is asked for.
    """
    return {
        "git": _git(directory),
        "command": command_line(),
        "directory": str(directory),
        "process": process_name(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
        "environment": _environment(),
    }


def identity_of(name: str, created: float, told: Mapping[str, Any]) -> str:
    """Say which study this is, wherever it lies: its sweep's name, when it was made and by which process."""
    return f"{name} {created!r} {told.get('process', '')}"


def process_name() -> str:
    """Give `user@host:pid`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run a user id that has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}:{os.getpid()}"


def command_line() -> str:
    """Give the command that started this process, as a shell would take it."""
    return shlex.join(sys.orig_argv)


def _environment() -> dict[str, str]:
    """Give the variables that steer a run. Not all of them: others may hold secrets."""
    prefixes = ("HPSEARCH_", "CUDA_", "NCCL_", "OMP_", "MKL_", "PYTHON", "RAY_ADDRESS")
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(prefixes) and "SECRET" not in name and "TOKEN" not in name
    }


def _version(package: str) -> str | None:
    import importlib.metadata  # takes a while, and who looks at a study doesn't need it

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(directory: Path) -> dict[str, Any] | None:
    commit = _git_output(directory, "rev-parse", "HEAD")
    if commit is None:
        return None
    status = _git_output(directory, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": bool(status)}


def _git_output(directory: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
