"""The origin of a study: its code, environment and command."""

from __future__ import annotations

import getpass
import os
import platform
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hpsearch.config.masking import mask_words

_PACKAGES = ("hpsearch", "torch", "ray", "numpy", "optuna", "nvidia-nccl-cu12", "nvidia-nccl-cu13")

_RECORDED = frozenset(
    {
        *("HPSEARCH_COMM_ALGORITHM", "HPSEARCH_COMM_HOST", "HPSEARCH_COMM_INTERFACE"),
        *("HPSEARCH_COMM_TIMEOUT", "HPSEARCH_COMM_TRANSPORT", "RAY_ADDRESS", "RAY_TMPDIR", "RAY_worker_niceness"),
        *("CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES"),
        *(
            "CUBLAS_WORKSPACE_CONFIG",
            "NVIDIA_TF32_OVERRIDE",
            "PYTORCH_CUDA_ALLOC_CONF",
            "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        ),
        *("NCCL_ALGO", "NCCL_CUMEM_ENABLE", "NCCL_DEBUG", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_NVLS_ENABLE"),
        *("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_PROTO", "NCCL_SHM_DISABLE", "NCCL_SOCKET_IFNAME"),
        *("KMP_AFFINITY", "MKL_CBWR", "MKL_DYNAMIC", "MKL_NUM_THREADS", "MKL_THREADING_LAYER", "OPENBLAS_NUM_THREADS"),
        *("OMP_DYNAMIC", "OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND", "OMP_SCHEDULE"),
        *("PYTHONHASHSEED", "PYTHONOPTIMIZE", "PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONUTF8"),
    }
)
"""Environment variables that affect a run and contain no secrets."""

_GIT_SECONDS = 10.0


def provenance(directory: Path) -> dict[str, Any]:
    """Return a study's record, as plain JSON.

    Args:
        directory: A folder of the user's code, whose git commit is recorded.
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


def code_version() -> str:
    """Return the commit of hpsearch's own code, such as `1a2b3c4d-dirty`; its version if it isn't in a repository."""
    package = Path(__file__).parents[1]
    is_tracked = _git_output(package, "ls-files", "--error-unmatch", "__init__.py") is not None
    commit = _git_output(package, "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*") if is_tracked else ""
    return commit or _version("hpsearch") or "unknown"


def identity_of(name: str, created: float, record: Mapping[str, Any]) -> str:
    """Return an identity of a study that doesn't depend on its path: sweep name, creation time and creating process."""
    return f"{name} {created!r} {record.get('process', '')}"


def process_name() -> str:
    """Return `user@host:pid`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a container, the user id may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}:{os.getpid()}"


def command_line() -> str:
    """Return the command that started this process, quoted for a shell, with secrets masked."""
    return shlex.join(mask_words(sys.orig_argv))


def without_folder(command: str) -> str:
    """Return a command as a user types it: without Python, and without the path of the program's folder."""
    argv = shlex.split(command)
    argv = argv[1:] if len(argv) > 1 and Path(argv[0]).name.startswith("python") else argv
    argv = argv[1:] if argv[:1] == ["-m"] else argv
    return shlex.join([Path(argv[0]).name, *argv[1:]]) if argv else command


def _environment() -> dict[str, str]:
    """Return the environment variables on an allow-list, since others may contain secrets."""
    return {name: os.environ[name] for name in sorted(_RECORDED) if name in os.environ}


@cache  # versions don't change in a process
def _version(package: str) -> str | None:
    import importlib.metadata  # the import is slow, and reading a study doesn't need it

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
        process = subprocess.run(
            ["git", "-C", str(directory), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None
