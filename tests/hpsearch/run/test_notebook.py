"""A search in a real notebook, with a trainable that exists nowhere but in its cell."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

TRAIN = """
import hpsearch

def train(trial):
    total = 0.0 if trial.checkpoint is None else trial.checkpoint["total"]
    for _ in trial.iterations():
        total += trial.params["x"]
        print("this belongs into the trial's own file")
        trial.report({"value": total}, checkpoint=lambda: {"total": total})

def search(directory, **options):
    return hpsearch.search(train, parameters={"x": hpsearch.Uniform(0, 1)}, metric="value", goal="maximize",
                           early_terminate=hpsearch.Hyperband(max_iter=9, eta=3), directory=directory, **options)
"""


@pytest.mark.ray
@pytest.mark.exhaustive
def test_a_search_in_a_notebook_runs_on_ray_and_in_the_kernel_itself(tmp_path: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Jupyter's own
        import nbformat
        from nbclient import NotebookClient

        cells = [
            TRAIN,
            'ray_study = search("ray", workers=2)',
            'inline_study = search("inline", backend="inline")',
            "assert ray_study.trials_dataframe().equals(inline_study.trials_dataframe())\nray_study.best_trial",
        ]
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
        client.execute()
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.outputs)
    assert "17 of 17 trials" in printed
    assert "this belongs" not in printed
    (last,) = notebook.cells[-1].outputs
    assert "BestTrial(number=7" in last["data"]["text/plain"]
