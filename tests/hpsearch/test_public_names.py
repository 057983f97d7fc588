"""What `import hpsearch` gives, and what it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hpsearch


@pytest.mark.parametrize("name", hpsearch.__all__)
def test_each_public_name_is_there(name):
    namespace: dict[str, object] = {}
    exec(f"from hpsearch import {name}", namespace)
    assert namespace[name] is getattr(hpsearch, name)
    assert name in dir(hpsearch)


def test_types_are_checked_against_the_modules_that_are_imported():
    tree = ast.parse(Path(hpsearch.__file__).read_text(encoding="utf-8"))
    (block,) = (part for part in tree.body if isinstance(part, ast.If))
    checked = {name.name: part.module for part in block.body if isinstance(part, ast.ImportFrom) for name in part.names}
    assert checked == hpsearch._MODULES
    assert sorted(checked) == sorted(hpsearch.__all__)


def test_a_name_that_is_none_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'hpsearch' has no attribute 'Hyperand'"):
        hpsearch.Hyperand  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Hyperand'"):
        exec("from hpsearch import Hyperand")


def test_importing_it_imports_little():
    code = "import sys, hpsearch; print(sorted(name for name in sys.modules if name.startswith('hpsearch.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
