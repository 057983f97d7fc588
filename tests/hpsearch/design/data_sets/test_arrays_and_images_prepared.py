"""Arrays and images made ready for a search, and predicted for by what is left of it."""

from __future__ import annotations

import gzip
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hpsearch.design.data_sets import DataSetError, prepare
from hpsearch.design.data_sets.reading import open_image
from tests.hpsearch.design.data_sets.designed import alone, inputs_alone, loaded, prepared, rows_of


def patterns(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of grey images, some of which are stored in color."""
    for number, pixels in enumerate(patterns(40, 6, 5)):
        path = tmp_path / "pictures" / "ab"[number % 2] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).convert("RGB" if number % 3 else "L").save(path)
    (tmp_path / "pictures/a/.hidden.png").write_text("no image")
    (tmp_path / "pictures/.git").mkdir()
    (tmp_path / "pictures/a/notes.txt").write_text("no image")
    return tmp_path / "pictures"


def test_a_folder_of_images(tmp_path, folder):
    found = prepared(folder, None, tmp_path / "o")
    assert (found.kind, found.classes, found.inputs) == ("classes", ("a", "b"), (1, 6, 5))
    assert "1 files are left out, which are no images or lie in no class: a/notes.txt" in found.lines
    ours = np.concatenate([loaded(tmp_path / "o", part)[0] for part in ("search", "test")])
    assert ours.dtype == np.uint8
    (there,) = inputs_alone(tmp_path / "o", folder)
    assert sorted(map(bytes, ours)) == sorted(map(bytes, there)) == sorted(map(bytes, patterns(40, 6, 5)))
    answer = alone(tmp_path / "o", folder / "a")
    assert (answer.returncode, answer.stderr) == (0, "")
    rows = rows_of(answer.stdout)
    assert [row["file"] for row in rows] == [f"{number:02}.png" for number in range(0, 40, 2)]


def test_images_of_other_sizes_and_colors_are_said(tmp_path, folder):
    prepared(folder, None, tmp_path / "o")
    Image.fromarray(patterns(1, 12, 10, 3)[0]).save(tmp_path / "other.png")
    answer = alone(tmp_path / "o", tmp_path / "other.png")
    assert answer.returncode == 0
    assert "1 images have colors, which training never saw; they are made grey" in answer.stderr
    assert "1 images have another size than those of training, 6 x 5" in answer.stderr


def test_images_are_made_of_one_size(tmp_path, folder):
    Image.fromarray(patterns(1, 12, 10, 3)[0]).save(folder / "a" / "large.png")
    found = prepare(folder, None, tmp_path / "o", side=12)
    assert found.inputs == (3, 12, 10)
    assert "images are resized to 12 x 10 pixels (height x width)" in found.lines


def test_a_broken_image_is_named(tmp_path, folder):
    whole = (folder / "b/01.png").read_bytes()
    (folder / "b/01.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataSetError, match=r"b/01.png: must be an image, but can't be read"):
        prepare(folder, None, tmp_path / "o")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Image.fromarray(np.full((2, 2), 257 * 100, np.uint16)), 100),
        (lambda: Image.new("RGBA", (2, 2), (0, 0, 0, 0)), 255),
        (lambda: Image.new("LA", (2, 2), (50, 255)), 50),
        (lambda: Image.new("1", (2, 2), 1), 255),
        (lambda: Image.new("RGB", (2, 2), (7, 7, 7)).convert("P"), 7),
    ],
)
def test_images_of_all_modes_are_read(tmp_path, make, expected):
    make().save(tmp_path / "a.png")
    found = np.asarray(open_image(tmp_path / "a.png"))
    assert abs(found.astype(int) - expected).max() <= (7 if expected == 7 else 0)  # a palette has no such grey


def test_an_image_is_turned_as_it_says(tmp_path):
    image = Image.fromarray(np.array([[0, 255]], np.uint8))
    exif = image.getexif()
    exif[0x0112] = 6  # a quarter to the right
    image.save(tmp_path / "a.png", exif=exif)
    assert np.asarray(open_image(tmp_path / "a.png")).tolist() == [[0], [255]]


def test_folders_that_are_no_classes(tmp_path, folder):
    with pytest.raises(DataSetError, match="must have a folder for each of at least two classes"):
        prepare(folder / "a", None, tmp_path / "o")
    (folder / "a").rename(folder / "train")
    (folder / "b").rename(folder / "test")
    with pytest.raises(DataSetError, match="must have a folder for each class, got test, train"):
        prepare(folder, None, tmp_path / "o")


def test_labels_of_folders_are_names_whatever_they_look_like(tmp_path, folder):
    (folder / "a").rename(folder / "NA")
    (folder / "b").rename(folder / "01")
    assert prepare(folder, None, tmp_path / "o").classes == ("01", "NA")


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_keep_their_own_split(tmp_path, packed):
    source, images = tmp_path / "mnist", patterns(60, 4, 3)
    source.mkdir()
    for name, rows in (("train", slice(0, 40)), ("t10k", slice(40, 60))):
        for kind, values in (("images-idx3", images[rows]), ("labels-idx1", np.arange(60, dtype=np.uint8)[rows] % 3)):
            content, end = (gzip.compress(idx(values)), ".gz") if packed else (idx(values), "")
            (source / f"{name}-{kind}-ubyte{end}").write_bytes(content)
    found = prepared(source, None, tmp_path / "o")
    assert (found.search_rows, found.test_rows, found.inputs, found.classes) == (40, 20, (1, 4, 3), ("0", "1", "2"))
    np.testing.assert_array_equal(loaded(tmp_path / "o", "test")[0][:, 0], images[40:])
    (there,) = inputs_alone(tmp_path / "o", next(source.glob("t10k-images*")))
    np.testing.assert_array_equal(there[:, 0], images[40:])
    alone_one = prepare(next(source.glob("train-images*")), None, tmp_path / "p")
    assert alone_one.search_rows + alone_one.test_rows == 40
    next(source.glob("t10k-labels*")).write_bytes(b"")
    with pytest.raises(
        DataSetError, match=r"must be an IDX file, (got one that begins with nothing|but can't be read)"
    ):
        prepare(source, None, tmp_path / "o")


def test_idx_pairs_whose_counts_differ(tmp_path):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(patterns(30, 4, 3)))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(29, np.uint8)))
    with pytest.raises(DataSetError, match=r"must hold a label for each of the 30 images in .*got shape \[29\]"):
        prepare(tmp_path, None, tmp_path / "o")
    with pytest.raises(DataSetError, match=r"labels-idx1-ubyte: must be an IDX file of images"):
        prepare(tmp_path / "train-labels-idx1-ubyte", None, tmp_path / "o")


def test_npz_of_rows_with_gaps(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 3)).astype(np.float32), np.arange(50) % 2 == 0
    x[::5, 1] = np.nan
    np.savez(tmp_path / "a.npz", x=x, y=y)
    found = prepared(tmp_path / "a.npz", None, tmp_path / "o")
    assert (found.classes, found.inputs) == (("False", "True"), (4,))
    np.save(tmp_path / "new.npy", x[::-1])
    first, second = inputs_alone(tmp_path / "o", tmp_path / "a.npz", tmp_path / "new.npy")
    np.testing.assert_array_equal(first[::-1], second)
    np.save(tmp_path / "wide.npy", np.ones((3, 4)))
    answer = alone(tmp_path / "o", tmp_path / "wide.npy")
    assert answer.returncode == 1
    assert (
        "wide.npy: must hold numbers of shape (rows, 3), as in training, got float64 of shape [3, 4]" in answer.stderr
    )


@pytest.mark.parametrize(
    ("arrays", "target", "words"),
    [
        ({"x": np.ones((30, 2)), "y": np.array([None] * 30)}, None, "array 'y': must be .* numbers or texts"),
        ({"a": np.ones((30, 2)), "b": np.ones(30)}, None, r"must hold one pair of arrays .*'a' \[30, 2\], 'b' \[30\]"),
        ({"x": np.ones((30, 2)), "y": np.ones(29)}, None, "'x' and 'y' must have as many rows, got 30 and 29"),
        ({"x": np.ones((30, 2)), "y": np.ones((30, 3))}, None, "one number or text for each row"),
        ({"x": np.array(["a"] * 30), "y": np.ones(30)}, None, "array 'x': must be numbers"),
        ({"x": np.ones((30, 2)), "y": np.ones(30)}, "z", "must be one of the arrays of .*got 'z'; there are 'x'"),
        ({"x": np.full((30, 2, 2), np.nan), "y": np.arange(30)}, None, "row 1: must be an image of finite numbers"),
        ({"x": np.ones((30, 3, 5, 3)), "y": np.arange(30)}, None, "which may be both or neither"),
        ({"x": np.ones((30, 5, 5)), "y": np.arange(30) % 2}, None, "must have images that differ"),
    ],
)
def test_npz_files_that_can_not_be_used(tmp_path, arrays, target, words):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataSetError, match=words):
        prepare(tmp_path / "a.npz", target, tmp_path / "o")


@pytest.mark.parametrize(
    ("trained", "new", "words"),
    [
        (patterns(30, 4, 5), patterns(3, 4, 5) / 255, "row 1: must be an image of bytes, 0 to 255"),
        (patterns(30, 4, 5) / 255, patterns(3, 4, 5), "row 1: must be an image of numbers from 0 to 1"),
        (patterns(30, 4, 5), patterns(3, 5, 4), r"must be images of .* \[1, 4, 5\], as in training, got \[1, 5, 4\]"),
        (patterns(30, 4, 5), patterns(3, 4, 5).astype(np.int64) + 300, "row 1: must be an image of bytes"),
        (patterns(30, 4, 5), patterns(3), r"must hold images, .* got uint8 of shape \[3\]"),
        (patterns(30, 4, 5), np.full((3, 4, 5), "a"), r"must hold images, .* got <U1 of shape \[3, 4, 5\]"),
    ],
)
def test_new_images_of_another_scale_are_refused(tmp_path, trained, new, words):
    np.savez(tmp_path / "a.npz", images=trained, labels=np.arange(30) % 2)
    prepared(tmp_path / "a.npz", None, tmp_path / "o")
    np.save(tmp_path / "b.npy", new)
    answer = alone(tmp_path / "o", tmp_path / "b.npy")
    assert answer.returncode == 1
    assert re.search(words, answer.stderr), answer.stderr


def test_channels_are_found_wherever_they_are(tmp_path):
    images = patterns(30, 3, 8, 9)
    for values in (images, images.transpose(0, 2, 3, 1)):
        np.savez(tmp_path / "a.npz", x_train=values, y_train=np.arange(30) % 2, x_test=values[:4], y_test=[0, 1, 0, 1])
        found = prepare(tmp_path / "a.npz", None, tmp_path / "o")
        assert (found.inputs, found.search_rows, found.test_rows) == ((3, 8, 9), 30, 4)
        np.testing.assert_array_equal(loaded(tmp_path / "o", "search")[0], images)
        assert "4 of the 4 test rows have the same inputs as one that the search sees" in found.warnings
