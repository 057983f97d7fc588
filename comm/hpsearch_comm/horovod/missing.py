"""Names of Horovod's PyTorch API that are missing here, and what to use instead."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

from hpsearch_comm.horovod.errors import MissingError


class MissingNameError(MissingError, AttributeError):
    """A name of Horovod's API is missing. It is an AttributeError too, so that `hasattr` and `getattr` work."""


def missing_from(module: str, instead: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """Return a module's `__getattr__`, whose error names the replacement for a missing name of Horovod's.

    Args:
        module: The module's name.
        instead: For each missing name, a text that says what to use instead.
    """

    def __getattr__(name: str) -> NoReturn:
        if name in instead:
            raise MissingNameError(f"{module} has no {name}, which Horovod's API has: {instead[name]}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules[module])

    return __getattr__


_HERE = "import its functions from hpsearch_comm.horovod itself"

IN_HOROVOD = {
    "mpi_ops": _HERE,
    "functions": _HERE,
    "run": "start the ranks with python -m hpsearch_comm.launch -np N SCRIPT",
    "check_num_rank_power_of_2": "compute it from hvd.size()",
    "num_rank_is_power_2": "compute it from hvd.size()",
    "gpu_available": "use torch.cuda.is_available()",
    "check_extension": "nothing is to be built, so leave the check out",
}

IN_ELASTIC = {"run_fn": "use hvd.elastic.run"}

_HANDLER = "write a subclass of hvd.elastic.State with save, restore and sync"

IN_ELASTIC_STATE = {
    "StateHandler": _HANDLER,
    "ModelStateHandler": _HANDLER,
    "OptimizerStateHandler": _HANDLER,
    "SamplerStateHandler": _HANDLER,
    "get_handler_registry": _HANDLER,
    "set_handler_registry": _HANDLER,
}
