"""The HParams dashboard's columns of parameters that don't always apply."""

from __future__ import annotations

from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from hpsearch.observers.tensorboard.hparams import HParams, Known
from hpsearch.space import Choice, Derived, Ordinal, Repeat, Space, Uniform
from hpsearch.trial import Trial

SPACE = Space.from_parameters(
    {
        "optimizer": Choice({"sgd": {"momentum": Uniform(0.0, 1.0)}, "adam": {"amsgrad": [True, False]}}),
        "hidden": Repeat(Ordinal([16, 32]), 1, 2),
        "total": Derived("sum(hidden.*)"),
    }
)


def content(summary: Summary.Value) -> Any:
    return HParamsPluginData.FromString(summary.metadata.plugin_data.content)


def test_every_parameter_that_there_may_be_has_a_column_and_a_trial_those_that_it_has():
    hparams = HParams([SPACE])
    infos = content(hparams.experiment("name", {"loss": "loss"}, 0.0)).experiment.hparam_infos
    assert [info.name for info in infos] == [*SPACE.names, "state"]
    assert [value.string_value for value in infos[0].domain_discrete.values] == ["sgd", "adam"]
    params = {"optimizer": "adam", "optimizer.adam.amsgrad": True, "hidden": 1, "hidden.0": 32, "total": 32}
    assert SPACE.check(params) == params
    started = content(hparams.session_start(Trial(0, params, 0, "random"), 0.0, Known())).session_start_info.hparams
    assert set(started) == set(params)
    assert started["optimizer"].string_value == "adam"
    assert started["optimizer.adam.amsgrad"].bool_value is True
    assert (started["hidden"].number_value, started["total"].number_value) == (1, 32)


def test_of_a_block_without_a_bound_the_first_copies_have_columns():
    space = Space.from_parameters({"hidden": Repeat([16, 32], 1)})
    hparams = HParams([space])
    infos = content(hparams.experiment("name", {"loss": "loss"}, 0.0)).experiment.hparam_infos
    assert [info.name for info in infos] == ["hidden", "hidden.0", "hidden.1", "state"]
    params = {"hidden": 3, "hidden.0": 16, "hidden.1": 16, "hidden.2": 32}
    started = content(hparams.session_start(Trial(0, params, 0, "random"), 0.0, Known())).session_start_info.hparams
    assert started["hidden.2"].number_value == 32
