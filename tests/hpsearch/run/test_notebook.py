"""A search in a real notebook, with a trainable that exists nowhere but in its cell."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.notebook_pictures import PATIENCE

TRAIN = """
import hpsearch

def train(trial):
    total = 0.0 if trial.checkpoint is None else trial.checkpoint["total"]
    for _ in trial.iterations():
        total += trial.params["x"]
        print("this belongs into the trial's own file")
        trial.report({"value": total}, checkpoint=lambda: {"total": total})

def search(directory, **options):
    return hpsearch.search(train, {"x": hpsearch.Uniform(0, 1)}, metric={"name": "value", "goal": "maximize"},
                           early_terminate=hpsearch.Hyperband(max_iter=9, eta=3), directory=directory, **options)
"""


def printed_text(outputs: list[Any]) -> str:
    """Return what a cell printed; the kernel may send one line in several outputs."""
    return "".join(output.get("text", "") for output in outputs)


@pytest.mark.ray
@pytest.mark.exhaustive
def test_a_search_in_a_notebook_runs_on_ray_and_in_the_kernel_itself(tmp_path: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Jupyter's own
        import nbformat
        from nbclient import NotebookClient

        cells = [
            TRAIN,
            'ray_study = search("ray", resources={"workers": 2})',
            'inline_study = search("inline", backend="inline")',
            "assert ray_study.trials_dataframe().equals(inline_study.trials_dataframe())\nray_study.best_trial",
        ]
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        client = NotebookClient(notebook, timeout=PATIENCE, resources={"metadata": {"path": str(tmp_path)}})
        client.execute()
    printed = "".join(printed_text(cell.outputs) for cell in notebook.cells)
    (shown,) = [output for output in notebook.cells[1].outputs if output.output_type == "display_data"]
    assert "17 of 17 trials" in shown["data"]["text/html"]
    assert "this belongs" not in printed
    assert "ipywidgets" not in printed
    (last,) = notebook.cells[-1].outputs
    assert "BestTrial(number=7" in last["data"]["text/plain"]


SHOWN = [
    TRAIN,
    'search("shown", backend="inline", observers=[])',
    """
from IPython import display
shows = display.display
display.display = lambda *_, **__: 1 / 0
study = search("broken", backend="inline", observers=[])
display.display = shows
print("it went on:", study.state, len(study.trials))
""",
    """
import contextlib, io
with contextlib.redirect_stdout(io.StringIO()) as text:
    search("elsewhere", backend="inline", observers=[])
print("lines of its own:", "17 of 17 trials" in text.getvalue())  # the last one, and now and then one before it
""",
    """
import sys, time
from hpsearch.observers.progress import NotebookTable, publisher
published = publisher(sys.stdout)
sent = []
table = NotebookTable(lambda *given: (published(*given), sent.append(given)), sys.stdout)
table.wait("starting Ray")
while not sent:
    time.sleep(0.01)
table.close()
""",
]


@pytest.mark.exhaustive
def test_a_running_search_changes_one_output_and_ends_as_the_study_shows_itself(tmp_path: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Jupyter's own
        import nbformat
        from nbclient import NotebookClient

        updates: list[int] = []

        class Client(NotebookClient):  # type: ignore[misc]
            def process_message(self, message: Any, cell: Any, index: int) -> Any:
                if message["header"]["msg_type"] == "update_display_data":
                    updates.append(index)
                return super().process_message(message, cell, index)

        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in SHOWN])
        Client(notebook, timeout=PATIENCE, resources={"metadata": {"path": str(tmp_path)}}).execute()
    search, broken, elsewhere, waited = (cell.outputs for cell in notebook.cells[1:])
    (table,) = [output for output in search if output.output_type == "display_data"]
    assert "17 of 17 trials (5 complete, 12 stopped)" in table["data"]["text/html"]
    assert "running" not in table["data"]["text/html"]
    assert updates.count(1) >= 1
    assert not [output for output in search if "trials (" in output.get("text", "")]  # no lines beside it
    assert search[-1].output_type == "execute_result"
    assert "<svg" in search[-1]["data"]["text/html"]
    assert "it went on: finished 17" in printed_text(broken)
    assert "lines of its own: True" in printed_text(elsewhere)
    assert [output.output_type for output in elsewhere] == ["stream"] * len(elsewhere)
    assert "starting Ray" in waited[0]["data"]["text/html"]
