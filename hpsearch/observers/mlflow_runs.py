"""Logs the sweep to MLflow: an experiment for the study, and a run for each ended trial."""

from __future__ import annotations

import itertools
import logging
import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hpsearch.observers.base import Observed
from hpsearch.observers.trial_log import EndedTrial, TrialLog, facts_of, key_of
from hpsearch.tables.formats import csv_field
from hpsearch.trial import TrialState, Value

if TYPE_CHECKING:
    from mlflow import MlflowClient

T = TypeVar("T")

_MOST_METRICS = 1000
_MOST_PARAMS = 100
"""Largest number of params in one call, a limit of MLflow's servers."""

_LONGEST_NAME = 250
_LONGEST_PARAM = 6000
_LONGEST_TAG = 5000

_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",  # else a server that is down blocks for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""Environment variables that are set unless the user has set them."""

_STUDY = "hpsearch.study"
_TRIAL = "hpsearch.trial"
_DIGEST = "hpsearch.digest"
"""Tags that identify a trial's run."""


class MLflowObserver(TrialLog):
    """Writes ended trials to `MLFLOW_TRACKING_URI`, by default to a database `mlflow.db` in the study's directory.

    The experiment has the name of the study's directory. A run is complete once it has ended. Incomplete runs of a
    killed process are deleted. Runs of trials that continued after their end are replaced.

    Args:
        observed: The study.
    """

    name = "mlflow"

    def __init__(self, observed: Observed) -> None:
        super().__init__(observed)
        for name, value in _SETTINGS.items():  # here, before trials run: changes that trials make are undone
            os.environ.setdefault(name, value)
        self._directory = observed.directory.absolute()
        self._key = key_of(observed)
        self._client: MlflowClient | None = None
        self._experiment = ""
        self._runs: dict[int, list[str]] = {}
        """Ids of the stored runs of each trial, complete or not."""

    def find(self) -> Mapping[int, str]:
        """Open the store, and return the digests of the study's complete trials."""
        client = self._open()
        digests: dict[int, str] = {}
        token = None
        while True:
            page = client.search_runs(
                [self._experiment], f"tags.`{_STUDY}` = '{self._key}'", max_results=1000, page_token=token
            )
            for run in page:
                number = int(run.data.tags[_TRIAL])
                self._runs.setdefault(number, []).append(run.info.run_id)
                if run.info.status in ("FINISHED", "FAILED"):
                    digests[number] = run.data.tags.get(_DIGEST, "")
            if not (token := page.token):
                return {number: digest for number, digest in digests.items() if len(self._runs[number]) == 1}

    def write(self, trial: EndedTrial) -> None:
        """Write a trial's run. The last call ends the run, and so marks it as complete."""
        from mlflow.entities import Metric, Param

        client, row = self._client, trial.row
        assert client is not None, "find comes first"
        for former in self._runs.pop(row.number, []):
            client.delete_run(former)
        began = round(1000 * trial.began)
        tags = {_STUDY: self._key, _TRIAL: str(row.number), _DIGEST: trial.digest, **self._tags(trial)}
        run = client.create_run(self._experiment, began, tags, run_name=f"trial-{row.number:05d}").info.run_id
        self._runs[row.number] = [run]
        named = fit_names(row.params)
        params = [Param(named[name], _text(value)) for name, value in row.params.items()]
        named = fit_names(dict.fromkeys(name for reported in trial.reported for name in reported.report.metrics))
        metrics = [
            Metric(named[name], float(value), round(1000 * reported.time), reported.report.iteration)
            for reported in trial.reported
            for name, value in reported.report.metrics.items()
        ]
        for batch in _parts(params, _MOST_PARAMS):
            client.log_batch(run, params=batch)
        for some in _parts(metrics, _MOST_METRICS):
            client.log_batch(run, metrics=some)
        status = "FAILED" if row.state is TrialState.FAILED else "FINISHED"
        client.set_terminated(run, status, round(1000 * max(trial.ended, trial.began)))

    def _open(self) -> MlflowClient:
        from mlflow import MlflowClient

        for noisy in ("mlflow.store.db.utils", "mlflow.store.db.base_sql_model", "alembic"):
            logging.getLogger(noisy).setLevel(logging.WARNING)  # they log each step of creating a database
        address = os.environ.get("MLFLOW_TRACKING_URI")
        database = self._directory / "mlflow.db"
        if not address and not database.exists():
            _create_database(database)
        self._client = client = MlflowClient(address or f"sqlite:///{database}")
        name = self._directory.name
        # There are no artifacts, but MLflow would set their location to the current folder.
        artifacts = None if address else (self._directory / "mlartifacts").as_uri()
        known = client.get_experiment_by_name(name)
        self._experiment = client.create_experiment(name, artifacts) if known is None else known.experiment_id
        return client

    def _tags(self, trial: EndedTrial) -> dict[str, str]:
        tags = {f"hpsearch.{name}": str(value)[:_LONGEST_TAG] for name, value in facts_of(trial).items()}
        if labels := self.labels():
            tags["hpsearch.tags"] = ", ".join(labels)
        if (failure := trial.row.failure) is not None:
            traceback = failure.traceback or failure.message
            tags["mlflow.note.content"] = f"```\n{traceback[-_LONGEST_TAG + 10 :]}\n```"
        return tags


def _create_database(database: Path) -> None:
    """Create MLflow's database under a temporary name and rename it, as MLflow can't use an incomplete database."""
    from mlflow import MlflowClient

    partial = database.with_name(f".{database.name}.partial")
    # A process that was killed here leaves a partial database, with SQLite's journal files.
    for leftover in database.parent.glob(f"{partial.name}*"):
        leftover.unlink()
    MlflowClient(f"sqlite:///{partial}")
    partial.replace(database)


def fit_names(names: Iterable[str]) -> dict[str, str]:
    """Return distinct names that MLflow accepts: letters, digits, `_ - . / ` and spaces, without path traversal.

    A name that MLflow accepts stays unchanged and doesn't depend on the other names.
    """
    fits = {name: _fit(name) for name in names}
    fitted: dict[str, str] = {}
    used: set[str] = set()
    for name, fit in sorted(fits.items(), key=lambda item: item[0] != item[1]):
        candidates = itertools.chain([fit], (f"{fit[: _LONGEST_NAME - 8]}_{n}" for n in itertools.count(2)))
        fitted[name] = next(candidate for candidate in candidates if candidate not in used)
        used.add(fitted[name])
    return fitted


def _fit(name: str) -> str:
    fit = re.sub(r"[^\w./ -]", "_", name)[:_LONGEST_NAME] or "_"
    if posixpath.normpath(fit) != fit or fit.startswith(("/", "..")) or fit == ".":
        fit = fit.replace("/", "_").replace(".", "_")
    return fit


def _text(value: Value) -> str:
    return ("None" if value is None else csv_field(value))[:_LONGEST_PARAM]


def _parts(items: Sequence[T], most: int) -> Iterable[Sequence[Any]]:
    return (items[index : index + most] for index in range(0, len(items), most))
