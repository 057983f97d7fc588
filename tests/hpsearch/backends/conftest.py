"""What tests on Ray share beside the cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.hpsearch.support.driver import closed_in_the_end
from tests.hpsearch.support.nodes import Node, added_node


@pytest.fixture(autouse=True)
def closed_backends() -> Iterator[None]:
    """Leave no worker to a backend whose test failed."""
    with closed_in_the_end():
        yield


@pytest.fixture
def blind_node(ray_cluster: Any, tmp_path: Path) -> Iterator[str]:
    """Yield the mount namespace of a node whose processes see an empty directory where this test's files are."""
    blind = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {tmp_path} && exec "$@"', "sh"]
    tried = subprocess.run([*blind, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"no mount namespace of its own can be made here: {tried.stderr.strip()}")
    with added_node(ray_cluster.address, 1, blind) as node:
        yield str(Path(f"/proc/{node.process.pid}/ns/mnt").readlink())


@pytest.fixture
def add_node(ray_cluster: Any) -> Iterator[Callable[[int], Node]]:
    """A function that adds a node with so many CPUs, which the test may lose; all are gone when it ends."""
    with ExitStack() as ending:
        yield lambda cpus: ending.enter_context(added_node(ray_cluster.address, cpus))
