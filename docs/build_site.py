"""`python docs/build_site.py` builds the site in build/site, and fails where a link leads nowhere.

The site has the pages of docs/, and those of the repository that they link to. In each, links are made to lead there.
An item of a list that is a link to a file of an example, and nothing else, becomes that file.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"  # what mkdocs.yml names
RESULTS = "tests/benchmarks/results"

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^- \[(\S+)\]\((\S+\.(py|sh|yaml))\)$\n", re.MULTILINE)
_LINK = re.compile(r"(\]\()(?!https?:|#)([^)#\s]+)")


def site_paths() -> dict[str, str]:
    """Return the path in the site of each page, by its path in the repository."""
    outside = {
        "README.md": "index.md",
        "CONTRIBUTING.md": "contributing.md",
        "CHANGELOG.md": "changelog.md",
        "SECURITY.md": "security.md",
    }
    pages = sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))
    results = sorted((ROOT / RESULTS).glob("*.md"))
    return (
        {f"docs/{path}": path.replace("README", "index") for path in pages}
        | outside
        | {f"{RESULTS}/{path.name}": f"measured/{path.name.replace('README', 'index')}" for path in results}
    )


def with_site_links(text: str, source: str, paths: dict[str, str]) -> str:
    """Return a page with its relative links as they are in the site.

    Args:
        text: The page.
        source: Its path in the repository.
        paths: `site_paths()`.
    """

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        there = paths.get(target, target.removeprefix("docs/"))
        return match[1] + posixpath.relpath(there, posixpath.dirname(paths[source]) or ".")

    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(link, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(link, text[end:])])


def with_files(text: str, folder: Path) -> str:
    """Return a page of a folder with the files that its items link to."""

    def shown(match: re.Match[str]) -> str:
        language = {"py": "python", "sh": "bash"}.get(match[3], match[3])
        return f'```{language} title="{match[1]}"\n{(folder / match[2]).read_text(encoding="utf-8")}```\n\n'

    return _FILE.sub(shown, text)


def main() -> int:
    """Write the pages, and build the site of them; return the exit code."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES, ignore=shutil.ignore_patterns("*.md", "*.py", "gallery", "__pycache__"))
    paths = site_paths()
    for source, path in paths.items():
        page = PAGES / path
        page.parent.mkdir(exist_ok=True)
        text = with_files((ROOT / source).read_text(encoding="utf-8"), (ROOT / source).parent)
        page.write_text(with_site_links(text, source, paths), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
