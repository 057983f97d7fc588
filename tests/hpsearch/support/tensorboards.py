"""What TensorBoard's own readers find below a folder."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tensorboard import context
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, get_experiment, list_session_groups

_STATUSES = [getattr(api_pb2, f"STATUS_{name}") for name in ("UNKNOWN", "SUCCESS", "FAILURE", "RUNNING")]


class Board:
    """A folder as TensorBoard's pages see it now."""

    def __init__(self, folder: Path) -> None:
        self._read = plugin_event_multiplexer.EventMultiplexer()
        self._read.AddRunsFromDirectory(str(folder))
        self._read.Reload()
        provider = data_provider.MultiplexerDataProvider(self._read, str(folder))
        flags = SimpleNamespace()
        self._context = base_plugin.TBContext(data_provider=provider, flags=flags, plugin_name_to_instance={})

    @property
    def runs(self) -> list[str]:
        """Their names, sorted."""
        return sorted(self._read.Runs())

    def tags(self, run: str) -> set[str]:
        """Name the scalars of a run."""
        tensors = self._read.GetAccumulator(run).Tags()["tensors"]
        return {tag for tag in tensors if not tag.startswith(("_hparams_", "custom_scalars"))}

    def curve(self, run: str, tag: str) -> list[tuple[int, float]]:
        """Return a scalar's points as (step, value)."""
        return [(event.step, event.tensor_proto.float_val[0]) for event in self._read.Tensors(run, tag)]

    def experiment(self) -> Any:
        """Return what the HParams page receives about all trials."""
        request = api_pb2.GetExperimentRequest(experiment_name="")
        return get_experiment.Handler(context.RequestContext(), self._hparams, "", request).run()

    def sessions(self) -> dict[str, Any]:
        """Return what the HParams page receives about each trial."""
        request = api_pb2.ListSessionGroupsRequest(
            allowed_statuses=_STATUSES, start_index=0, slice_size=10_000, include_metrics=True
        )
        groups = list_session_groups.Handler(context.RequestContext(), self._hparams, "", request).run()
        return {group.name: group for group in groups.session_groups}

    def layout(self) -> Any:
        """Return the layout of the Custom Scalars page."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what it sanitizes Markdown with
            from tensorboard.plugins.custom_scalar.custom_scalars_plugin import CustomScalarsPlugin
        return json.loads(CustomScalarsPlugin(self._context).layout_impl(context.RequestContext(), ""))

    @property
    def _hparams(self) -> backend_context.Context:
        return backend_context.Context(self._context)
