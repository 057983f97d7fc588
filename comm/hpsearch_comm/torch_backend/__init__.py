"""A backend of torch.distributed, for scripts that use only torch's API.

    import hpsearch_comm.torch_backend
    torch.distributed.init_process_group("hpsearch")

The import registers the backend. It supports tensors on the CPU and on CUDA devices. It raises torch's
`DistBackendError`, with this package's error as the cause. The import also registers `init_method="launcher://"`, which
works with any launcher.

Raises:
    ImportError: torch is older than 2.8. With older versions functional collectives, and so DTensor and FSDP2, hang
        (observed with 2.4.1 and 2.6.0).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import register_rendezvous_handler

from hpsearch_comm.torch_backend.meeting import SCHEME, make_process_group, rendezvous_of_launcher
from hpsearch_comm.torch_backend.monitored_barrier import monitored_barrier
from hpsearch_comm.torch_backend.process_group import DEVICES, CommProcessGroup

__all__ = ["CommProcessGroup", "monitored_barrier"]

if torch.__version__ < "2.8":
    raise ImportError(
        f"hpsearch_comm.torch_backend needs torch 2.8 or newer, got {torch.__version__}, with which functional "
        "collectives, and so DTensor and FSDP2, would wait for ever: install a newer one, or use Gloo"
    )

dist.Backend.register_backend("hpsearch", make_process_group, extended_api=True, devices=list(DEVICES))
register_rendezvous_handler(SCHEME, rendezvous_of_launcher)  # type: ignore[no-untyped-call]
