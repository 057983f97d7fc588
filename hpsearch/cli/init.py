"""`hpsearch init`: write a training script and a sweep file to start from."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpsearch.cli.arguments import pasted
from hpsearch.config.import_paths import installing, is_installed
from hpsearch.errors import HpsearchError

_TEMPLATES = Path(__file__).parent / "templates"
_TRAINED = "trainable: train:train"
"""Line of the template of the sweep file that says what is trained."""

_KINDS = {
    "function": (_TRAINED, ""),
    "trainer": ("trainable: train:Training", "a Trainer: model, optimizer, loss and data; the loop is hpsearch's"),
    "script": ("program: train.py", "a script that calls hpsearch.current_trial()"),
    "lightning": (_TRAINED, "a module for PyTorch Lightning"),
    "wandb": ("program: train.py", "a script that logs with W&B's functions"),
}
"""Each kind of training code: its line of the sweep file, and the help of its option."""


def init_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch init`."""
    text = "where to (default: the current folder)"
    command.add_argument("folder", type=Path, nargs="?", default=Path(), metavar="FOLDER", help=text)
    kinds = command.add_mutually_exclusive_group()
    for kind, (_, help_text) in _KINDS.items():
        if help_text:
            kinds.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, help=help_text)
    command.set_defaults(kind="function")
    command.add_argument("--force", action="store_true", help="replace files that are there")


def init(args: argparse.Namespace) -> int:
    """Write `train.py` and `sweep.yaml`, and print what to do with them."""
    line, _ = _KINDS[args.kind]
    texts = {
        "train.py": (_TEMPLATES / args.kind / "train.py").read_text("utf-8"),
        "sweep.yaml": (_TEMPLATES / "sweep.yaml").read_text("utf-8").replace(_TRAINED, line),
    }
    there = [str(args.folder / name) for name in texts if (args.folder / name).exists()]
    if there and not args.force:
        raise HpsearchError(
            f"init: {' and '.join(there)} must not be there yet: name another folder, or replace with --force"
        )
    try:
        args.folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (args.folder / name).write_text(text, "utf-8")
    except OSError as error:
        raise HpsearchError(f"init: {args.folder} must be a folder that can be written to, got: {error}") from error
    print(f"written: {', '.join(str(args.folder / name) for name in texts)}")
    steps = {
        "python train.py": "trains once, without a sweep",
        "hpsearch check sweep.yaml": "compares a trial with itself restored",
        "hpsearch run sweep.yaml": "searches",
    }
    if args.folder.absolute() != Path.cwd():
        print(f"cd {pasted(args.folder)}")
    for step, meaning in steps.items():
        print(f"{step:<26} # {meaning}")
    if args.kind == "lightning" and not is_installed("lightning"):
        print(f"train.py needs lightning, which isn't installed: {installing('lightning')}")
    return 0
