"""What `import hpsearch_comm` gives, and what it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hpsearch_comm


@pytest.mark.parametrize("name", hpsearch_comm.__all__)
def test_each_public_name_is_there(name):
    namespace: dict[str, object] = {}
    exec(f"from hpsearch_comm import {name}", namespace)
    assert namespace[name] is getattr(hpsearch_comm, name)
    assert name in dir(hpsearch_comm)


def test_types_are_checked_against_the_modules_that_are_imported():
    tree = ast.parse(Path(hpsearch_comm.__file__).read_text(encoding="utf-8"))
    (block,) = (part for part in tree.body if isinstance(part, ast.If))
    checked = {name.name: part.module for part in block.body if isinstance(part, ast.ImportFrom) for name in part.names}
    assert checked == hpsearch_comm._MODULES
    assert sorted(checked) == sorted(hpsearch_comm.__all__)


def test_a_name_that_is_none_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'hpsearch_comm' has no attribute 'Gruop'"):
        hpsearch_comm.Gruop  # noqa: B018


def test_importing_it_does_without_torch():
    code = "import sys, hpsearch_comm; print(sorted(name for name in sys.modules if name.startswith('hpsearch_comm.')))"
    code += "; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\nFalse\n"
