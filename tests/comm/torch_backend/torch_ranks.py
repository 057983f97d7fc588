"""Ranks of torch.distributed: processes, forked from one that has imported torch, that call one function each."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import hpsearch_comm as comm
from tests.comm.host_devices import take_for_cuda
from tests.comm.process_ranks import Outcome, ServedRanks

_ROOT = Path(__file__).parents[3]


class TorchRanks(ServedRanks):
    """Calls functions of a module on the ranks of new default groups.

    Args:
        module: Where the functions are; imported once. Each is called with the arguments.
    """

    def __init__(self, module: str) -> None:
        super().__init__("tests.comm.torch_backend.torch_ranks", module)

    def outcomes(
        self,
        size: int,
        function: str,
        *arguments: Any,
        backend: str = "hpsearch",
        timeout: float = 60.0,
        device: str = "cpu",
        **env: str,
    ) -> list[Outcome]:
        """Call a function on each rank; return how each ended, by rank.

        Args:
            size: Number of ranks.
            function: Its name.
            *arguments: What it is called with.
            backend: Of the default group.
            timeout: Of the default group, in seconds.
            device: Where tensors are made: cpu, cuda, cuda:0, which is also the `device_id` of the default group, or
                stand-in, which are those on the CPU that all groups take for a CUDA device's, with Gloo for NCCL.
            **env: The ranks' environment.
        """
        return self.request(size, function, arguments, backend, timeout, device, env)

    def call(self, size: int, function: str, *arguments: Any, **options: Any) -> list[Any]:
        """Call a function on each rank; return the results by rank, of which none may have failed."""
        outcomes = self.outcomes(size, function, *arguments, **options)
        assert not any(outcome.error or outcome.code for outcome in outcomes), outcomes
        return [outcome.result for outcome in outcomes]


def _serve(module: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some versions of Gloo say there that they are connected
    functions = importlib.import_module(module)
    for line in sys.stdin:
        size, function, arguments, backend, timeout, device, env = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            children: list[tuple[int, socket.socket]] = []
            for rank in range(size):
                ours, theirs = socket.socketpair()
                child = os.fork()
                if child == 0:
                    os.environ.update(env)
                    work = getattr(functions, function)
                    _run_rank(rank, size, f"file://{folder}/store", theirs, backend, timeout, device, work, arguments)
                theirs.close()
                children.append((child, ours))
            outcomes = []
            for child, channel in children:
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                channel.setblocking(False)
                try:
                    outcome = channel.recv(1 << 22)
                except BlockingIOError:
                    outcome = b""
                outcomes.append({"code": code} | json.loads(outcome or b"{}"))
                channel.close()
        print(json.dumps(outcomes), file=answers, flush=True)


def _run_rank(
    rank: int,
    size: int,
    store: str,
    channel: socket.socket,
    backend: str,
    timeout: float,
    device: str,
    function: Any,
    arguments: Any,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore", FutureWarning)  # torch's names of before 2.13 are called too
    torch.set_num_threads(1)
    torch.manual_seed(7)
    outcome: dict[str, Any] = {}
    try:
        _make_tensors_on(device)
        seconds = timedelta(seconds=timeout)
        device_id = torch.device(device) if device == "cuda:0" else None
        dist.init_process_group(
            backend, init_method=store, rank=rank, world_size=size, timeout=seconds, device_id=device_id
        )
        # Kept to the end: where a callback in a thread of Gloo's has its group last, that thread waits for itself.
        everybody = dist.group.WORLD
        outcome["result"] = function(*arguments)
        dist.destroy_process_group()
        assert everybody is not None
    except BaseException as error:
        cause = error.__cause__ if isinstance(error.__cause__, comm.CommError) else error
        if cause is error:
            traceback.print_exc()
        outcome = {"error": type(cause).__name__, "text": str(error), "rank": getattr(cause, "rank", None)}
        outcome["result"] = type(error).__name__
    channel.sendall(json.dumps(outcome).encode())
    os._exit(0)


def _make_tensors_on(device: str) -> None:
    if device == "stand-in":
        take_for_cuda()
    elif device != "cpu":
        torch.backends.cudnn.allow_tf32 = False  # not to be told from the CPU's results
        torch.set_default_device(torch.device("cuda", 0))
        torch.cuda.set_device(0)


if __name__ == "__main__":
    import hpsearch_comm.torch_backend

    _serve(sys.argv[1])
