"""torch's own cases on our backend: all of them take minutes, some are run every time."""

from __future__ import annotations

import pytest

from tests.comm.torch_cases import compare

pytest.importorskip("expecttest", reason="pip install expecttest")

SOME = r"test_(all_gather|all_to_all|batch_isend_irecv_gloo|reduce_sum|scatter|send_recv|new_subgroups)$"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "pattern"),
    [(3, SOME), pytest.param(3, "", marks=pytest.mark.exhaustive), pytest.param(4, "", marks=pytest.mark.exhaustive)],
)
@pytest.mark.timeout(1200)
def test_what_passes_on_gloo_passes_on_ours(ranks, pattern):
    failing, line = compare(ranks, pattern)
    assert not failing, line
