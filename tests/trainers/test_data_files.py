"""The data sets that are read from files, and the trainers on them, on small files of their own."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.char_lm import CharLM, Text
from hpsearch_trainers.fashion_mnist import CNN, MLP, fashion_mnist, map_idx
from hpsearch_trainers.schedules import cosine, polynomial, steps, warmup


def idx(values: torch.Tensor, kind: int = 8) -> bytes:
    head = struct.pack(f">BBBB{values.dim()}I", 0, 0, kind, values.dim(), *values.shape)
    return head + values.to(torch.uint8).numpy().tobytes()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "hpsearch"


@pytest.fixture
def clothes(tmp_path):
    """Return a folder with 60 and 20 images, labeled by the row in which they are bright."""
    folder = tmp_path / "clothes"
    folder.mkdir()
    for kind, count in (("train", 60), ("t10k", 20)):
        labels = torch.arange(count) % 10
        images = torch.zeros(count, 28, 28)
        images[torch.arange(count), 2 * labels] = 255
        (folder / f"{kind}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{kind}-labels-idx1-ubyte").write_bytes(idx(labels))
    return folder


def mapping_of(tensor: torch.Tensor) -> tuple[str, dict[str, int]]:
    """Return the file whose mapping contains a whole tensor, and the kernel's counts of that mapping, in KiB."""
    first, last = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    path, counts, within = "", {}, False
    for line in Path("/proc/self/smaps").read_text("utf-8").splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            begin, end = (int(address, 16) for address in name.split("-"))
            within = begin <= first and last <= end
            path = rest[-1] if within else path
        elif within and rest[-1] == "kB":
            counts[name[:-1]] = int(rest[0])
    return path, counts


