"""The chain of batches: what it proves, with any damage."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch.errors import StorageError
from hpsearch.journal.file import Row, with_checksums
from hpsearch.storage.batches import Batch, ChainEnd, batch_with, digest_of, name_of

RECORD = b'{"study": {}}'

texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=20)
trials = st.none() | st.integers(0, 99)
columns = st.tuples(st.floats(0, 2e9), st.sampled_from(["started", "saved"]), trials, texts, texts)


def chain_of(rows: Sequence[Row], sizes: Sequence[int], driver: str) -> dict[str, bytes]:
    """Batches of these sizes, by name."""
    link, batches, rest = ChainEnd(digest_of(RECORD)), dict[str, bytes](), list(rows)
    for size in sizes:
        batch = Batch(driver, link.digest, rest[:size])
        del rest[:size]
        batches[batch.name] = batch.encode()
        _, link = link.after(batch.name, batches[batch.name])
    return batches


def read(batches: dict[str, bytes]) -> list[Row]:
    link, rows = ChainEnd(digest_of(RECORD)), list[Row]()
    for name in sorted(batches):
        batch, link = link.after(name, batches[name])
        rows += batch.rows
    assert link.end == ((rows[-1][0], rows[-1][-1]) if rows else (0, 0))
    return rows


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[Row], dict[str, bytes]]:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    drawn = draw(st.lists(columns, min_size=sum(sizes), max_size=sum(sizes)))
    rows: list[Row] = list(with_checksums((seq, *row) for seq, row in enumerate(drawn, 1)))
    return rows, chain_of(rows, sizes, draw(st.sampled_from(["ada", "bob"])))


@given(chains(), st.data())
def test_each_prefix_of_a_chain_is_read_as_it_was_written_and_each_event_is_found(chain, data):
    rows, batches = chain
    count = data.draw(st.integers(0, len(batches)))
    prefix = {name: batches[name] for name in sorted(batches)[:count]}
    assert read(prefix) == rows[: len(read(prefix))]
    assert read(batches) == rows
    for seq in range(1, len(rows) + 1):
        name = batch_with(seq, sorted(batches))
        assert seq in [row[0] for row in Batch.decode(name, batches[name]).rows]


@given(chains(), chains(), st.data())
def test_damage_is_an_error_or_changes_nothing(chain, other, data):
    rows, batches = chain
    name = data.draw(st.sampled_from(sorted(batches)))
    how = data.draw(st.sampled_from(["missing", "another chain's", "a byte", "renamed", "cut"]))
    content = batches.pop(name)
    if how == "another chain's" and name in other[1] and name < max(batches, default=""):  # else it is another end
        batches[name] = other[1][name]
    elif how == "a byte":
        changed = bytearray(content)
        changed[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 127))
        batches[name] = bytes(changed)
    elif how == "renamed":
        batches[name_of(data.draw(st.integers(1, 30)))] = content
    elif how == "cut":
        batches[name] = content[: data.draw(st.integers(0, len(content) - 1))]
    with contextlib.suppress(StorageError):
        left = read(batches)
        assert left == rows[: len(left)]


def test_a_batch_of_another_process_at_the_same_place_breaks_the_chain_at_the_next():
    rows = list(with_checksums((seq, 0.5, "saved", 1, "{}", "") for seq in range(1, 5)))
    ours, theirs = chain_of(rows, [2, 2], "ours"), chain_of(rows, [2, 2], "theirs")
    with pytest.raises(StorageError, match=r"journal/000000000003\.jsonl: expected the batch after event 2, but"):
        read({name_of(1): theirs[name_of(1)], name_of(3): ours[name_of(3)]})
