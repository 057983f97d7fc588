"""What W&B's sweep keys mean here, for errors that help a W&B sweep file over.

Keys that both know mean the same and aren't listed.
"""

from __future__ import annotations

from collections.abc import Mapping

from hpsearch.settings import settings_fields
from hpsearch.sweep.parts import Limits, Resources

__all__ = ["HINTS", "IGNORED", "REFUSED_DISTRIBUTIONS"]

IGNORED = ("description", "project", "entity")
"""Top-level keys that are accepted and have no effect."""

HINTS: Mapping[str, Mapping[str, str]] = {
    "": {
        "apiVersion": "W&B's version has no meaning here: remove the line",
        "kind": "every file is a sweep here: remove the line",
        "job": "hpsearch launches no W&B jobs: name the script as program, or a function as trainable",
        "image_uri": "hpsearch launches no images: name the script as program, or a function as trainable",
        "controller": "hpsearch is the controller: remove it",
        "scheduler": "early_terminate says how far trials go: remove it",
        "metrics": "write metric, with its name and goal, or a list of several",
        "s": "it stands under early_terminate, and is called brackets here",
        **dict.fromkeys(
            ("type", "min_iter", "eta", "brackets", "variant", "rungs", "every", "min_trials"),
            "it stands under early_terminate",
        ),
        **dict.fromkeys(settings_fields(Resources), "it stands under resources"),
        **dict.fromkeys(("warmup_epochs", "max_global_batch"), "it stands under scaling"),
        **dict.fromkeys(settings_fields(Limits), "it stands under limits"),
        **dict.fromkeys(("goal", "target"), "it stands under metric"),
    },
    "metric": {
        "impute": "a failed trial always ranks last: remove the line",
        "impute_while_running": "a trial is ranked when its rung is done: remove the line",
    },
    "early_terminate": {
        "s": "the rungs follow from min_iter, max_iter and eta; how many brackets run is called brackets: remove s",
        "strict": "rungs always keep the best 1/eta, which is W&B's strict: remove the line",
    },
}
"""By section, then key: what to do about a key of W&B's that we don't have."""

REFUSED_DISTRIBUTIONS: Mapping[str, str] = {
    "beta": "take uniform or normal, or list values with probabilities",
    "q_beta": "take q_uniform or q_normal, or list values with probabilities",
}
"""W&B's distributions that we don't have, and what to take."""
