"""Outputs that must not change by a renaming, made by what users call: the command line, the Python API, files.

`python -m tests.goldens.made` writes them to tests/goldens/frozen/, where tests/goldens/test_goldens.py compares them.
What depends on the clock, the machine, its packages or the last digit of a logarithm is left out or rounded.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import hpsearch
from hpsearch import seeds
from hpsearch.cli import main
from hpsearch.design.folder import DesignRequest
from hpsearch.design.report import DesignReport, TestScore
from hpsearch.design.trees import Trees
from tests.goldens.names import names_of

ROOT = Path(__file__).parents[2]
FROZEN = Path(__file__).parent / "frozen"
NAMES = "names.txt"
SWEEPS = Path(__file__).parent / "sweeps"

_WIDTH = "100"

Made = dict[str, str]
"""Names of files to their texts."""

_SIMULATED = ("--backend", "simulated", "-q")

_STUDIES: tuple[tuple[int, tuple[str, ...]], ...] = (
    (0, ("run", "bands.yaml", "--dir", "bands", *_SIMULATED)),
    (0, ("run", "bands.yaml", "--dir", "other", *_SIMULATED, "--set", "seed=4")),
    (0, ("rerun", "bands", "--dir", "again", "--top", "2", "--seeds", "2", *_SIMULATED)),
    (3, ("run", "goals.yaml", "--dir", "goals", *_SIMULATED, "--set", "limits.max_time=7", "--tag", "first")),
    (0, ("note", "goals", "steered")),
    (0, ("prune", "goals", "4")),
    (0, ("extend", "goals", "--run-cap", "10")),
    (0, ("add", "goals", "--json", "point.json")),
    (0, ("resume", "goals", *_SIMULATED, "--set", "limits.max_time=none")),
    (0, ("run", "population.yaml", "--dir", "population", "--backend", "inline", "-q")),
    (4, ("run", "small.yaml", "--dir", "nan", "--backend", "inline", "-q")),
    (130, ("run", "interrupted.yaml", "--dir", "interrupted", "--backend", "inline", "-q")),
    (0, ("ask", "small.yaml", "--dir", "asked")),
    (5, ("ask", "asked")),
    (0, ("tell", "asked", "0", "loss=0.5")),
    (6, ("ask", "asked")),
    (1, ("run", "missing.yaml")),
    (2, ("run", "--no-such-flag")),
)
"""How the studies come to be, each command with its exit code."""

_TABLES: dict[str, tuple[str, ...]] = {
    "trials.csv": ("trials", "bands", "--format", "csv", "--times", "--metrics"),
    "trials.json": ("trials", "bands", "--format", "json", "--times"),
    "trials-goals.csv": ("trials", "goals", "--format", "csv", "--metrics"),
    "trials-goals.json": ("trials", "goals", "--format", "json", "--front"),
    "trials-population.csv": ("trials", "population", "--format", "csv"),
    "trials-population.json": ("trials", "population", "--format", "json"),
    "trials-rerun.csv": ("trials", "again", "--format", "csv"),
    "trials-rerun.json": ("trials", "again", "--format", "json"),
    "segments.csv": ("trials", "goals", "--segments", "--format", "csv"),
    "segments.json": ("trials", "bands", "--segments", "--format", "json"),
    "groups.csv": ("trials", "bands", "--by", "depth", "--format", "csv"),
    "groups.json": ("trials", "bands", "--by", "depth", "--format", "json"),
    "best.json": ("best", "bands", "--format", "json"),
    "best-goals.json": ("best", "goals", "--format", "json"),
    "trial.json": ("trial", "bands", "4", "--format", "json"),
    "trial-fork.json": ("trial", "population", "6", "--format", "json"),
    "lineage.csv": ("lineage", "population", "6", "--format", "csv"),
    "lineage.json": ("lineage", "population", "6", "--format", "json"),
    "status.json": ("status", "bands", "--json"),
    "history.txt": ("history", "goals", "--format", "json"),
    "compare.csv": ("compare", "bands", "other", "--format", "csv"),
    "compare.json": ("compare", "bands", "other", "--format", "json"),
    "list.csv": ("list", ".", "--format", "csv"),
    "list.json": ("list", ".", "--format", "json"),
}
"""Tables that are printed, by the name of their golden."""

_VIRTUAL = _TABLES.keys() - {"list.csv", "list.json", "trial-fork.json"}
"""Those whose seconds are all of a virtual clock."""


def made() -> Made:
    """Return all goldens."""
    with _folder() as folder:
        _make_studies(folder)
        return {
            **{f"journal-{study}.txt": _journal(folder / study) for study in ("bands", "goals", "population")},
            **{name: _printed(name, folder) for name in _TABLES},
            **_exported(folder),
            "stored.txt": "\n".join([*_stored(folder), ""]),
            "tensorboard.txt": _tensorboard(folder / "population") + _tensorboard(folder / "goals"),
            "report.html": _page(folder),
            "draws.txt": "\n".join([*_seeds(), *_orders(), *_draws(), *_suggestions(folder), ""]),
        }


def _make_studies(folder: Path) -> None:
    """Run all commands of `_STUDIES` in a folder, which is entered."""
    for sweep in SWEEPS.iterdir():
        (folder / sweep.name).write_bytes(sweep.read_bytes())
    for code, command in _STUDIES:
        found, out, err = _run(*command)
        assert found == code, f"hpsearch {' '.join(command)} ended with {found} in place of {code}:\n{out}{err}"


def help_texts() -> str:
    """Return what `--help` says of hpsearch and of each of its commands."""
    texts = [("hpsearch --help", _run("--help")[1])]
    commands = re.findall(r"^    ([a-z][a-z-]+)", texts[0][1].partition("\ncommands:\n")[2], re.MULTILINE)
    texts += [(f"hpsearch {name} --help", _run(name, "--help")[1]) for name in commands]
    return "\n".join(f"$ {command}\n{text}" for command, text in texts)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="hpsearch-goldens-") as folder:
        os.chdir(folder)
        try:
            yield Path(folder).resolve()
        finally:
            os.chdir(before)


def _run(*arguments: str) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    width = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = _WIDTH
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(arguments)
            except SystemExit as exit:  # argparse's
                code = exit.code if isinstance(exit.code, int) else 1
    finally:
        if width is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = width
    return code, out.getvalue(), err.getvalue()


_CLOCKED = {"begun", "by", "changed", "code", "command", "created", "process", "size", "source", "time"}
"""Keys whose values depend on the clock and the machine."""

_COMPACT = (",", ":")


def _plain(value: Any, key: str = "", exact: bool = True, timed: bool = True) -> Any:
    """Return a JSON value without what depends on the clock and the machine.

    Args:
        value: As JSON gives it.
        key: Under which it is found.
        exact: Keep all digits of numbers; False: nine, as the last ones of means and quantiles are the CPU's.
        timed: Keep seconds, which were a virtual clock's.
    """
    if key in _CLOCKED and value is not None:
        return f"<{key}>"
    if key.endswith("seconds") and isinstance(value, float):
        return round(value, 3) if timed else f"<{key}>"
    if isinstance(value, dict):
        return {name: _plain(inside, name, exact, timed) for name, inside in value.items()}
    if isinstance(value, list):
        if key == "reports" and not timed:
            return [[row[0], "<seconds>", *row[2:]] for row in value]
        return [_plain(inside, "", exact, timed) for inside in value]
    if isinstance(value, float) and not exact:
        return float(f"{value:.9g}")
    return value


def _without_places(text: str, folder: Path) -> str:
    """Return a text without the paths of this machine and the name of its user."""
    text = text.replace(str(folder), "<folder>").replace(str(ROOT), "<root>")
    return re.sub(r"(pruned by )[^\s\"]+@[^\s\",]+", r"\1<user>", text)


def _journal(study: Path) -> str:
    """Return all rows of a journal; their JSON keeps its keys, order and separators."""
    timed = study.name != "population"
    with contextlib.closing(sqlite3.connect(f"{(study / 'study.db').as_uri()}?mode=ro", uri=True)) as journal:
        versions = [journal.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
        tables = [sql for (sql,) in journal.execute("SELECT sql FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        facts = dict(journal.execute("SELECT key, value FROM study"))
        events = journal.execute("SELECT seq, kind, trial, body, followed FROM events ORDER BY seq").fetchall()
        requests = journal.execute("SELECT seq, verb, details FROM requests ORDER BY seq").fetchall()
    lines = [f"application_id {versions[0]}, user_version {versions[1]}", *(" ".join(sql.split()) for sql in tables)]
    lines += [f"study: {key}" for key in facts if key != "sweep"]
    lines += [f"provenance: {key}" for key in json.loads(facts["provenance"])]
    lines += [f"sweep: {key}: {json.dumps(value)}" for key, value in _plain(json.loads(facts["sweep"])).items()]
    for seq, kind, trial, body, followed in events:
        parsed = json.loads(body)
        assert json.dumps(parsed, separators=_COMPACT) == body
        body = json.dumps(_plain(parsed, timed=timed), separators=_COMPACT)
        lines.append(f"{seq} {kind} {trial} {body} {followed}".rstrip())
    lines += [f"request {seq} {verb} {details}" for seq, verb, details in requests]
    return _without_places("\n".join([*lines, ""]), study.parent)


def _table(text: str, folder: Path, timed: bool = True) -> str:
    """Return a table without what depends on the clock and the machine, in the layout that it has."""
    text = _without_places(text, folder)
    if text[:1] in "[{":
        value = _plain(json.loads(text), exact=False, timed=timed)
        if "\n  " in text:
            return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in value) + "\n]\n"
    names, *rows = csv.reader(io.StringIO(text))
    kept = io.StringIO()
    writer = csv.writer(kept, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(name, cell, timed) for name, cell in zip(names, row, strict=True)] for row in rows)
    return kept.getvalue()


def _cell(column: str, text: str, timed: bool) -> str:
    if not re.fullmatch(r"-?\d+\.\d+(e-?\d+)?", text):
        return f"<{column}>" if column in _CLOCKED and text else text
    return str(_plain(float(text), column, exact=False, timed=timed))


def _printed(name: str, folder: Path) -> str:
    code, out, err = _run(*_TABLES[name])
    assert code == 0, err
    table = _table(out, folder, timed=name in _VIRTUAL)
    if name != "history.txt":
        return table
    # Requests are left in real time, between events in virtual time.
    return "\n".join([*sorted(line.removesuffix(",") for line in table.splitlines()), ""])


_SCHEDULERS = (
    hpsearch.ASHA(9),
    hpsearch.Bands(last_iter=9, bands=2),
    hpsearch.Hyperband(9),
    hpsearch.MedianStopping(9),
    hpsearch.PASHA(9),
    hpsearch.PBT(9),
    hpsearch.SuccessiveHalving(9),
)


def _stored(folder: Path) -> Iterator[str]:
    """Yield what sweeps, designs and saved trials are stored as: names and order."""
    sweep = hpsearch.Sweep(
        name="stored",
        method="random",
        parameters=hpsearch.Space.from_parameters({**_SPACE, **_MORE}, constraints=["uniform < 2.9"]),
        metric=hpsearch.Metric("loss", target=0.1),
        parallel=hpsearch.Parallel("local_sgd", period=4),
        resources=hpsearch.Resources(workers_per_trial=2),
        max_iter=9,
        run_cap=20,
    ).to_json()
    for key, value in sweep.items():
        if key == "parameters":
            yield from (f"parameter: {json.dumps(one)}" for one in value)
        else:
            yield f"{key}: {json.dumps(value)}"
    for scheduler in _SCHEDULERS:
        yield f"early_terminate: {json.dumps(scheduler.to_json())}"
    assert _run("best", "population", "--save", "saved")[0] == 0
    saved = json.loads((folder / "saved" / "trial.json").read_text(encoding="utf-8"))
    yield f"best --save: {json.dumps({**saved, 'study': '<study>'})}"
    yield f"design.json asked: {json.dumps(asdict(DesignRequest('data.csv')))}"
    yield f"design.json trees: {json.dumps(asdict(Trees('random forest', {'random forest': 0.5})))}"
    yield f"report.json: {json.dumps(asdict(DesignReport(*range(len(fields(DesignReport))))))}"
    yield f"report.json score: {json.dumps(asdict(TestScore(0.5, (0.25, 0.75))))}"


def _exported(folder: Path) -> Made:
    """Return the files of `hpsearch export`; of those that aren't text their names alone."""
    for study in ("bands", "goals"):
        assert _run("export", study, "--to", f"{study}-files")[0] == 0
    names = sorted(str(path.relative_to(folder)) for path in folder.glob("*-files/**/*") if path.is_file())
    texts = {name: folder / name for name in names if name.endswith(".csv")}
    return {
        "export.txt": "\n".join([*names, ""]),
        **{f"export-{name.replace('-files/', '-')}": _table(path.read_text(), folder) for name, path in texts.items()},
    }


