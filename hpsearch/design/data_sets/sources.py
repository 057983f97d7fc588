"""Read examples and their targets from any supported source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpsearch.design.data_sets.reading import (
    TABLE_ENDINGS,
    Array,
    DataSetError,
    as_images,
    check_finite,
    image_paths,
    is_grey,
    is_idx,
    listed,
    open_image,
    pixels,
    read_idx,
    read_npz,
    read_table,
)
from hpsearch_trainers.nearest import nearest

_PAIRS = (
    ("x", "y"),
    ("inputs", "targets"),
    ("images", "labels"),
    ("data", "target"),
    ("features", "targets"),
    ("features", "labels"),
)
_TRAIN = ("{}_train", "train_{}")
_TEST = ("{}_test", "test_{}")


@dataclass
class Examples:
    """A data set."""

    path: Path
    targets: Sequence[str] | Array
    """Target of each row, as in the file."""
    target: str | None
    """Name of the target; None if it has no name."""
    columns: dict[str, Sequence[str] | Array] = field(default_factory=dict)
    """Columns of a table."""
    images: Array | None = None
    """Images of shape (rows, channels, height, width), without columns; None for a table."""
    array: str | None = None
    """Name of the array with the inputs; None for a table with named columns and for a folder of images."""
    given_test: NDArray[np.bool_] | None = None
    """Test rows, if the data set defines them."""
    location: Callable[[int], str] = str
    """Returns a row's location."""
    size: tuple[int, int] | None = None
    """Original height and width of the images, if they are equal."""
    labelled: bool = False
    """Whether the targets are certainly labels."""
    lines: list[str] = field(default_factory=list)
    """Notes to print."""


def read_examples(path: Path, target: str | None, side: int | None) -> Examples:
    """Read a data set; `target` and `side` as in `prepare`.

    Raises:
        DataSetError: The data set can't be read, or doesn't have that target.
    """
    if not path.exists():
        raise DataSetError(f"{path}: must be a file or a folder of images, but isn't there")
    if path.name.lower().endswith(TABLE_ENDINGS):
        return _of_table(path, target)
    if path.suffix.lower() == ".npz":
        return _of_arrays(path, read_npz(path), target)
    if target is not None:
        raise DataSetError(f"target: must be left out, got {target!r}: {path} has no columns with names")
    if path.is_dir():
        if any(is_idx(file) for file in path.iterdir()):
            return _of_idx_folder(path)
        return _of_image_folder(path, side)
    if is_idx(path):
        images = read_idx(path)
        examples = _of_array(path, images, _idx_labels(path, len(images)), None, "images")
        examples.labelled = True
        return examples
    raise DataSetError(
        f"{path}: must be a table ({', '.join(TABLE_ENDINGS)}), an NPZ file (.npz), an IDX file (such as "
        "train-images-idx3-ubyte), or a folder of those or of images"
    )


def _of_table(path: Path, target: str | None) -> Examples:
    table = read_table(path)
    if target not in table.columns:
        names = ", ".join(repr(name) for name in table.columns)
        got = "none" if target is None else repr(target)
        close = nearest(target, table.columns) if target is not None else ""
        raise DataSetError(f"target: must be one of the columns of {path}, got {got}; there are {names}{close}")
    columns: dict[str, Sequence[str] | Array] = dict(table.columns)
    return Examples(path, columns.pop(target), target, columns, location=table.location)


