"""Predict for new examples, with the network in this file's folder.

`python predict.py NEW.csv` prints a CSV line for each row: the prediction and, for classes, the probability of each.
The script needs Python, NumPy and torch; pyarrow for Parquet, Pillow for images, scikit-learn for `--trees`.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import io
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

if not __package__:  # run as a script: turn its folder into a package, so that imports find only its files
    __package__ = "hpsearch_model"
    _package = types.ModuleType(__package__)
    _package.__path__ = [str(Path(__file__).resolve().parent)]
    sys.modules[__package__] = _package

from .preprocessing import check_pixels, load, network_inputs, transform
from .reading import (
    IMAGE_ENDINGS,
    DataSetError,
    as_images,
    check_finite,
    image_paths,
    is_grey,
    new_array,
    open_image,
    pixels,
    read_table,
)

_FOLDER = Path(__file__).resolve().parent
_ROWS_AT_ONCE = 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Predict; return the exit code."""
    parser = argparse.ArgumentParser(prog="predict.py", description="Predict for new examples.")
    parser.add_argument("new", type=Path, metavar="NEW", help="a file or folder like what was trained on")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there (default: standard output)")
    parser.add_argument("--trees", action="store_true", help="with the trees that lie beside the network")
    args = parser.parse_args(arguments)
    try:
        fitted = load(_FOLDER)
        names, inputs = read_inputs(fitted, args.new, _note)
        outputs = (_of_trees if args.trees else _of_network)(fitted, inputs)
        text = io.StringIO()
        _write(text, fitted, names, outputs)
        if args.output is None:
            print(text.getvalue(), end="")
        else:
            args.output.write_text(text.getvalue(), "utf-8")
    except DataSetError as error:
        print(f"predict.py: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        print(f"predict.py: {error.filename}: can't be read or written: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)


def read_inputs(
    fitted: Mapping[str, Any], path: Path, note: Callable[[str], object]
) -> tuple[list[str] | None, NDArray[Any]]:
    """Read new examples; return their names (None unless they are separate files), and the network's inputs.

    Raises:
        DataSetError: The examples don't match the training data.
    """
    if not path.exists():
        raise DataSetError(f"{path}: must be a file or a folder of images, but isn't there")
    if "columns" not in fitted:
        return _read_images(fitted, path, note)
    try:
        if fitted["array"] is None:
            table = read_table(path, [column["name"] for column in fitted["columns"]])
            return None, transform(fitted, table.columns, table.location, note)
        array = new_array(path, fitted["array"])
        rows = array.reshape(len(array), -1) if array.ndim else array.reshape(0, 0)
        if array.ndim > 2 or array.dtype.kind not in "biuf" or rows.shape[1] != fitted["width"]:
            raise DataSetError(
                f"must hold numbers of shape (rows, {fitted['width']}), as in training, got {array.dtype} of shape "
                f"{list(array.shape)}"
            )
        columns = {str(number): np.ascontiguousarray(rows[:, number]) for number in range(rows.shape[1])}
        return None, transform(fitted, columns, lambda row: f"{path}, row {row + 1}", note)
    except DataSetError as error:
        raise error if str(path) in str(error) else DataSetError(f"{path}: {error}") from error


def _read_images(
    fitted: Mapping[str, Any], path: Path, note: Callable[[str], object]
) -> tuple[list[str] | None, NDArray[Any]]:
    if not path.is_dir() and path.suffix.lower() not in IMAGE_ENDINGS:
        array = new_array(path, fitted["array"])
        if array.ndim not in (3, 4) or array.dtype.kind not in "biuf":
            raise DataSetError(
                f"{path}: must hold images, numbers of shape (rows, height, width) or with channels, as in training, "
                f"got {array.dtype} of shape {list(array.shape)}"
            )
        images = as_images(array, str(path))

        def location(row: int) -> str:
            return f"{path}, row {row + 1}"

        check_finite(images, map(location, range(len(images))))
        check_pixels(fitted, images, location, note)
        return None, images.astype(np.uint8 if fitted["bytes"] else np.float32)
    if not fitted["bytes"]:
        raise DataSetError(f"{path}: must be an NPZ file, as the images trained on were no bytes, but numbers")
    files = image_paths(path)[0] if path.is_dir() else [path]
    if not files:
        raise DataSetError(f"{path}: must hold images ({', '.join(IMAGE_ENDINGS)}), got none")
    shape = tuple(fitted["inputs"])
    batch, colors, sizes = np.empty((len(files), *shape), np.uint8), 0, 0
    for row, file in enumerate(files):
        image = open_image(file)
        colors += shape[0] == 1 and not is_grey(image)
        sizes += fitted["size"] is not None and [image.height, image.width] != fitted["size"]
        batch[row] = pixels(image, shape)
    if colors:
        note(f"{colors} images have colors, which training never saw; they are made grey")
    if sizes:
        note(f"{sizes} images have another size than those of training, {fitted['size'][0]} x {fitted['size'][1]}")
    return [str(file.relative_to(path)) if path.is_dir() else file.name for file in files], batch


def _of_network(fitted: Mapping[str, Any], inputs: NDArray[Any]) -> NDArray[np.float64]:
    """Return probabilities of shape (rows, classes), or numbers of shape (rows,)."""
    import torch

    for name in ("network.py", "weights.pt"):
        if not (_FOLDER / name).exists():
            raise DataSetError(f"{_FOLDER / name}: must be what `hpsearch design` left there, but isn't there")
    network = importlib.import_module(".network", __package__).load(str(_FOLDER / "weights.pt"))
    network.eval()
    outputs = np.empty((len(inputs), len(fitted["classes"] or [""])))
    with torch.no_grad():
        for start in range(0, len(inputs), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            output = network(torch.from_numpy(network_inputs(fitted, inputs[rows]))).double()
            outputs[rows] = (output.softmax(1) if fitted["classes"] else output.reshape(-1, 1)).numpy()
    if not np.isfinite(outputs).all():
        raise DataSetError(
            f"{_FOLDER}: must give finite numbers, got others for row {np.argwhere(~np.isfinite(outputs))[0, 0] + 1}"
        )
    return outputs if fitted["classes"] else outputs[:, 0] * fitted["target_scale"] + fitted["target_mean"]


def _of_trees(fitted: Mapping[str, Any], inputs: NDArray[Any]) -> NDArray[np.float64]:
    path = _FOLDER / "trees.joblib"
    if not path.exists():
        raise DataSetError(f"{path}: must be what `hpsearch design` left there, but isn't: only where trees did better")
    try:
        import joblib
    except ImportError as error:
        raise DataSetError("--trees needs scikit-learn, which isn't installed: pip install scikit-learn") from error
    return tree_outputs(joblib.load(path), inputs, len(fitted["classes"] or ()))


def tree_outputs(trees: Any, inputs: NDArray[Any], classes: int) -> NDArray[np.float64]:
    """Return probabilities of shape (rows, classes), or numbers of shape (rows,) if there are no classes."""
    if not classes:
        return np.asarray(trees.predict(inputs.reshape(len(inputs), -1)) if len(inputs) else (), np.float64)
    outputs = np.zeros((len(inputs), classes))
    if len(inputs):  # a class without training rows has no column
        outputs[:, np.asarray(trees.classes_, np.int64)] = trees.predict_proba(inputs.reshape(len(inputs), -1))
    return outputs


def _write(file: TextIO, fitted: Mapping[str, Any], names: list[str] | None, outputs: NDArray[np.float64]) -> None:
    lines = csv.writer(file, lineterminator="\n")
    classes = fitted["classes"]
    first = [] if names is None else ["file"]
    lines.writerow([*first, "prediction", *(f"probability of {label}" for label in classes or ())])
    for row, output in enumerate(outputs):
        cells = [repr(float(output))] if classes is None else [classes[output.argmax()], *map("{:.9g}".format, output)]
        lines.writerow([*([] if names is None else [names[row]]), *cells])


if __name__ == "__main__":
    sys.exit(main())