def _tensorboard(study: Path) -> str:
    """Return the tags of each run that TensorBoard's own reader finds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    lines = []
    for run in sorted({path.parent for path in (study / "tensorboard").rglob("*tfevents*")}):
        found = EventAccumulator(str(run))
        found.Reload()
        tags = [tag for kind in found.Tags().values() if isinstance(kind, list) for tag in kind]
        lines += [f"{study.name}/{run.relative_to(study / 'tensorboard')} {tag}" for tag in sorted(tags)]
    return "\n".join([*lines, ""])


def _page(folder: Path) -> str:
    """Return the page of a study, a line for each element, but for where it was made."""
    assert _run("report", "bands", "--output", "page.html")[0] == 0
    page = (folder / "page.html").read_text(encoding="utf-8")
    before, _, after = page.partition("<caption>Where it came from</caption>")
    assert after, "the page says no longer where the study came from"
    page = before + after.partition("</pre>")[2]
    page = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d [^\s<.]+", "<date>", page).replace("><", ">\n<")
    return page.replace(str(folder), "<folder>")


def _seeds() -> list[str]:
    """Return what each kind of seed is hashed to."""
    known: dict[str, Callable[..., object]] = {
        "trial_seed": seeds.trial_seed,
        "explore_seed": lambda seed, _: seeds.explore_seed(seed),
        "perturb_seed": lambda seed, _: seeds.perturb_seed(seed),
        "stand_in_seed": lambda seed, _: seeds.stand_in_seed(seed),
        "redraw_seed": seeds.redraw_seed,
        "suggestion_seed": seeds.suggestion_seed,
        "suggestion_seed, attempt 1": lambda seed, number: seeds.suggestion_seed(seed, number, 1),
        "draw_bits": lambda seed, number: seeds.draw_bits(seed, number, ("group", "x")),
        "draw_bits, attempt 1": lambda seed, number: seeds.draw_bits(seed, number, ("group", "x"), 1),
        "mutation_bits": lambda seed, _: seeds.mutation_bits(seed, ("group", "x")),
        "crossover_bits": lambda seed, _: seeds.crossover_bits(seed, ("group", "x")),
        "is_near_prior": seeds.is_near_prior,
    }
    return [
        f"{name} of {seed}, {number}: {of(seed, number)}"
        for name, of in known.items()
        for seed, number in ((0, 0), (7, 12))
    ]


def _orders() -> list[str]:
    """Return the order of a data set's rows in some epochs."""
    from hpsearch_trainers.shards import epoch_order

    return [f"rows of 7 in epoch {epoch}: {epoch_order(7, epoch, 12).tolist()}" for epoch in (0, 1)]


