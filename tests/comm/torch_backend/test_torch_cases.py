"""torch's own cases on our backend: all of them take minutes, some are run every time."""

from __future__ import annotations

import pytest

from tests.comm.torch_backend.torch_cases import OF_EIGHT, Comparison, compare

pytest.importorskip("expecttest", reason="pip install expecttest")

SOME = r"^test_(all_gather|all_reduce_sum|batch_isend_irecv_gloo|broadcast|gather|reduce_sum|scatter|send_recv)$"


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "pattern", "least"),
    [
        (3, SOME, 8),
        pytest.param(3, "", 80, marks=pytest.mark.exhaustive),
        pytest.param(4, "", 80, marks=pytest.mark.exhaustive),
        pytest.param(8, OF_EIGHT, 20, marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.timeout(1200)
def test_what_passes_on_gloo_passes_on_ours(ranks, pattern, least):
    comparison = compare(ranks, pattern)
    said = "\n".join(comparison.lines())
    assert not comparison.failing(), said
    assert len(comparison.on_gloo()) >= least, said


def test_a_comparison_tells_what_passes_what_is_excused_and_what_is_skipped():
    gloo = {"a": ("ok", ""), "b": ("ok", ""), "c": ("skip", "no GPU"), "test_get_backend": ("ok", "")}
    ours = {"a": ("ok", ""), "b": ("error", "bad"), "c": ("skip", "no GPU"), "test_get_backend": ("error", "other")}
    comparison = Comparison(3, gloo, ours)
    assert (comparison.passing(), comparison.failing()) == (["a"], ["b: ('error', 'bad')"])
    assert (comparison.excused(), comparison.skips()) == (["test_get_backend"], {"no GPU": ["c"]})
    said = list(comparison.lines())
    assert "4 cases, 3 ranks: Gloo {'ok': 3, 'skip': 1}, ours {'ok': 1, 'error': 2, 'skip': 1}" in said[0]
    assert said[-2:] == ["1 skipped: no GPU", "    c"]
