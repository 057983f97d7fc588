"""Records `digits.parquet`: 200 trainings of the MLP on digits, 27 epochs each, with what each epoch took.

`python configs/tables/record_digits.py` takes some minutes; it shows how a table of one's own is made.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import hpsearch
from hpsearch_trainers.digits import mlp

HERE = Path(__file__).parent


class Timed(mlp):
    """The MLP, which also reports what each epoch took: seconds of this process, as the machine may do other things."""

    def step(self) -> dict[str, Any]:
        """Run an epoch."""
        began = time.process_time()
        return {**super().step(), "seconds": time.process_time() - began}


def main() -> None:
    """Train, and write the table."""
    torch.set_num_threads(1)
    sweep = hpsearch.load_sweep(
        HERE.parent / "digits.yaml", ["early_terminate=null", "max_iter=27", "run_cap=200", "seed=7"]
    )
    study = hpsearch.search(Timed, sweep, directory=HERE / "digits", backend="inline", observers=[])
    accuracy, seconds = study.curves("accuracy"), study.curves("seconds")
    lines = pd.DataFrame(
        {**row.params, "epoch": epoch, "accuracy": value, "seconds": round(took, 5)}
        for row in study.trials
        for (epoch, value), (_, took) in zip(accuracy[row.number], seconds[row.number], strict=True)
    )
    lines.to_parquet(HERE / "digits.parquet", index=False)


if __name__ == "__main__":
    main()
