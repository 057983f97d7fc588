"""For which devices torch makes a group: it doesn't tell a backend, so the function that calls it is looked at."""

from __future__ import annotations

from types import FrameType

from torch.distributed.distributed_c10d import BackendConfig

from hpsearch_comm.errors import UsageError

DEVICES = ("cpu", "cuda")
"""Types of the devices whose tensors a group takes."""


def requested_backends(frame: FrameType | None) -> dict[str, str]:
    """Return the name of the backend for each device of the group that is being made; nothing where torch has no such.

    Args:
        frame: Of the function that torch has called; the configuration is looked for in those that have called that.
    """
    while frame is not None:
        for value in list(frame.f_locals.values()):
            if isinstance(value, BackendConfig):
                return {device: str(backend) for device, backend in value.get_device_backend_map().items()}
        frame = frame.f_back
    return {}


def check_backends(backends: dict[str, str]) -> None:
    """Check that a group has no other backend: torch uses only ours, and creates none of the others.

    Raises:
        UsageError: Another backend is requested too, or ours for a device that it doesn't support.
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