_SPACE: dict[str, Any] = {
    "uniform": hpsearch.Uniform(-1.0, 3.0),
    "uniform_step": hpsearch.Uniform(0.0, 1.0, step=0.1),
    "log_uniform": hpsearch.LogUniform(1e-5, 1.0),
    "int_uniform": hpsearch.IntUniform(1, 1000),
    "log_int_uniform": hpsearch.LogIntUniform(1, 1000),
    "log_int_uniform_step": hpsearch.LogIntUniform(16, 512, step=16),
    "normal": hpsearch.Normal(0.0, 0.5),
    "log_normal": hpsearch.LogNormal(-3.0, 1.0),
    "near": hpsearch.LogUniform(1e-5, 1.0, prior=1e-3),
    "near_int": hpsearch.IntUniform(1, 1000, prior=30),
    "categorical": hpsearch.Categorical(["relu", "gelu", None, True, 2.5]),
    "probabilities": hpsearch.Categorical(["relu", "gelu"], [0.9, 0.1]),
    "ordinal": hpsearch.Ordinal([1, 2, 4, 8]),
    "constant": hpsearch.Constant([3, 4]),
    "derived": hpsearch.Derived("int_uniform * 2"),
    "group": {"inside": hpsearch.Uniform(0.0, 1.0)},
    "choice": hpsearch.Choice({"conv": {"kernel": [1, 3, 5]}, "pool": {}}),
    "repeat": hpsearch.Repeat({"width": hpsearch.IntUniform(8, 64)}, 1, 3),
    "chain": hpsearch.Chain({"dense": {"units": [16, 32]}, "skip": {}}, 1, 3),
    "cell": hpsearch.Cell(["none", "skip", "conv"], nodes=3),
}


