"""The ranks of a trial as torch's DeviceMesh, beside whatever process groups the process has.

torch makes a mesh of its default group, of which a process has one. A worker trains one trial after another, and its
user may have a default group, too. So the mesh is made by hand: torch finds its group by a name, which goes with the
trial.
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
    """Make a mesh with one dimension, of CPUs.

    Args:
        group: The ranks; operations of the mesh are operations of it.
        owner: When it is gone, torch forgets the mesh.
    """
    # A name of its own, or torch would take what it remembers of an earlier mesh for this one's.
    name: Any = f"hpsearch trial {next(_numbers)}"
    process_group = CommProcessGroup(group, b"", 0.0)  # no groups come from it, so it needs no secret
    process_group._set_group_name(name)
    _register_process_group(name, process_group)
    mesh = DeviceMesh("cpu", torch.arange(group.size), mesh_dim_names=(name,), _init_backend=False, _rank=group.rank)
    mesh._dim_group_names = [name]
    weakref.finalize(owner, _forget, process_group)  # torch holds it by a weak reference only
    return mesh


def _forget(process_group: CommProcessGroup) -> None:
    name: Any = process_group.group_name
    _unregister_process_group(name)
    clear: Any = _clear_sharding_prop_cache
    clear()  # it holds every mesh that it was asked of
