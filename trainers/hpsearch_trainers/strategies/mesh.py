"""A torch DeviceMesh of a trial's ranks, independent of torch's default process group.

torch creates a mesh from its default process group, and a process has only one. But a worker trains several trials one
after another, and a user may have created a default group. So the mesh is built from its parts: torch finds the mesh's
group by a name, which is unregistered when the trial ends.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch
from torch._C._distributed_c10d import _register_process_group, _unregister_process_group
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from hpsearch_comm import Group
from hpsearch_comm.torch_backend import CommProcessGroup

_numbers = itertools.count()


def mesh_of(group: Group, owner: object) -> DeviceMesh:
    """Create a one-dimensional CPU mesh.

    Args:
        group: The ranks; the mesh's operations run on this group.
        owner: When this object is garbage-collected, the mesh's group is unregistered from torch.
    """
    # A unique name, because torch caches results by mesh and could reuse those of an earlier one.
    name: Any = f"hpsearch trial {next(_numbers)}"
    process_group = CommProcessGroup(group, b"", 0.0)  # it creates no subgroups, so it needs no secret
    process_group._set_group_name(name)
    _register_process_group(name, process_group)
    mesh = DeviceMesh("cpu", torch.arange(group.size), mesh_dim_names=(name,), _init_backend=False, _rank=group.rank)
    mesh._dim_group_names = [name]
    weakref.finalize(owner, _forget, process_group)  # torch has only a weak reference to the group
    return mesh


def _forget(process_group: CommProcessGroup) -> None:
    name: Any = process_group.group_name
    _unregister_process_group(name)
    clear: Any = _clear_sharding_prop_cache
    clear()  # the cache refers to every mesh that was used
