"""Clusters with a node on which workers fail, whatever they are to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.backends.ray.failures import first_line
from hpsearch.backends.ray.nodes import node_of
from tests.hpsearch.support import broken_nodes
from tests.hpsearch.support.broken_nodes import BROKEN, NOT_IN_ORDER
from tests.hpsearch.support.nodes import added_node

pytestmark = pytest.mark.ray


def search_without_end(trainable: Any, directory: Path) -> None:
    """Search on all nodes until something ends it; what is in order is busy for as long."""
    hpsearch.search(
        trainable,
        parameters={"x": hpsearch.Uniform(0.0, 1.0)},
        metric="value",
        max_iter=1_000_000,
        limits={"max_time": 300},
        directory=directory,
        progress=False,
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize(("stage", "told"), [("start", "before they could run anything"), ("run", "around")])
def test_a_node_on_which_workers_fail_in_a_row_ends_the_sweep(ray_cluster, tmp_path, stage, told):
    with (
        added_node(ray_cluster.address, 1, ("env", f"{BROKEN}={stage}")),
        pytest.raises(hpsearch.BackendError, match=rf"failed on node [\d.]+ {told}.*PermissionError: {NOT_IN_ORDER}"),
    ):
        search_without_end(broken_nodes.train, tmp_path / "study")


@pytest.mark.exhaustive
def test_a_trainable_that_a_node_cant_import_is_an_error_that_names_the_node(ray_cluster, tmp_path, monkeypatch):
    code = f"import os\nfrom {broken_nodes.__name__} import train\nif {BROKEN!r} in os.environ:\n    import a_library\n"
    (tmp_path / "needs_a_library.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with (
        added_node(ray_cluster.address, 1, ("env", f"{BROKEN}=library")),
        pytest.raises(hpsearch.TrainableError, match=r"node \S+: .*'a_library'"),
    ):
        search_without_end("needs_a_library:train", tmp_path / "study")


def test_of_an_actor_that_couldnt_be_made_it_is_said_where_and_what_it_raised(ray_cluster):
    import ray

    class Unmade:
        def __init__(self) -> None:
            raise PermissionError("no room\nat all")

        def say(self) -> None: ...

    actor = ray.remote(Unmade).remote()
    with pytest.raises(ray.exceptions.ActorDiedError) as caught:
        ray.get(actor.say.remote())
    assert first_line(caught.value) == "PermissionError: no room"
    here = ray.get_runtime_context().get_node_id()
    assert node_of(actor) == (here, f"node {ray.util.get_node_ip_address()}")
