"""`hpsearch design`: design a network for a data set; and `hpsearch predict`: predict new examples with it."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from hpsearch.cli.arguments import add_study, number, positive, target
from hpsearch.config.import_paths import installing, is_installed
from hpsearch.errors import DesignError, HpsearchError

INTERRUPTED = 130


def design_network_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch design`."""
    text = "a CSV or Parquet file, a folder with a folder of images for each class, an IDX or an NPZ file"
    command.add_argument("data", type=Path, nargs="?", metavar="DATA", help=text)
    command.add_argument("--target", metavar="NAME", help="the column, or the array, that is predicted")
    text = "accuracy, balanced_accuracy, f1 or log_loss; rmse, mae or r2 (default: accuracy, rmse)"
    command.add_argument("--goal", metavar="NAME", help=text)
    text = "bound the network: parameters, flops or latency_ms (for one row); e.g. parameters=1e6; may be repeated"
    command.add_argument("--limit", action="append", default=[], metavar="NAME=NUMBER", help=text)
    command.add_argument("--time", metavar="TIME", help="for all of it, such as 90s or 1h (default: 10m)")
    command.add_argument("--output", type=target, metavar="DIR", help="(default: runs/design-<name of DATA>)")
    text = "continue a design that was interrupted, or whose sweep.yaml you have changed"
    command.add_argument("--resume", type=Path, metavar="DIR", help=text)
    command.add_argument("--sweep-only", action="store_true", help="end when the sweep is written, before it runs")
    text = "of the rows, which the search never sees (default: %(default)s)"
    command.add_argument("--test-share", type=float, default=0.2, metavar="SHARE", help=text)
    command.add_argument("--seed", type=number, default=0, metavar="N", help="of all that is random (default: 0)")
    command.add_argument("--workers", type=positive, metavar="N", help="trials at a time (default: one for each core)")
    text = "inline runs in this process, one trial at a time"
    command.add_argument("--backend", choices=("ray", "inline"), default="ray", help=text)
    command.add_argument("-q", "--quiet", action="store_true", help="print errors and the result alone")


def design_network(args: argparse.Namespace) -> int:
    """Design a network, or resume a design."""
    if not is_installed("sklearn"):
        raise DesignError(f"design: needs scikit-learn, which isn't installed: {installing('design')}")
    from hpsearch.design.design import Surroundings, design, resume  # torch takes seconds
    from hpsearch.design.folder import DesignRequest, read_limits, read_seconds
    from hpsearch.observers.progress import choose_progress
    from hpsearch.run.launched import check_launched_once

    check_launched_once("hpsearch design")
    around = Surroundings(
        say=(lambda text: None) if args.quiet else lambda text: print(text, flush=True),
        display=lambda: choose_progress(sys.stdout, args.quiet),
        backend=args.backend,
        began=args.began,
        sweep_only=args.sweep_only,
    )
    seconds = None if args.time is None else read_seconds(args.time)
    if (args.data is None) == (args.resume is None):
        raise DesignError("design: must be given a data set, or --resume DIR")
    folder = args.resume or args.output or Path("runs") / f"design-{_named(args.data)}"
    resumed, interrupted = f"hpsearch design --resume {shlex.quote(str(folder))}", False
    report = None
    try:
        if args.resume is not None:
            _refuse_beside_resume(args)
            report = resume(folder, around, seconds)
        else:
            request = DesignRequest(
                source=os.path.abspath(args.data.expanduser()),  # noqa: PTH100 - keeps the name of a link
                target=args.target,
                goal=args.goal,
                limits=read_limits(args.limit),
                seconds=600.0 if seconds is None else seconds,
                workers=args.workers,
                seed=args.seed,
                test_share=args.test_share,
            )
            report = design(request, folder, around)
    except KeyboardInterrupt:
        interrupted = True
    if report is not None:
        print(report.text(folder), end="")
        return 0
    if args.sweep_only and not interrupted:
        print(f"change it as you like, then: {resumed}")
        return 0
    print(f"interrupted; continue with: {resumed}")
    return INTERRUPTED


def _refuse_beside_resume(args: argparse.Namespace) -> None:
    """Check that options of the original request aren't given on resume. The request is stored and can't change."""
    names = [name for name in ("target", "goal", "limit", "output", "workers") if getattr(args, name)]
    names += [name for name, default in (("seed", 0), ("test_share", 0.2)) if getattr(args, name) != default]
    named = [f"--{name.replace('_', '-')}" for name in names]
    if named:
        raise DesignError(
            f"design: {', '.join(named)} must not be used with --resume, which continues with the original options; "
            "change sweep.yaml, or design anew in another folder"
        )


def _named(data: Path) -> str:
    """Return the name of the design's folder, from the name of the data's file or folder."""
    return re.sub(r"[^\w.-]+", "-", data.stem or data.resolve().name).strip("-.") or "data"


def predict_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch predict`."""
    add_study(command)
    command.add_argument("new", type=Path, metavar="NEW", help="a file or folder like what it was designed for")
    command.add_argument("--output", type=target, metavar="FILE", help="write there (default: standard output)")
    command.add_argument("--trees", action="store_true", help="with the trees that lie beside the network")


def predict(args: argparse.Namespace) -> int:
    """Run the `predict.py` of a designed network in its own process, as a user without hpsearch would.

    Raises:
        HpsearchError: There is no `predict.py`, or it can't predict these examples.
    """
    script = args.dir / "model" / "predict.py"
    if not script.is_file() and (args.dir / "design.json").is_file():
        raise HpsearchError(
            f"{args.dir}: must be a finished design, but the search that it began has left no model yet. Finish it "
            f"with: hpsearch design --resume {shlex.quote(str(args.dir))}"
        )
    if not script.is_file():
        raise HpsearchError(f"{args.dir}: must be what `hpsearch design` left, but there is no {script}")
    command = [sys.executable, str(script), str(args.new)]
    command += [] if args.output is None else ["--output", str(args.output)]
    command += ["--trees"] if args.trees else []
    process = subprocess.run(command, capture_output=True, encoding="utf-8")
    if process.returncode != 0:
        raise HpsearchError(process.stderr.strip().removeprefix("predict.py: "))
    print(process.stderr, end="", file=sys.stderr)
    print(process.stdout, end="")
    return 0