_MORE: dict[str, Any] = {
    "points": hpsearch.Uniform(0.0, 1.0, points=4),
    "normal_points": hpsearch.Normal(0.0, 1.0, step=0.5, points=3),
    "when": hpsearch.When("uniform > 0", hpsearch.Uniform(0.0, 1.0)),
}
"""What is stored besides."""


def _draws() -> list[str]:
    """Return draws from each distribution and structure."""
    space = hpsearch.Space.from_parameters(_SPACE)
    return [
        f"draw of {seed}, {number}: {name} = {_shown(value)}"
        for seed, number in ((0, 0), (0, 1), (0, 2), (7, 12))
        for name, value in space.draw(seed=seed, number=number).items()
    ]


_NUMBERS: dict[str, Any] = {"lr": hpsearch.LogUniform(1e-4, 1.0), "x": hpsearch.Uniform(0, 1), "name": ["a", "b", "c"]}
_CHOICES: dict[str, Any] = {"depth": hpsearch.IntUniform(1, 4), "name": ["a", "b", "c"]}

_METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "random": (_NUMBERS, {}),
    "grid": (_CHOICES, {}),
    "qmc": (_NUMBERS, {}),
    "tpe": (_NUMBERS, {}),
    "bohb": (_NUMBERS, {"max_iter": 9}),
    "evolution": (_CHOICES, {"search": hpsearch.Search(options={"population": 3, "sample": 2})}),
    "spectral": (_CHOICES, {}),
    "pbt": (_NUMBERS, {"max_iter": 9}),
}
"""Space and settings by method; of those whose first suggestions aren't computed by NumPy or Optuna."""


