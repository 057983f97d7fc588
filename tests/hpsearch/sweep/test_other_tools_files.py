"""Files of other tools, as the docs show them, are refused with the place of the same example in our keys."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hpsearch.errors import SweepError
from hpsearch.sweep.file import load_sweep

PAGE = Path(__file__).parents[3] / "docs" / "coming-from.md"
EXAMPLES = dict(re.findall(r"^### (\w+)\n\n```text\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("tool", ["Katib", "NNI", "Determined", "Hydra"])
def test_the_message_names_the_tool_and_its_example(tool: str, tmp_path: Path) -> None:
    path = tmp_path / "theirs.yaml"
    path.write_text(EXAMPLES[tool])
    with pytest.raises(SweepError) as raised:
        load_sweep(path)
    assert str(raised.value) == (
        f"{path}: must be a sweep file, but is one for {tool}: docs/coming-from.md#{tool.lower()} has an example in "
        "its keys and in those of a sweep file"
    )


def test_a_search_space_of_nni_is_known_too(tmp_path: Path) -> None:
    path = tmp_path / "search_space.json"
    path.write_text(json.dumps({"lr": {"_type": "loguniform", "_value": [0.001, 0.1]}}))
    with pytest.raises(SweepError, match=r"is one for NNI: docs/coming-from.md#nni"):
        load_sweep(path)


@pytest.mark.parametrize("text", ["searcher: {name: x}", "kind: Experiment", "defaults: {lr: 1}", "lr: {min: 1}"])
def test_another_file_is_read_as_a_sweep_with_mistakes(text: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(SweepError, match=r"sweep.yaml:1: parameters: is required"):
        load_sweep(path)