def _of_arrays(path: Path, arrays: dict[str, Array], target: str | None) -> Examples:
    if target is not None:
        if target not in arrays:
            raise DataSetError(
                f"target: must be one of the arrays of {path}, got {target!r}; there are {listed(arrays)}"
            )
        fitting = [name for name, array in arrays.items() if name != target and _rows(array) == _rows(arrays[target])]
        named = [name for name in fitting if name.lower() in {usual for usual, _ in _PAIRS}]
        if len(fitting) != 1 and len(named) != 1:
            raise DataSetError(
                f"{path}: must hold one array with as many rows as {target!r} to predict it from, or one called x, "
                f"inputs, images, data or features, got {listed(arrays)}"
            )
        name = fitting[0] if len(fitting) == 1 else named[0]
        return _of_array(path, arrays[name], arrays[target], target, name)
    undivided, train, test = (_pair(arrays, forms) for forms in (("{}",), _TRAIN, _TEST))
    first = undivided or train
    if first is None or (undivided and train):
        raise DataSetError(
            f"{path}: must hold one pair of arrays called x and y, inputs and targets, images and labels, or data and "
            f"target, whole or with _train and _test, got {listed(arrays)}: name one with --target, or write them so"
        )
    inputs, targets = arrays[first[0]], arrays[first[1]]
    rows = len(inputs) if inputs.ndim else 0
    if test is None:
        return _of_array(path, inputs, targets, first[1], first[0])
    more, their = arrays[test[0]], arrays[test[1]]
    if inputs.shape[1:] != more.shape[1:] or targets.shape[1:] != their.shape[1:]:
        raise DataSetError(f"{path}: must hold arrays of one shape to train and to test on, got {listed(arrays)}")
    for names in (first, test):
        _check_counts(path, arrays[names[0]], arrays[names[1]], f"{names[0]!r} and {names[1]!r}")
    examples = _of_array(path, np.concatenate([inputs, more]), np.concatenate([targets, their]), first[1], first[0])
    examples.given_test = np.arange(rows + len(more)) >= rows
    return examples


def _pair(arrays: dict[str, Array], forms: Sequence[str]) -> tuple[str, str] | None:
    names = {name.lower(): name for name in arrays}
    for form in forms:
        for pair in _PAIRS:
            one, other = (form.format(name) for name in pair)
            if one in names and other in names:
                return names[one], names[other]
    return None


def _of_idx_folder(path: Path) -> Examples:
    files = sorted(file for file in path.iterdir() if is_idx(file) and "labels" not in file.name)
    kinds = {file.name.split("-")[0]: file for file in files}
    if len(kinds) != len(files) or len(files) not in (1, 2) or (len(files) == 2 and not {"t10k", "test"} & set(kinds)):
        names = ", ".join(file.name for file in files) or "none"
        raise DataSetError(
            f"{path}: must hold one IDX file of images, or one to train and one (t10k) to test on, got {names}"
        )
    files = [kinds[name] for name in sorted(kinds, key=lambda name: name in ("t10k", "test"))]
    images = [read_idx(file) for file in files]
    labels = [_idx_labels(file, len(array)) for file, array in zip(files, images, strict=True)]
    if len({array.shape[1:] for array in images}) > 1:
        raise DataSetError(f"{path}: must hold images of one size, got {[list(array.shape) for array in images]}")
    examples = _of_array(path, np.concatenate(images), np.concatenate(labels), None, "images")
    examples.labelled = True
    if len(files) == 2:
        examples.given_test = np.arange(len(examples.targets)) >= len(images[0])
    return examples


def _idx_labels(path: Path, count: int) -> Array:
    name = path.name.removesuffix(".gz").replace("images", "labels").replace("idx3", "idx1").replace("idx2", "idx1")
    for file in (path.with_name(name), path.with_name(f"{name}.gz")):
        if file.exists() and file.name != path.name:
            labels = read_idx(file)
            if labels.ndim != 1 or len(labels) != count:
                raise DataSetError(
                    f"{file}: must hold a label for each of the {count} images in {path}, got "
                    f"shape {list(labels.shape)}"
                )
            return labels
    if name == path.name.removesuffix(".gz"):
        raise DataSetError(f"{path}: must be an IDX file of images, with `images` or `idx3` in its name")
    raise DataSetError(f"{path}: must have a file with its labels next to it, {name} or {name}.gz, but there is none")


