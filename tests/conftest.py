"""What the whole suite shares: one Ray cluster, and processes to fork from, made when a test asks for them first."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from tests.forking import end_forking
from tests.isolated import end_isolated
from tests.rarely import chooses_gpu, leave_out

gc.disable()  # until all tests are collected: what they import makes no garbage, and is searched for it many times

# A bare machine with a GPU may have nothing but torch and pytest, with which the tests of comm run.
draws: Any = importlib.import_module("tests.draws") if find_spec("hypothesis") is not None else None
if draws is not None:
    draws.register()

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Ray's workers have the lowest priority but four: beside other parts of the suite each start of one took half a minute.
os.environ.setdefault("RAY_worker_niceness", "0")
# Between two operations torch's threads would spin, on the very cores that other parts and other ranks wait for.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Lanes have the bits of trainers alone where a product of matrices doesn't depend on where in memory they lie.
os.environ.setdefault("MKL_CBWR", "AUTO")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs the tests in its background has all that they start ignore Ctrl-C, which some of it is sent.
    signal.signal(signal.SIGINT, signal.default_int_handler)


_LONG = 900
"""Seconds after which a test that takes long on a quiet machine hangs; on a busy one it takes several times as long."""


_END = float(os.environ.get("HPSEARCH_TESTS_END", "inf"))
"""Seconds since the epoch after which no test begins: those that are left are skipped, and counted so."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Skip what is left where there is no time for it."""
    if time.time() > _END:
        pytest.skip("HPSEARCH_TESTS_END has passed")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Hold what draws depend on, and hide GPUs from tests that aren't marked for them, once the marks are known.

    What is tested on the CPU is so on every machine. It would fail on a GPU where bits are compared, where processes
    share a model's memory, and where layers are split.
    """
    if draws is not None:
        draws.hold()
    if not chooses_gpu(config.getoption("markexpr") or ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which cases are exhaustive before pytest chooses by marks, and give what takes long more time."""
    leave_out(items)
    if draws is not None:
        draws.draw_few(items)
    times_out = any(item.config.pluginmanager.hasplugin("timeout") for item in items[:1])
    for item in items:
        if times_out and item.get_closest_marker("exhaustive") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_LONG))


def pytest_collection_finish() -> None:
    """Leave the tests themselves out of what is searched for garbage: many collect it, to see what is left."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def forking_ends() -> Iterator[None]:
    """End the processes that others were forked from, if there are any."""
    yield
    end_isolated()
    end_forking()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """A real cluster of one node with two CPUs, to which tests add nodes of their own; this process is connected."""
    import logging
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray

        from hpsearch.backends.ray.session import shut_down
        from tests.hpsearch.support.nodes import started_head

        cluster = started_head()
        ray.init(address=cluster.address, namespace="hpsearch", log_to_driver=False, logging_level=logging.ERROR)
    yield cluster
    shut_down()
    cluster.shutdown()
