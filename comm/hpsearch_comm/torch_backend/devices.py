"""The devices for which torch creates a group. torch doesn't pass them to a backend, so its frames are inspected."""

from __future__ import annotations

from types import FrameType

from torch.distributed.distributed_c10d import BackendConfig

from hpsearch_comm.errors import UsageError

DEVICES = ("cpu", "cuda")
"""Supported device types."""


def requested_backends(frame: FrameType | None) -> dict[str, str]:
    """Return the backend name by device type of the group that torch is creating.

    Args:
        frame: The frame of the function that torch has called. It and its callers are searched for a `BackendConfig`.

    Returns:
        The names, or an empty dict if no `BackendConfig` is found.
    """
    while frame is not None:
        for value in list(frame.f_locals.values()):
            if isinstance(value, BackendConfig):
                return {device: str(backend) for device, backend in value.get_device_backend_map().items()}
        frame = frame.f_back
    return {}


def check_backends(backends: dict[str, str]) -> None:
    """Check that a group has no other backend: torch would use only this one and never create the others.

    Raises:
        UsageError: Another backend is requested too, or this one for a device that it doesn't support.
    """
    text = ",".join(f"{device}:{backend}" for device, backend in backends.items())
    other_backends = sorted({backend for backend in backends.values() if backend != "hpsearch"})
    if other_backends:
        raise UsageError(
            f'a group of the hpsearch backend must have no other backend, got "{text}": make it with "hpsearch", '
            "which takes tensors on the CPU and on CUDA devices, and another group for the other backend: "
            f'dist.new_group(backend="{other_backends[0]}")'
        )
    unknown = [device for device in backends if device not in DEVICES]
    if unknown:
        raise UsageError(
            f'a group of the hpsearch backend takes tensors on the CPU and on CUDA devices, got "{text}": make it with '
            f'"hpsearch", and move tensors of {unknown[0]} with tensor.cpu()'
        )
