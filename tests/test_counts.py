from __future__ import annotations

from pathlib import Path

from tests.counts import circles, counts, duplicate_classes, modules, one_importer

FILES = {
    "hpsearch/__init__.py": '"""A package."""\n',
    "hpsearch/low.py": '"""Low."""\n\n# A comment.\nclass Plan:\n    size = 1\n    """Of it."""\n',
    "hpsearch/room/api.py": (
        "from hpsearch.low import Plan\nfrom . import other\n\n\nclass Plan:  # again\n    pass\n\n\n"
        'def search(a, *, b=(\n    1,\n)):\n    """Return it.\n\n    At once.\n    """\n    return other, Plan\n'
    ),
    "hpsearch/room/other.py": "def late():\n    from hpsearch.room.api import Plan\n    return Plan\n",
    "tests/test_it.py": "x = 1\n",
    "README.md": "Three plain words\n",
}


def test_a_tree_is_counted_as_it_is(tmp_path):
    for name, text in FILES.items():
        path = Path(tmp_path, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    known = modules(tmp_path)
    assert {one.name: one.code for one in known} == {
        "hpsearch": 0,
        "hpsearch.low": 2,
        "hpsearch.room.api": 8,
        "hpsearch.room.other": 3,
    }
    assert duplicate_classes(known) == {"Plan": ["hpsearch.low", "hpsearch.room.api"]}
    assert one_importer(known) == {
        "hpsearch.low": "hpsearch.room.api",
        "hpsearch.room.api": "hpsearch.room.other",
        "hpsearch.room.other": "hpsearch.room.api",
    }
    assert circles(known) == [["hpsearch.room.api", "hpsearch.room.other"]]
    assert [*counts(tmp_path)] == [
        "package hpsearch: 13 lines of code in 4 files",
        "room hpsearch: 0 lines of code in 1 files",
        "room hpsearch (root): 2 lines of code in 1 files",
        "room hpsearch.room: 11 lines of code in 2 files",
        "tests: 1 lines of code in 1 files",
        "openings of function docstrings: Return 1",
        "public class names more than once in a package: 1: Plan",
        "files under 100 lines with one importer: 3",
        "circle of 2 files: hpsearch.room.api, hpsearch.room.other",
        "words of README: 3",
        "words of docs: 0",
        "parameters of search(): 2",
    ]
