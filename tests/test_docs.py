"""What README and docs/ say is run: their snippets, sweep files, commands and links."""

from __future__ import annotations

import ast
import functools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import hpsearch
from docs.build_site import site_paths, with_site_links
from hpsearch.benchmark.suite import load_suite, load_suites
from hpsearch.cli.parser import build_parser
from hpsearch.schedulers.brackets import Bracket, hyperband_brackets, iterations
from hpsearch.simulation.table_file import read_table
from hpsearch.sweep.file import load_sweep
from hpsearch.sweep.wandb import HINTS, REFUSED_DISTRIBUTIONS
from hpsearch_trainers.architectures import OPERATIONS
from tests.hpsearch.support.command_line import call, environment

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
RESULTS = sorted(ROOT.glob("tests/benchmarks/results/*.md"))

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# (\S+\.(?:py|yaml|sh))\n")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
_PATH = re.compile(r"`((?:hpsearch|comm|trainers|tests|configs|docs)/[\w./]+\.\w+)`")

_SWEEP = {
    "trainable": "package.module:name",
    "metric": {"name": "loss"},
    "method": "random",
    "run_cap": 20,
    "parameters": {"x": {"value": 1}},
}
"""What a fragment of a sweep file is put into."""


RUN = frozenset({"trainable", "program", "command"})
"""Keys that say what runs a trial; a sweep without any is asked and told."""


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: Path
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The name of the file that it is: its first line says so."""
        found = _FILE_NAME.match(self.text)
        return None if found is None else found[1]


def blocks_of(page: Path) -> list[Block]:
    return [Block(page, language, text) for language, text in _FENCE.findall(page.read_text())]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def name_of(value: object) -> str:
    if isinstance(value, Block):
        return f"{value.page.name}:{value.page.read_text().partition(value.text)[0].count(chr(10)) + 1}"
    return value.name if isinstance(value, Path) else str(value)


def of(language: str) -> list[Block]:
    found = [block for block in BLOCKS if block.language == language]
    assert found
    return found


def write_files(page: Path, folder: Path) -> None:
    for block in blocks_of(page):
        if block.file is not None:
            (folder / block.file).write_text(block.text)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the test's own, entered, whose modules and operations are forgotten in the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before, operations = set(sys.modules), dict(OPERATIONS)
    yield tmp_path
    OPERATIONS.clear()
    OPERATIONS.update(operations)
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.mark.some_cases(6)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(b.language == "python" for b in blocks_of(page))], ids=name_of
)
def test_python_runs_in_the_order_of_the_page(page, here, monkeypatch):
    """With the inline backend where it searches."""
    write_files(page, here)
    monkeypatch.setattr(hpsearch, "search", functools.partial(hpsearch.search, backend="inline", progress=False))
    names = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.language == "python" and block.file is None:
            exec(compile(block.text, name_of(block), "exec"), names)


@pytest.mark.parametrize("block", of("python"), ids=name_of)
def test_python_imports_the_modules_that_it_names(block):
    """It is pasted alone; what it goes on with from a block before it are objects."""
    tree = ast.parse(block.text)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {(name.asname or name.name).partition(".")[0] for node in imports for name in node.names}
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert named & {"hpsearch", "torch"} <= imported


@pytest.mark.parametrize("block", of("yaml"), ids=name_of)
def test_yaml_loads_as_a_sweep_a_table_or_a_suite(block, here):
    write_files(block.page, here)  # a sweep may name a function of its page
    path = here / "sweep.yaml"
    given = yaml.safe_load(block.text)
    if "families" in given:
        families = ROOT / "configs" / "benchmarks" / "families.yaml"
        assert given == yaml.safe_load(families.read_text())
        assert len(load_suites(families)) == len(given["families"])
        return
    if "table" in given or "tasks" in given:
        path.write_text(block.text)
        if "tasks" in given:
            load_suite(path)
        else:
            with pytest.raises(hpsearch.SweepError, match=r"table: must be a file, but .* isn't there"):
                read_table(str(path))
        return
    runs = "metric" not in given or not RUN.isdisjoint(given)
    around = {} if "metric" in given else {key: value for key, value in _SWEEP.items() if key not in given}
    path.write_text(block.text + (yaml.safe_dump(around) if around else ""))
    load_sweep(path, runs=runs)
    if "points:" in block.text:
        load_sweep(path, ["method=grid"])


WHOLE = [block for block in of("yaml") if block.file is not None and not RUN.isdisjoint(yaml.safe_load(block.text))]


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("block", WHOLE, ids=name_of)
def test_a_sweep_whose_files_are_all_on_the_page_runs(block, here, capsys):
    write_files(block.page, here)
    # One trial shows that it runs, or a bracket that promotes once: a reader has more time than a test.
    shorter = ["--set", "run_cap=1"]
    if "early_terminate" in block.text:
        shorter = ["--set", "early_terminate.max_iter=3", *(["--set", "run_cap=6"] if "run_cap" in block.text else [])]
    answer = call(capsys, "run", block.file, "--backend", "inline", "--dir", "study", *shorter)
    assert (answer.code, answer.err) == (0, "")
    study = hpsearch.load(here / "study")
    assert study.state == "finished"
    assert {str(trial.state) for trial in study.trials} <= {"complete", "stopped"}


@pytest.mark.exhaustive
def test_the_shell_loop_that_asks_and_tells_runs_to_its_end(here):
    write_files(ROOT / "docs/ask-tell.md", here)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    answer = subprocess.run(["sh", "lab.sh"], env=environment(PATH=path), capture_output=True, text=True)
    assert answer.returncode == 0, answer
    study = hpsearch.load("runs/lab")
    assert (study.state, [trial.iterations for trial in study.trials].count(9)) == ("finished", 1)
    assert len(study.trials) == 3


def commands() -> list[tuple[str, str]]:
    """Return (page:line, command line) of every command in a block, or in the text between backquotes."""
    found = []
    for block in of("sh"):
        lines = [] if block.file is not None else block.text.splitlines()
        found += [(name_of(block), line) for line in lines if line.strip()]
    for page in PAGES:
        prose = _FENCE.sub("", page.read_text())
        found += [(page.name, line) for line in re.findall(r"`(hpsearch \w[^`]*|make \w+)`", prose)]
    return found


@pytest.mark.parametrize(("place", "line"), commands())
def test_a_command_can_be_given(place, line):
    words = shlex.split(line.replace("\\|", "|"), comments=True)
    if words[0] == "hpsearch":
        if len(words) > 2:
            build_parser().parse_args(words[1:])
        else:  # only named
            with pytest.raises(SystemExit, match="0"):
                build_parser().parse_args([words[1], "--help"])
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    else:
        assert words[0] in ("python3", "git") or words[0].startswith(".venv/bin/"), place


def test_scripts_and_manifests_call_commands_that_can_be_given():
    """Scripts of Slurm are in blocks of bash, and manifests of Kubernetes in blocks of yml."""
    lines = [line for block in [*of("bash"), *of("yml")] for line in block.text.splitlines()]
    for block in of("yml"):
        for manifest in yaml.safe_load_all(block.text):
            pod = manifest["spec"].get("template", {}).get("spec", {})
            lines += [shlex.join(container["command"]) for container in pod.get("containers", [])]
    calls = [match[1] for line in lines if (match := re.search(r"\bhpsearch ((?:run|resume|agent) [^()&]*)", line))]
    calls += [match[1] for line in lines if (match := re.search(r'run="(run [^"]*)"', line))]
    assert {line.split()[0] for line in calls} == {"run", "resume", "agent"}
    for line in calls:
        build_parser().parse_args(shlex.split(line, comments=True))


def test_the_page_of_commands_has_every_command_and_option():
    page = (ROOT / "docs/commands.md").read_text()
    subparsers = next(action for action in build_parser()._actions if action.choices)
    assert subparsers.choices is not None
    for name, parser in dict(subparsers.choices).items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `hpsearch {name}"))
        if name in ("run", "trials", "best", "export", "tensorboard"):
            options = {option for action in parser._actions for option in action.option_strings} - {"-h", "--help"}
            assert {option for option in options if option not in row} == set(), name


def test_the_page_of_commands_has_the_exit_codes_of_the_help():
    documented = re.findall(r"^\| (\d+) \| (.*) \|$", (ROOT / "docs/commands.md").read_text(), re.MULTILINE)
    listed = re.findall(r"^  (\d+) +(.*)$", build_parser().epilog or "", re.MULTILINE)
    assert [(code, text.replace("`", "")) for code, text in documented] == listed


def anchors(page: Path) -> set[str]:
    """Return what links to the headings of a page name, as GitHub makes it."""
    found: dict[str, int] = {}
    for heading in _HEADING.findall(_FENCE.sub("", page.read_text())):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found[name] = found.get(name, -1) + 1
    return {f"{name}-{number}" if number else name for name, last in found.items() for number in range(last + 1)}


@pytest.mark.parametrize("page", [*PAGES, *RESULTS], ids=name_of)
def test_links_and_paths_lead_somewhere(page):
    text = _FENCE.sub("", page.read_text())
    for target, fragment in _LINK.findall(text):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        assert not fragment or fragment in anchors(linked), f"{target}#{fragment}"
    for target in _PATH.findall(text):
        assert (ROOT / target).exists(), target


def test_docstrings_link_to_pages_as_from_the_folder_of_the_docs():
    for root in ("hpsearch", "comm", "trainers"):
        for path in sorted((ROOT / root).rglob("*.py")):
            for target, fragment in re.findall(r"\]\(([\w-]+\.md)(?:#([\w-]+))?\)", path.read_text()):
                page = ROOT / "docs" / target
                assert page.exists(), (path, target)
                assert not fragment or fragment in anchors(page), (path, target, fragment)


def test_each_page_is_in_the_navigation_of_the_site():
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r"[\w/-]+\.md", navigation)
    assert sorted(named) == sorted(site_paths().values())


def test_links_of_the_site_are_relative_to_where_its_pages_are():
    paths = {"README.md": "index.md", "docs/running.md": "running.md", "tests/results/lanes.md": "measured/lanes.md"}
    text = "[a](docs/running.md#x) ![b](docs/images/b.svg) [c](https://a.org) [d](#d)\n```\n[e](docs/running.md)\n```\n"
    kept = "[c](https://a.org) [d](#d)\n```\n[e](docs/running.md)\n```\n"
    assert with_site_links(text, "README.md", paths) == f"[a](running.md#x) ![b](images/b.svg) {kept}"
    assert with_site_links("[a](../README.md)", "docs/running.md", paths) == "[a](index.md)"
    assert with_site_links("[a](../../docs/running.md)", "tests/results/lanes.md", paths) == "[a](../running.md)"


def test_the_page_of_the_sweep_file_tells_every_key():
    text = "".join((ROOT / page).read_text() for page in ("docs/sweep-file.md", "docs/from-wandb.md"))

    from hpsearch.sweep import distributions as _distributions
    from hpsearch.sweep import file as sweep_file

    keys = [
        *sweep_file._READERS,
        "parameters",
        "constraints",
        *_distributions._PARAMETER_KEYS,
        *REFUSED_DISTRIBUTIONS,
        *(key for section in ("metric", "early_terminate") for key in HINTS[section] if key != "impute_while_running"),
    ]
    assert [key for key in keys if not re.search(rf"[`.]{key}\b", text)] == []
    forms = [name for name in _distributions._FORMS if name != "categorical_w_probabilities"]
    assert [name for name in forms if f"`{name}`" not in text] == []


@pytest.mark.parametrize(("max_iter", "variant"), [(81, "paper"), (27, "paper"), (81, "table")])
def test_the_tables_of_brackets_are_those_of_the_code(max_iter, variant):
    brackets = hyperband_brackets(max_iter, variant=variant)
    rows = "\n".join(row_of(place, bracket, len(brackets)) for place, bracket in enumerate(brackets, 1))
    trials = sum(bracket.trials for bracket in brackets)
    segments = sum(rung.size for bracket in brackets for rung in bracket.rungs)
    resumed = sum(map(iterations, brackets))
    from_zero = sum(rung.size * rung.until for bracket in brackets for rung in bracket.rungs)
    text = " ".join((ROOT / "docs/hyperband.md").read_text().split())
    told = text.partition(" ".join(rows.split()))[2]
    assert told, "the table isn't there"
    sums = told.split(". ")[0]
    for number in (f"{trials} trials", f"{segments} trial-rungs", f"{resumed:,} ", f"{from_zero:,} "):
        assert number in sums, (number, sums)


def row_of(place: int, bracket: Bracket, width: int) -> str:
    cells = [f"{rung.size} to {rung.until}" for rung in bracket.rungs]
    return " ".join(["|", str(place), "|", *(f"{cell} |" for cell in cells), *["|"] * (width - len(cells))])


def test_contributing_is_short():
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) < 90


def test_the_changelog_has_unreleased_on_top():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