def own_memory() -> int:
    """Return the bytes of this process that it shares with no other: its anonymous pages."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


@pytest.mark.parametrize("packed", [False, True])
def test_an_idx_file_is_mapped(tmp_path, cache, packed):
    values = torch.arange(24).view(2, 3, 4)
    path = tmp_path / ("some.gz" if packed else "some")
    path.write_bytes(gzip.compress(idx(values)) if packed else idx(values))
    for _ in range(2):
        found = map_idx(path)
        assert found.dtype == torch.uint8
        assert torch.equal(found.int(), values.int())
    files = list(cache.iterdir()) if cache.exists() else []
    assert [file.suffix for file in files] == ([".idx"] if packed else [])


def test_a_file_that_has_changed_is_unpacked_anew(tmp_path):
    path = tmp_path / "some.gz"
    for length in (3, 5):
        path.write_bytes(gzip.compress(idx(torch.ones(length))))
        assert len(map_idx(path)) == length


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "expected .*some to be an IDX file, got one that begins with $"),
        (b"PNG and more", "begins with 50 4e 47 20"),
        (idx(torch.ones(3), kind=0x0D), "unsigned bytes .*, got type 0d"),
        (idx(torch.ones(3))[:-1], r"to hold 3 numbers, as its head says \(shape \[3\]\), got 2: fetch it again"),
    ],
)
def test_a_file_that_is_something_else(tmp_path, content, words):
    (tmp_path / "some").write_bytes(content)
    with pytest.raises(ConfigurationError, match=words):
        map_idx(tmp_path / "some")


def test_files_that_can_not_be_read(tmp_path, cache):
    with pytest.raises(ConfigurationError, match="which can't be read"):
        map_idx(tmp_path / "missing")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(idx(torch.ones(1000)))[:-12])
    with pytest.raises(ConfigurationError, match="which can't be read"):
        map_idx(tmp_path / "cut.gz")
    assert list(cache.iterdir()) == [], "nothing half unpacked is left"


@pytest.mark.exhaustive
@pytest.mark.parametrize("trainer", [MLP, CNN])
def test_clothes_are_told_apart(clothes, trainer):
    trial: Any = SimpleNamespace(params={"data": str(clothes), "batch_size": 10, "hidden": 16, "channels": 2}, seed=1)
    training = trainer(trial)
    accuracies = [training.step()["accuracy"] for _ in range(12)]
    assert accuracies[-1] > 0.8


def test_training_leaves_the_clothes_in_their_files(clothes, cache):
    trial: Any = SimpleNamespace(params={"data": str(clothes), "batch_size": 10, "hidden": 16}, seed=1)
    training = MLP(trial)
    training.step()
    for data in (training.parts.train, training.parts.validation):
        images, labels = data  # type: ignore[misc]
        assert images.dtype == labels.dtype == torch.uint8
        for tensor, folder in ((images, cache), (labels, clothes)):
            path, counts = mapping_of(tensor)
            assert Path(path).parent == folder
            assert counts["Rss"] > 0
            assert counts["Anonymous"] == 0, "a page of its own is a copy"


def test_training_on_a_large_file_takes_no_memory_for_it(clothes):
    """The images, 47 MB of zeros without a block on the disk, are neither copied nor made floats as a whole."""
    count = 60_000
    with (clothes / "train-images-idx3-ubyte").open("wb") as file:
        file.write(struct.pack(">BBBB3I", 0, 0, 8, 3, count, 28, 28))
        file.truncate(16 + count * 784)
    (clothes / "train-labels-idx1-ubyte").write_bytes(idx(torch.zeros(count)))
    trial: Any = SimpleNamespace(params={"data": str(clothes), "batch_size": 1000, "hidden": 4}, seed=1)
    before = own_memory()
    training = MLP(trial)
    training.step()
    assert own_memory() - before < count * 784 / 2


def test_a_folder_without_clothes(tmp_path):
    with pytest.raises(ConfigurationError, match="dataset-fashion-mnist"):
        fashion_mnist(tmp_path)


def test_labels_that_do_not_fit(clothes):
    (clothes / "t10k-labels-idx1-ubyte").write_bytes(idx(torch.zeros(19)))
    with pytest.raises(ConfigurationError, match=r"a label for each of the t10k images .*\[20, 28, 28\].*\[19\]"):
        fashion_mnist(clothes)


@pytest.fixture
def alphabet(tmp_path: Path) -> Path:
    path = tmp_path / "alphabet.txt"
    path.write_text("abcdefgh" * 200)
    return path


def test_rows_of_a_text(alphabet):
    text = Text(alphabet, 16)
    assert text.vocabulary == list("abcdefgh")
    inputs, targets = text.train
    assert inputs.shape == targets.shape == (89, 16)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert len(text.validation[0]) == 9
    assert inputs.data_ptr() + 4 == targets.data_ptr(), "one copy serves both"


def test_the_numbers_of_a_text_are_mapped_from_the_cache(alphabet, cache):
    trial: Any = SimpleNamespace(params={"data": str(alphabet), "length": 16, "features": 16}, seed=1)
    training = CharLM(trial)
    training.step()
    (file,) = cache.iterdir()
    for data in (training.parts.train, training.parts.validation):
        for tensor in data:  # type: ignore[union-attr]
            path, counts = mapping_of(tensor)
            assert path == str(file)
            assert counts["Rss"] > 0
            assert counts["Anonymous"] == 0, "a page of its own is a copy"
    alphabet.write_text("xyz" * 300, "utf-8")
    assert Text(alphabet, 16).vocabulary == list("xyz")


def test_any_characters_have_numbers(tmp_path):
    path = tmp_path / "any.txt"
    text = "aé漢🙂" * 100
    path.write_text(text, "utf-8")
    found = Text(path, 4)
    assert "".join(found.vocabulary[number] for number in found.train[0].flatten().tolist()) == text[:356]
    path.write_text("", "utf-8")
    with pytest.raises(ConfigurationError, match="for rows of 4, got 0"):
        Text(path, 4)


def test_a_text_is_learned(alphabet):
    params = {"data": str(alphabet), "length": 16, "layers": 1, "heads": 2, "features": 16, "lr": 0.02, "batch_size": 8}
    trial: Any = SimpleNamespace(params=params, seed=1)
    training = CharLM(trial)
    found = [training.step() for _ in range(3)]
    assert found[-1]["accuracy"] > 0.9
    assert found[-1]["validation_loss"] < found[0]["validation_loss"]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({}, "must have a parameter `data`"),
        ({"data": "/nowhere/at/all"}, "expected a text in UTF-8 at /nowhere/at/all, which can't be read"),
        ({"length": 500}, "at least 5010 characters for rows of 500, got 1600"),
        ({"heads": 3}, "must be a multiple of `heads`, got 128 and 3"),
    ],
)
def test_a_text_that_can_not_be_used(alphabet, params, words):
    given = {"data": str(alphabet), "length": 16} | params if params else {}
    trial: Any = SimpleNamespace(params=given)
    with pytest.raises(ConfigurationError, match=words):
        CharLM(trial)


def test_schedules():
    by_steps = steps([30, 60, 80])
    assert [by_steps(epoch) for epoch in (0, 29.9, 30, 60, 85)] == pytest.approx([1, 1, 0.1, 0.01, 0.001])
    assert [cosine(10)(epoch) for epoch in (0, 5, 10, 12)] == pytest.approx([1, 0.5, 0, 0])
    assert cosine(10, least=0.2)(10) == pytest.approx(0.2)
    assert [polynomial(10)(epoch) for epoch in (0, 5, 10, 12)] == pytest.approx([1, 0.25, 0, 0])
    assert [warmup(4, 0.2)(epoch) for epoch in (0, 2, 4, 9)] == pytest.approx([0.2, 0.6, 1, 1])


@pytest.mark.parametrize(
    "make", [lambda: steps([30, 30]), lambda: cosine(0), lambda: polynomial(-1), lambda: warmup(0)]
)
def test_schedules_that_make_no_sense(make):
    with pytest.raises(ConfigurationError, match="must be"):
        make()
