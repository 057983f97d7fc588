"""What `import hpsearch` and `import hpsearch_comm` give, and what they cost."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import hpsearch
import hpsearch_comm
import hpsearch_trainers

PACKAGES = [hpsearch, hpsearch_comm]


@pytest.fixture(params=PACKAGES, ids=lambda package: package.__name__)
def package(request: pytest.FixtureRequest) -> ModuleType:
    made: ModuleType = request.param
    return made


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package in PACKAGES for name in package.__all__], indirect=["package"]
)
def test_each_public_name_is_there(package, name):
    namespace: dict[str, object] = {}
    exec(f"from {package.__name__} import {name}", namespace)
    assert namespace[name] is getattr(package, name)
    assert name in dir(package)


def test_types_are_checked_against_the_modules_that_are_imported(package):
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    (block,) = (part for part in tree.body if isinstance(part, ast.If) and isinstance(part.test, ast.Name))
    checked = {name.name: part.module for part in block.body if isinstance(part, ast.ImportFrom) for name in part.names}
    assert checked == package._MODULES
    assert sorted(checked) == sorted(package.__all__)


def test_type_checkers_see_the_types_and_take_no_name_that_is_none(package):
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    assert "__getattr__" not in [part.name for part in tree.body if isinstance(part, ast.FunctionDef)]


@pytest.mark.parametrize("package", [*PACKAGES, hpsearch_trainers], indirect=True)
def test_a_package_says_that_it_is_typed(package):
    assert Path(*package.__path__, "py.typed").is_file()


def test_a_name_that_is_none_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'Hyperand'"):
        package.Hyperand  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Hyperand'"):
        exec(f"from {package.__name__} import Hyperand")


def test_importing_it_imports_little_and_no_torch(package):
    name = package.__name__
    code = (
        f"import sys, {name}; print([one for one in sys.modules if one.startswith('{name}.')], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] False\n"


def test_no_init_stands_directly_inside_comm():
    comm = Path(*hpsearch_comm.__path__).parent
    assert not (comm / "__init__.py").exists()