def _suggestions(folder: Path) -> list[str]:
    """Return what each method suggests, evolution also from what it was told."""
    lines = []
    for method, (parameters, settings) in _METHODS.items():
        sweep = hpsearch.Sweep(
            name=method,
            method=method,
            parameters=hpsearch.Space.from_parameters(parameters),
            metric=hpsearch.Metric("loss"),
            run_cap=20,
            **settings,
        )
        with hpsearch.AskTell(sweep, directory=folder / f"ask-{method}") as asking:
            for _ in range(8 if method == "evolution" else 4):
                trial = asking.ask()
                assert trial is not None
                params = ", ".join(f"{name} = {_shown(value)}" for name, value in trial.params.items())
                lines.append(f"{method} {trial.number}: seed {trial.seed}, {params}")
                if method == "evolution":
                    asking.tell(trial, {"loss": abs(trial.params["depth"] - 2.25)})
    return lines


def _shown(value: object) -> str:
    """Return a value as text; a float with twelve digits, as the last ones of a logarithm are the C library's."""
    return f"{value:.12g}" if isinstance(value, float) and math.isfinite(value) else json.dumps(value)


def write() -> None:
    """Write all goldens. A name that is gone stays in `names.txt` until it is taken out by hand."""
    texts = {**made(), "help.txt": help_texts()}
    former = (FROZEN / NAMES).read_text(encoding="utf-8").splitlines() if (FROZEN / NAMES).exists() else []
    texts[NAMES] = "\n".join([*sorted({*former, *names_of(texts)}), ""])
    FROZEN.mkdir(exist_ok=True)
    for path in FROZEN.iterdir():
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (FROZEN / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
