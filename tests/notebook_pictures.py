"""Takes pictures of searches in a notebook, in headless Chromium: `python -m tests.notebook_pictures FOLDER`.

A real Jupyter kernel runs two cells: a search of `hpsearch_trainers.digits:mlp`, and the study alone. The first picture
is of what the kernel showed when half of the iterations were done, the second of what it showed in the end. The search
takes some seconds and shows itself twice in each: it is held in its midst until it has been seen there. No notebook
server is needed: the cells and their outputs are put on a page whose style is that of JupyterLab. `--docs` puts the
pictures into docs/images.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import tempfile
import warnings
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from tests.chromium import ENVIRONMENT, browser, small
from tests.held_digits import HOLD, TRAINABLE

CELLS = (
    """import hpsearch

study = hpsearch.search(
    "hpsearch_trainers.digits:mlp",
    parameters={
        "lr": hpsearch.LogUniform(1e-3, 1.0),
        "hidden": [32, 64, 128, 256],
        "dropout": hpsearch.Uniform(0.0, 0.5),
    },
    metric={"name": "accuracy", "goal": "maximize"},
    early_terminate=hpsearch.Hyperband(max_iter=27),
    resources={"workers": 2},
    directory="runs/digits-1",
)""",
    "study",
)
WIDTH = 860
PATIENCE = 800
"""Seconds for a cell; a busy machine takes minutes, and a test that takes long has 900 seconds."""
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ margin: 0; padding: 12px; background: #ffffff; color: #000000de; font: 14px/1.43 system-ui, sans-serif }}
.cell {{ display: grid; grid-template-columns: 3.2rem 1fr; gap: 0.4rem 0.6rem }}
.prompt {{ font: 13px/1.31 monospace; color: #307fc1; text-align: right; padding-top: 0.5rem }}
.prompt.out {{ color: #bf5b3d }}
.input {{ border: 1px solid #cfcfcf; background: #f5f5f5; padding: 0.4rem; font: 13px/1.31 monospace }}
.input pre {{ margin: 0; font: inherit }}
.output {{ padding: 0.3rem 0.4rem; overflow: hidden }}
.output table {{ border-collapse: collapse; font-size: 12px; margin: 0 0 1em }}
.output th, .output td {{ padding: 0.35em 0.5em; text-align: right; vertical-align: middle; line-height: normal }}
.output tbody tr:nth-child(odd) {{ background: #f5f5f5 }}
.output figure {{ margin: 1em 0 }} .output h2 {{ font-size: 1.35em; margin: 0.6em 0 0.3em }}
{code}</style></head><body><div class="cell">
<div class="prompt">[{number}]:</div><div class="input">{cell}</div>
<div class="prompt out">{shown}</div><div class="output">{output}</div>
</div></body></html>
"""


def run(folder: Path) -> dict[str, str]:
    """Run the cells; return what they showed, as HTML: `running` in the midst, `study` in the end.

    Args:
        folder: Where the kernel works, and the studies lie; an absolute path.

    Raises:
        TimeoutError: A cell didn't come to its end; says what it showed last.
    """
    hold = folder / "hold"
    hold.touch()
    shown: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Jupyter's own
        import nbformat
        from nbclient import NotebookClient
        from nbclient.exceptions import CellTimeoutError

        class Client(NotebookClient):  # type: ignore[misc]
            def process_message(self, message: Mapping[str, Any], cell: Any, index: int) -> Any:
                html = message["content"].get("data", {}).get("text/html", "")
                if html:
                    shown["last"] = html
                if _is_in_its_midst(html):
                    shown.setdefault("running", html)
                    hold.unlink(missing_ok=True)
                return super().process_message(message, cell, index)

        cells = [CELLS[0].replace("hpsearch_trainers.digits:mlp", TRAINABLE), CELLS[1]]
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        client = Client(notebook, timeout=PATIENCE, resources={"metadata": {"path": str(folder)}})
        try:
            client.execute(env={**ENVIRONMENT, HOLD: str(hold)})
        except CellTimeoutError as error:
            last = re.sub(r"<[^>]*>", " ", shown.get("last", "nothing"))
            raise TimeoutError(f"a cell takes more than {PATIENCE} s; it showed last: {last}") from error
    (output,) = notebook.cells[-1].outputs
    study = output["data"]["text/html"].replace(str(folder), "/home/ann")  # not the folder of a moment
    return {"running": shown["running"], "study": study}


def _is_in_its_midst(html: str) -> bool:
    """Whether half of the iterations are done, the time left is known, and each trial that runs has reported."""
    found = re.search(r'<progress value="(\d+)" max="(\d+)"', html)
    is_half = found is not None and 2 * int(found[1]) >= int(found[2])
    return is_half and " left</div>" in html and "best accuracy" in html and "<td" in html and "></td>" not in html


def pages(shown: Mapping[str, str]) -> dict[str, str]:
    """Return a page for each picture, with the cell above its output."""
    formatter = HtmlFormatter(nowrap=True)
    made = {}
    for name, number, prompt in [("running", 1, ""), ("study", 2, "[2]:")]:
        cell = f"<pre>{highlight(CELLS[number - 1], PythonLexer(), formatter)}</pre>"
        made[name] = _PAGE.format(
            title=escape(name),
            code=formatter.get_style_defs(".input"),
            number=number,
            cell=cell,
            shown=prompt,
            output=shown[name],
        )
    return made


async def photograph(made: Mapping[str, str], folder: Path) -> None:
    """Take a picture of each page, of all that it shows, as `notebook-NAME.png`.

    Raises:
        ValueError: There is more beside it than is seen.
    """
    async with browser() as page:
        for name, html in made.items():
            path = folder / f"notebook-{name}.html"
            path.write_text(html, encoding="utf-8")
            await page.size(WIDTH, 100)
            await page.open(path.as_uri(), "document.querySelector('.output') !== null", still=0.5)
            needed = await page.value("document.documentElement.scrollWidth")
            if needed > WIDTH:
                raise ValueError(f"{name}: the page is {needed} pixels wide on a screen of {WIDTH}")
            await page.size(WIDTH, await page.value("document.documentElement.scrollHeight"))
            await page.save(folder / f"notebook-{name}.png")


def main() -> None:
    """Take them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--docs", action="store_true", help="put them into docs/images")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    folder = given.folder.absolute()
    with tempfile.TemporaryDirectory(dir=folder) as place:
        shown = run(Path(place))
    asyncio.run(photograph(pages(shown), folder))
    if given.docs:
        small(folder / "notebook-running.png", "notebook.png", share=1.0)
        small(folder / "notebook-study.png", "notebook-study.png", share=1.0)


if __name__ == "__main__":
    main()
