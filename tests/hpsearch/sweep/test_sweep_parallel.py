"""How several workers train one trial, as a sweep file says it: the section, and parameters over it."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml

import hpsearch
from hpsearch.errors import SweepError
from hpsearch.run.reproducibility import parallel_notes
from hpsearch.sweep.file import load_sweep, sweep_from_mapping
from hpsearch.sweep.overrides import change_sweep
from hpsearch.sweep.parallel import ASYNCHRONOUS, KEYS, Parallel, Strategies
from hpsearch.sweep.sweep import Sweep
from hpsearch_trainers.strategies import STRATEGIES

STRATEGY_NAMES = get_args(get_type_hints(Parallel)["strategy"])

BASE: dict[str, Any] = {
    "trainable": "package.module:Trainer",
    "metric": {"name": "loss"},
    "method": "random",
    "max_iter": 3,
    "run_cap": 5,
    "parameters": {"lr": {"min": 0.1, "max": 1.0}},
}
TWO = {"resources": {"workers_per_trial": 2}}


def sweep_of(parallel: object = None, parameters: dict[str, Any] | None = None, **more: Any) -> Sweep:
    given = {**BASE, **more, "parameters": {**BASE["parameters"], **(parameters or {})}}
    return sweep_from_mapping(given if parallel is None else {**given, "parallel": parallel})


def refusal(parallel: object = None, parameters: dict[str, Any] | None = None, **more: Any) -> str:
    with pytest.raises(SweepError) as caught:
        sweep_of(parallel, parameters, **more)
    return str(caught.value)


def in_a_group(**inside: object) -> dict[str, Any]:
    return {"parallel": {"parameters": inside}}


def dotted(**inside: object) -> dict[str, Any]:
    return {f"parallel.{key}": given for key, given in inside.items()}


# What trainers know.


def test_the_strategies_are_those_of_the_trainers():
    assert set(STRATEGY_NAMES) == set(STRATEGIES) == set(KEYS)
    assert {name for name, kind in STRATEGIES.items() if not kind.capabilities.reproducible} == ASYNCHRONOUS
    assert {key for keys in KEYS.values() for key in keys} | {"strategy"} == {field.name for field in fields(Parallel)}


@pytest.mark.parametrize("strategy", STRATEGY_NAMES)
def test_the_least_width_is_that_of_the_trainers(strategy):
    least = 2
    if strategy == "allreduce":
        assert sweep_of({"strategy": strategy}).resources.workers_per_trial == 1
        return
    assert sweep_of({"strategy": strategy}, resources={"workers_per_trial": least}).strategies.fixed == [strategy]
    assert f"workers_per_trial: must be at least {least} where" in refusal({"strategy": strategy})


# What a trial is told.


def test_a_sweep_that_says_nothing_tells_its_trials_nothing():
    sweep = sweep_of()
    assert sweep.parallel is None
    assert not sweep.strategies.named
    assert sweep.strategies.possible == ["allreduce"]
    assert sweep.strategies.of({"lr": 0.5}) == {}
    assert parallel_notes(sweep) == []


def test_the_section_is_told():
    assert sweep_of({}).strategies.of({"lr": 0.5}) == {"strategy": "allreduce"}
    sweep = sweep_of({"strategy": "pipeline", "micro_batches": 4, "schedule": None}, **TWO)
    assert sweep.parallel == Parallel("pipeline", micro_batches=4)
    assert sweep.strategies.of({"lr": 0.5}) == {"strategy": "pipeline", "micro_batches": 4}


@pytest.mark.parametrize("write", [in_a_group, dotted])
def test_a_trials_own_parameters_stand_over_the_section(write):
    given = write(strategy={"values": ["allreduce", "pipeline"]}, micro_batches={"values": [1, 8, None]})
    strategies = sweep_of({"strategy": "pipeline", "micro_batches": 4}, given, **TWO).strategies
    assert strategies.possible == ["allreduce", "pipeline"]
    told = {"lr": 0.5, "parallel.strategy": "pipeline", "parallel.micro_batches": 8}
    assert strategies.of(told) == {"strategy": "pipeline", "micro_batches": 8}
    assert strategies.of({**told, "parallel.micro_batches": None}) == {"strategy": "pipeline"}


def test_the_sections_strategy_is_nobodys_where_every_trial_has_its_own():
    strategies = sweep_of({"strategy": "pipeline"}, dotted(strategy={"values": ["allreduce"]})).strategies
    assert strategies.possible == ["allreduce"]


def test_other_groups_are_the_users_own():
    others = {"optimizer": {"parameters": {"strategy": {"value": "x"}, "servers": {"value": 0}}}}
    assert sweep_of({}, others).strategies.possible == ["allreduce"]
    assert not sweep_of(None, others).strategies.named


def test_a_strategy_alone_among_the_parameters_will_do():
    strategies = sweep_of(None, dotted(strategy={"values": ["pipeline", "allreduce"]}), **TWO).strategies
    assert strategies.possible == ["allreduce", "pipeline"]
    assert strategies.of({"parallel.strategy": "pipeline"}) == {"strategy": "pipeline"}


@pytest.mark.parametrize("name", ["parallel", "parallel.strategy"])
def test_a_condition_leaves_the_sections_strategy_to_some_trials(name):
    strategy = {"values": ["pipeline"]}
    inside = {"parameters": {"strategy": strategy}} if name == "parallel" else strategy
    strategies = sweep_of(None, {name: {**inside, "when": "lr > 0.5"}}, **TWO).strategies
    assert strategies.possible == ["allreduce", "pipeline"]
    assert strategies.of({"lr": 0.2}) == {"strategy": "allreduce"}


def test_branches_hold_the_keys_of_their_strategies():
    choice = {"choice": {"allreduce": None, "pipeline": {"micro_batches": {"min": 1, "max": 8}}}}
    for given in (in_a_group(strategy=choice), dotted(strategy=choice)):
        sweep = sweep_of({"micro_batches": 9}, given, **TWO)
        points = [sweep.parameters.draw(0, number) for number in range(20)]
        told = [sweep.strategies.of(point) for point in points]
        assert {one["strategy"] for one in told} == {"allreduce", "pipeline"}
        for point, one in zip(points, told, strict=True):
            assert one["micro_batches"] == point.get("parallel.strategy.pipeline.micro_batches", 9)


def test_a_group_of_that_name_is_the_users_own_where_nothing_speaks_of_strategies():
    given = in_a_group(workers={"value": 3}, mode={"values": ["a", "b"]})
    sweep = sweep_of(None, given)
    assert sweep.strategies.of({"lr": 0.5, "parallel.workers": 3, "parallel.mode": "a"}) == {}
    assert not sweep.strategies.named
    for parallel, parameters in (({}, given), (None, {**given, **dotted(strategy={"value": "allreduce"})})):
        told = refusal(parallel, parameters)
        assert told.startswith("parameters.parallel.workers: isn't a known key of parallel\n  known here: strategy")


def test_python_says_the_same():
    sweep = Sweep(
        name="s",
        trainable="a:b",
        metric=hpsearch.Metric("loss"),
        method="random",
        parameters=hpsearch.Space.from_parameters({"parallel": {"strategy": ["allreduce", "pipeline"]}}),
        parallel=hpsearch.Parallel(micro_batches=3),
        resources=hpsearch.Resources(workers_per_trial=2),
    )
    assert sweep.strategies.of({"parallel.strategy": "pipeline"}) == {"strategy": "pipeline", "micro_batches": 3}
    with pytest.raises(SweepError, match=r"^parallel: must be a Parallel, got a mapping"):
        replace(sweep, parallel={})  # type: ignore[arg-type]


# What is refused.


@pytest.mark.parametrize(
    ("parallel", "parameters", "more", "expected"),
    [
        ("pipeline", {}, TWO, "parallel: must be a mapping with keys such as strategy"),
        ({"strategy": "allreduc"}, {}, TWO, "parallel.strategy: must be allreduce or "),
        (
            {"strategy": "pipeline", "micro_batch": 3},
            {},
            TWO,
            "parallel.micro_batch: isn't a known key\n  did you mean micro_batches?",
        ),
        ({"strategy": "pipeline", "micro_batches": 0}, {}, TWO, "parallel.micro_batches: must be at least 1, got 0"),
        (
            {"strategy": "pipeline", "micro_batches": 1.5},
            {},
            TWO,
            "parallel.micro_batches: must be an integer, got 1.5",
        ),
        (
            {"strategy": "pipeline", "schedule": "gpip"},
            {},
            TWO,
            "parallel.schedule: must be gpipe or 1f1b, got 'gpip'\n  did you mean gpipe?",
        ),
        (
            {"micro_batches": 4},
            {},
            TWO,
            "parallel.micro_batches: has no meaning where parallel.strategy is allreduce\n  it belongs to pipeline",
        ),
        (
            None,
            in_a_group(strategy={"values": ["allreduce", "pipelime"]}),
            TWO,
            "parameters.parallel.strategy: must be allreduce or ",
        ),
        (
            None,
            in_a_group(strategy={"values": ["allreduce"]}, micro_batches={"min": 1, "max": 4}),
            TWO,
            "parameters.parallel.micro_batches: has no meaning where parallel.strategy is",
        ),
        (
            {"strategy": "pipeline"},
            dotted(micro_batches={"min": 0, "max": 4}),
            TWO,
            "parameters.parallel.micro_batches: must be at least 1, got 0",
        ),
        (
            {"strategy": "pipeline"},
            dotted(micro_batches={"min": 1.0, "max": 4.0}),
            TWO,
            "parameters.parallel.micro_batches: must be an integer, got 1.0",
        ),
        (
            {"strategy": "pipeline"},
            dotted(micro_batches={"distribution": "q_log_normal", "mu": 1}),
            TWO,
            "parameters.parallel.micro_batches: must be ",
        ),
        (
            {},
            {"kind": {"values": ["allreduce"]}, **dotted(strategy={"derived": "kind"})},
            TWO,
            "parameters.parallel.strategy: must say which strategies there may be, got a derived value\n  give values",
        ),
        (
            {},
            {
                "kind": {"values": ["allreduce"]},
                **dotted(micro_batches={"value": 3}, strategy={"derived": "kind"}),
            },
            TWO,
            "parameters.parallel.strategy: must say which strategies there may be, got a derived value",
        ),
        (
            {},
            dotted(strategy={"repeat": {"values": ["allreduce"]}}),
            TWO,
            "parameters.parallel.strategy: must be a parameter with one value, got a repeat",
        ),
        (
            {},
            dotted(strategy={"choice": {"allreduce": None, "other": None}}),
            TWO,
            "parameters.parallel.strategy: must be allreduce or ",
        ),
        (
            {},
            dotted(strategy={"choice": {"allreduce": {"micro_batches": {"value": 3}}, "pipeline": None}}),
            TWO,
            "parameters.parallel.strategy.allreduce.micro_batches: has no meaning where parallel.strategy is",
        ),
        (
            {},
            dotted(strategy={"choice": {"pipeline": {"strategy": {"value": "allreduce"}}}}),
            TWO,
            "parameters.parallel.strategy.pipeline.strategy: isn't a known key of parallel",
        ),
        (
            {"strategy": "pipeline"},
            {},
            {},
            "resources.workers_per_trial: must be at least 2 where parallel.strategy may be pipeline, got 1\n"
            "  resources: {workers_per_trial: 2}",
        ),
        (
            None,
            dotted(strategy={"values": ["allreduce", "pipeline"]}),
            {"resources": {"workers_per_trial": 2, "max_workers_per_trial": 3}},
            "resources.max_workers_per_trial: must not be given where parallel.strategy may be pipeline: only "
            "allreduce can resume with another number of workers; got 3\n  remove it",
        ),
        (
            None,
            dotted(strategy={"values": ["allreduce", "average_once"]}),
            TWO | {"max_iter": None, "early_terminate": {"type": "hyperband", "max_iter": 9}},
            "early_terminate: must be left out where parallel.strategy may be average_once, got hyperband: workers are",
        ),
    ],
)
def test_what_is_refused_before_anything_runs(parallel, parameters, more, expected):
    assert refusal(parallel, parameters, **more).startswith(expected)


@pytest.mark.parametrize(
    ("servers", "parameters", "least"),
    [
        ({}, {}, 2),
        ({"servers": 3}, {}, 4),
        ({"servers": 3}, dotted(servers={"values": [1, 2]}), 4),  # where it is left out, the section's holds
        ({}, dotted(servers={"min": 1, "max": 5}), 6),
        ({}, dotted(servers={"values": [None, 2]}), 3),
    ],
)
def test_a_trial_has_a_worker_beside_its_servers(servers, parameters, least):
    given = {"strategy": "parameter_server", **servers}
    assert sweep_of(given, parameters, resources={"workers_per_trial": least}).strategies.possible
    told = refusal(given, parameters, resources={"workers_per_trial": least - 1})
    assert told.startswith(f"resources.workers_per_trial: must be at least {least} where parallel.")
    branches = {"allreduce": None, "parameter_server": {"servers": {"values": [1, least - 1]}}}
    in_branches = dotted(strategy={"choice": branches})
    assert sweep_of({}, in_branches, resources={"workers_per_trial": least}).strategies.possible
    told = refusal({}, in_branches, resources={"workers_per_trial": least - 1})
    assert told.startswith(f"resources.workers_per_trial: must be at least {least} where parallel.")
    # Servers that no possible strategy has don't count.
    assert sweep_of({"strategy": "pipeline"}, **TWO)


def test_allreduce_alone_may_be_widened_and_be_one_of_several_on_a_worker():
    wide = {"resources": {"max_workers_per_trial": 4}}
    assert sweep_of({"strategy": "allreduce"}, **wide).resources.widest == 4
    assert sweep_of({}, resources={"trials_per_worker": 4}).resources.lanes == 4
    told = refusal({"strategy": "pipeline"}, resources={"workers_per_trial": 2, "trials_per_worker": 4})
    assert told.startswith("resources.trials_per_worker: must be 1 where workers_per_trial is 2")
    not_elastic = {"resources": {"workers_per_trial": 2, "max_workers_per_trial": 4, "elastic": False}}
    assert sweep_of({"strategy": "pipeline"}, **not_elastic).resources.widest == 2


def test_a_parameter_of_ones_own_is_to_be_called_otherwise():
    told = refusal(None, in_a_group(strategy={"values": ["ddp", "fsdp"]}))
    assert told.startswith("parameters.parallel.strategy: must be allreduce or ")
    assert told.endswith("got 'ddp'\n  a parameter of your own must be called otherwise")


# A file.


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(**more: Any) -> str:
        Path("sweep.yaml").write_text(yaml.safe_dump({**BASE, **more}, sort_keys=False))
        return "sweep.yaml"

    return write


def test_a_mistake_has_file_and_line(write):
    path = write(parallel={"strategy": "pipeline", "micro_batches": 0}, **TWO)
    with pytest.raises(SweepError, match=r"^sweep\.yaml:13: parallel\.micro_batches: must be at least 1, got 0$"):
        load_sweep(path)
    given = {"parameters": {"strategy": {"values": ["pipeline"]}, "micro_batches": {"values": [2, 0]}}}
    with pytest.raises(
        SweepError,
        match=r"^sweep\.yaml:\d+: parameters\.parallel\.parameters\.micro_batches: must be at least 1, got 0$",
    ):
        load_sweep(write(parameters={**BASE["parameters"], "parallel": given}, **TWO))
    with pytest.raises(SweepError, match=r"^sweep\.yaml:11: strategy: isn't a known key\n  it belongs under parallel"):
        load_sweep(write(strategy="pipeline"))


def test_set_gives_and_changes_keys(write):
    path = write(**TWO)
    assert load_sweep(path, ["parallel.strategy=pipeline", "parallel.micro_batches=3"]).parallel == Parallel(
        "pipeline", micro_batches=3
    )
    with pytest.raises(SweepError, match=r"^sweep\.yaml: --set parallel\.micro_batches=0: parallel\.micro_batches: "):
        load_sweep(path, ["parallel.strategy=pipeline", "parallel.micro_batches=0"])
    searched = load_sweep(path, ["parameters.parallel.parameters.strategy.values=[pipeline, allreduce]"])
    assert searched.strategies.possible == ["allreduce", "pipeline"]


# What a study keeps.


def test_it_comes_back_from_json():
    sweep = sweep_of(
        {"strategy": "pipeline", "micro_batches": 3}, dotted(schedule={"values": ["gpipe", "1f1b"]}), **TWO
    )
    assert Sweep.from_json(json.loads(json.dumps(sweep.to_json()))) == sweep
    before = sweep_of().to_json()
    del before["parallel"]
    assert Sweep.from_json(before) == sweep_of()


def test_another_strategy_is_another_sweep():
    pipeline = sweep_of({"strategy": "pipeline", "micro_batches": 3}, **TWO)
    assert pipeline.difference(sweep_of({"strategy": "pipeline", "micro_batches": 4}, **TWO)) == [
        "parallel.micro_batches: 3 in the study, 4 here"
    ]
    given = [
        "parallel.strategy: not given in the study, 'pipeline' here",
        "parallel.micro_batches: not given in the study, 3 here",
    ]
    assert sweep_of(None, **TWO).difference(pipeline) == given
    assert sweep_of().difference(pipeline) == ["resources.workers_per_trial: 1 in the study, 2 here", *given]


@pytest.mark.parametrize(
    ("parallel", "parameters", "counts"),
    [
        (None, {}, False),
        ({"strategy": "allreduce"}, {}, False),
        ({"strategy": "pipeline"}, {}, True),
        (None, dotted(strategy={"values": ["pipeline"]}), True),
        (None, in_a_group(strategy={"values": ["pipeline"]}), True),
        (None, {"parallel": {"parameters": {"strategy": {"values": ["pipeline"]}}, "when": "lr > 0.5"}}, True),
        (None, {"mine": {"parameters": {"parallel": {"parameters": {"strategy": {"values": ["a"]}}}}}}, False),
    ],
)
def test_the_width_is_part_of_what_a_strategy_gives(parallel, parameters, counts):
    two, three = (sweep_of(parallel, parameters, resources={"workers_per_trial": width}) for width in (2, 3))
    told = ["resources.workers_per_trial: 2 in the study, 3 here"] if counts else []
    assert two.difference(three) == told
    assert two.difference(replace(two, resources=replace(two.resources, workers=8))) == []


def test_which_trials_are_asynchronous():
    sweep = sweep_of(None, dotted(strategy={"values": ["allreduce", "hogwild", "locked"]}), **TWO)
    assert sweep.strategies.asynchronous == ["hogwild", "locked"]
    assert [
        sweep.strategies.is_asynchronous({"parallel.strategy": name}) for name in ("allreduce", "hogwild", "locked")
    ] == [False, True, True]
    (note,) = parallel_notes(sweep)
    assert note.startswith("parallel.strategy hogwild, locked: workers don't wait for each other")
    assert not sweep_of({"strategy": "pipeline"}, **TWO).strategies.is_asynchronous({})
    assert sweep_of({"strategy": "hogwild"}, **TWO).strategies.is_asynchronous({"lr": 0.5})


def test_a_study_that_has_begun_keeps_its_width():
    assert change_sweep(sweep_of({}), ["resources.workers_per_trial=2"]).resources.workers_per_trial == 2
    for key in ("resources.workers_per_trial", "parallel.micro_batches"):
        with pytest.raises(SweepError, match=f"^--set {key}=3: this study has begun and takes run_cap, (?!.*{key})"):
            change_sweep(sweep_of({"strategy": "pipeline"}, **TWO), [f"{key}=3"])


def test_strategies_are_data():
    sweep = sweep_of({"strategy": "pipeline"}, **TWO)
    assert sweep.strategies == Strategies(sweep.parallel, sweep.parameters)
    assert asdict(sweep.parallel or Parallel())["strategy"] == "pipeline"


def test_the_config_that_compares_strategies_has_all_of_them():
    config = load_sweep(Path(__file__).parents[3] / "configs" / "parallel.yaml")
    assert set(config.strategies.possible) == set(STRATEGY_NAMES)