def _of_array(path: Path, inputs: Array, targets: Array, target: str | None, name: str) -> Examples:
    title = f"{path}, array {name!r}"
    if inputs.dtype.kind not in "biuf" or inputs.ndim not in (1, 2, 3, 4) or inputs.size == 0:
        raise DataSetError(
            f"{title}: must be numbers of shape (rows, features), (rows, height, width) or with channels, got "
            f"{inputs.dtype} of shape {list(inputs.shape)}"
        )
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    if targets.ndim != 1 or targets.dtype.kind not in "biufUS":
        raise DataSetError(
            f"{path}, array {target!r}: must be one number or text for each row, got {targets.dtype} of shape "
            f"{list(targets.shape)}"
        )
    _check_counts(path, inputs, targets, f"{name!r} and {target!r}")
    if targets.dtype.kind == "S":
        targets = np.char.decode(targets, "utf-8", "backslashreplace")

    def location(row: int) -> str:
        return f"{title}, row {row + 1}"

    examples = Examples(path, targets, target, array=name, location=location)
    if inputs.ndim < 3:
        rows = inputs.reshape(len(inputs), -1)
        examples.columns = {str(number): np.ascontiguousarray(rows[:, number]) for number in range(rows.shape[1])}
        return examples
    images = as_images(inputs, title)
    check_finite(images, map(location, range(len(images))))
    examples.images = images if images.dtype == np.uint8 else _narrowed(images)
    examples.size = (images.shape[2], images.shape[3])
    return examples


def _narrowed(images: Array) -> Array:
    """Return pixels of an integer type as uint8 if all are from 0 to 255; otherwise as float32."""
    if images.dtype.kind in "iub" and images.min() >= 0 and images.max() <= 255:
        return images.astype(np.uint8)
    return images.astype(np.float32)


def _check_counts(path: Path, inputs: Array, targets: Array, names: str) -> None:
    if _rows(inputs) != _rows(targets):
        raise DataSetError(f"{path}: {names} must have as many rows, got {_rows(inputs)} and {_rows(targets)}")


def _rows(array: Array) -> int:
    return len(array) if array.ndim else 0


_LONGEST_SIDE = 64
"""Default limit in pixels, as larger images train slowly without a GPU; `side` overrides it."""

_SPLITS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation"})


def _of_image_folder(folder: Path, side: int | None) -> Examples:
    """Read a folder with a subfolder of images for each class. Its name is the class; images may be nested deeper.

    All images are resized to one size. They have one channel if none has colors, otherwise three.

    Args:
        folder: The folder.
        side: Longer side of the resized images in pixels; None: the original one, but at most 64.

    Raises:
        DataSetError: The folder has another structure, or a file in it isn't an image; the message names the file.
    """
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    names = [path.name for path in classes]
    if names and {name.lower() for name in names} <= _SPLITS:
        raise DataSetError(f"{folder}: must have a folder for each class, got {', '.join(names)}: give one of them")
    if len(classes) < 2:
        raise DataSetError(f"{folder}: must have a folder for each of at least two classes, got {names or 'none'}")
    paths, labels, other_files = [], [], []
    for path in classes:
        images, more = image_paths(path)
        paths += images
        labels += [path.name] * len(images)
        other_files += more
        if not images:
            raise DataSetError(f"{path}: must have images in it, as it is a class, got none")
    other_files += [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    lines = []
    if other_files:
        some = ", ".join(str(path.relative_to(folder)) for path in other_files[:3])
        lines.append(f"{len(other_files)} files are left out, which are no images or lie in no class: {some}")
    shape, size = _common(paths, side)
    if size is None or size != shape[1:]:
        lines.append(f"images are resized to {shape[1]} x {shape[2]} pixels (height x width)")
    return Examples(
        folder,
        labels,
        None,
        images=np.stack([pixels(open_image(path), shape) for path in paths]),
        location=lambda row: str(paths[row]),
        size=size,
        labelled=True,
        lines=lines,
    )


def _common(paths: list[Path], side: int | None) -> tuple[tuple[int, int, int], tuple[int, int] | None]:
    """Return the common shape by the median height and width, and the original size if it is the same for all."""
    sizes, grey = [], True
    for path in paths:
        image = open_image(path)
        sizes.append((image.height, image.width))
        grey = grey and is_grey(image)
    height, width = (float(np.median(lengths)) for lengths in zip(*sizes, strict=True))
    factor = (side or min(_LONGEST_SIDE, max(height, width))) / max(height, width)
    shape = (1 if grey else 3, max(1, round(factor * height)), max(1, round(factor * width)))
    return shape, sizes[0] if len(set(sizes)) == 1 else None
