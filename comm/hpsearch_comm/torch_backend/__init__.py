"""A backend of torch.distributed, for scripts that don't use this package otherwise.

    import hpsearch_comm.torch_backend
    torch.distributed.init_process_group("hpsearch")

The import registers it. Tensors are on the CPU or on CUDA devices. Errors are torch's `DistBackendError`, with ours as
cause. It also registers `init_method="launcher://"`, by which the ranks of any launcher meet.

Raises:
    ImportError: torch is older than 2.8, where functional collectives, and with them DTensor and FSDP2, hang (seen with
        2.4.1 and 2.6.0).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import register_rendezvous_handler

from hpsearch_comm.torch_backend.devices import DEVICES
from hpsearch_comm.torch_backend.launched import SCHEME, rendezvous_of_launcher
from hpsearch_comm.torch_backend.meeting import make_process_group
from hpsearch_comm.torch_backend.monitored_barrier import monitored_barrier
from hpsearch_comm.torch_backend.process_group import CommProcessGroup

__all__ = ["CommProcessGroup", "monitored_barrier"]

if torch.__version__ < "2.8":
    raise ImportError(
        f"hpsearch_comm.torch_backend needs torch 2.8 or newer, got {torch.__version__}, with which functional "
        "collectives, and so DTensor and FSDP2, would wait for ever: install a newer one, or use Gloo"
    )

dist.Backend.register_backend("hpsearch", make_process_group, extended_api=True, devices=list(DEVICES))
register_rendezvous_handler(SCHEME, rendezvous_of_launcher)  # type: ignore[no-untyped-call]
