"""Structures, conditions, derived values and constraints in a sweep file: what they become, and their mistakes."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import jsonschema
import pytest
import yaml

from hpsearch.errors import SweepError
from hpsearch.space import (
    Cell,
    Chain,
    Choice,
    Derived,
    IntUniform,
    LogUniform,
    Ordinal,
    Repeat,
    Space,
    Uniform,
    When,
)
from hpsearch.sweep.file import load_sweep
from hpsearch.sweep.sweep import Sweep
from tests.hpsearch.support.sweep_schema import validator

HEAD = """\
metric: {name: loss}
method: METHOD
run_cap: 10
max_iter: 3
trainable: a:b
parameters:
  lr: {min: 0.0, max: 1.0}
"""

WHOLE = """\
  optimizer:
    choice:
      sgd:
        momentum: {min: 0.0, max: 0.99}
        nesterov: {values: [true, false], when: momentum > 0.5}
      adam:
  hidden:
    repeat: {values: [16, 32, 64], ordered: true}
    max: 3
  blocks:
    repeat:
      parameters:
        width: {min: 1, max: 8}
        kind: {choice: {conv: {k: {values: [3, 5]}}, pool: {}}}
    min: 0
    max: 2
    when: lr < 0.05
  group:
    parameters: {x: {value: 1}}
    when: hidden > 1
  net: {chain: [a, b], length: 3}
  free: {chain: {a: {k: {values: [1]}}}}
  cell: {cell: [none, skip], nodes: 4}
  nas: {cell: {sep: {k: {values: [3, 5]}}, max: }, nodes: 3, each: node, inputs: 1}
  total: {derived: 'sum(hidden.*) * 2'}
constraints:
- total <= 200
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load a sweep whose parameters, and what follows them, this is."""
    monkeypatch.chdir(tmp_path)

    def load(rest: str, method: str = "random", overrides: tuple[str, ...] = ()) -> Sweep:
        Path("sweep.yaml").write_text(HEAD.replace("METHOD", method) + rest)
        return load_sweep("sweep.yaml", overrides)

    return load


def test_a_file_says_what_python_says(load):
    written = load(WHOLE).parameters
    assert written == Space.from_parameters(
        {
            "lr": Uniform(0.0, 1.0),
            "optimizer": Choice(
                {
                    "sgd": {"momentum": Uniform(0.0, 0.99), "nesterov": When("momentum > 0.5", [True, False])},
                    "adam": {},
                }
            ),
            "hidden": Repeat(Ordinal([16, 32, 64]), max=3),
            "blocks": When(
                "lr < 0.05",
                Repeat({"width": IntUniform(1, 8), "kind": Choice({"conv": {"k": [3, 5]}, "pool": {}})}, 0, 2),
            ),
            "group": When("hidden > 1", {"x": 1}),
            "net": Chain(["a", "b"], 3, 3),
            "free": Chain({"a": {"k": [1]}}),
            "cell": Cell(["none", "skip"], 4),
            "nas": Cell({"sep": {"k": [3, 5]}, "max": {}}, 3, "node", 1),
            "total": Derived("sum(hidden.*) * 2"),
        },
        ["total <= 200"],
    )


def test_it_is_stored_and_read_back(load):
    sweep = load(WHOLE)
    stored = json.loads(json.dumps(sweep.to_json()))
    assert Sweep.from_json(stored) == sweep
    assert sweep.difference(Sweep.from_json(stored)) == []
    (changed,) = load(WHOLE.replace("200", "100")).difference(sweep)
    assert changed.startswith("constraints: ")
    (changed,) = load(WHOLE.replace("nodes: 4", "nodes: 5")).difference(sweep)
    assert changed == "parameters.cell.nodes: 5 in the study, 4 here"


def test_the_schema_takes_it():
    validator().validate(yaml.safe_load(HEAD.replace("METHOD", "random") + WHOLE))


@pytest.mark.parametrize(
    "parameter",
    ["{choice: [a]}", "{choice: {a: 3}}", "{repeat: 3}", "{cell: [a], nodes: 3, each: edges}", "{chain: [a], size: 3}"],
)
def test_the_schema_refuses_what_is_none(parameter):
    given = yaml.safe_load(HEAD.replace("METHOD", "random") + f"  x: {parameter}\n")
    with pytest.raises(jsonschema.ValidationError):
        validator().validate(given)


def test_values_inside_are_set_from_the_command_line(load):
    sweep = load(
        WHOLE,
        overrides=("parameters.optimizer.sgd.momentum.max=0.5", "parameters.blocks.max=1", "parameters.net.length=2"),
    )
    with pytest.raises(SweepError, match=r"width.max: must be an integer, as the file has a range of integers here"):
        load(WHOLE, overrides=("parameters.blocks.repeat.width.max=4.5",))
    momentum = sweep.parameters.find("optimizer.sgd.momentum")
    assert momentum is not None
    assert momentum.distribution == Uniform(0.0, 0.5)
    assert sweep.parameters.find("blocks.1.width") is None
    assert sweep.parameters.find("net.2") is None


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        ("  o: {choice: {s: {m: {min: 0, max: x}}, a: }}", "8: parameters.o.choice.s.m.max: must be a number, got 'x'"),
        ("  o: {choice: [s, a]}", "8: parameters.o.choice: must be a mapping of branches to their parameters"),
        ("  o: {choice: {}}", "8: parameters.o.choice: must hold at least one branch, got none"),
        ("  o: {choice: {s: {m: 3}}}", "8: parameters.o.choice.s.m: must be a mapping, such as"),
        ("  o: {choice: {s: {}}, min: 3}", "8: parameters.o.min: has no meaning with choice"),
        ("  o: {chioce: {s: {}}}", "8: parameters.o.chioce: isn't a known key\n  did you mean choice?"),
        ("  o: {choice: {3x3: {}}}", "8: parameters.o.choice: must be named with letters"),
        ("  r: {repeat: {values: [1]}, min: 3, max: 2}", "8: parameters.r.max: must be between 3, as min is 3, and"),
        (
            "  r: {repeat: {values: [1]}, length: 3, max: 2}",
            "8: parameters.r.length: must not be given with min or max",
        ),
        ("  r: {repeat: {values: [1]}, length: two}", "8: parameters.r.length: must be an integer, got 'two'"),
        ("  r: {repeat: {values: [1]}, length: 0}", "8: parameters.r.length: must be at least 1, got 0"),
        ("  r: {repeat: {values: [1]}, length: 1001}", "8: parameters.r.length: must be between 0 and 1000, got 1001"),
        ("  r: {repeat: {a: {values: [1]}}, max: 2}", "8: parameters.r.repeat: must be one parameter, or hold a group"),
        ("  r: {repeat: {values: [1], when: lr > 1}}", "8: parameters.r.repeat.when: must not be given in a block"),
        ("  r: {chain: conv, max: 2}", "8: parameters.r.chain: must be a list, got 'conv'"),
        ("  r: {chain: [conv], max: two}", "8: parameters.r.max: must be an integer, got 'two'"),
        ("  c: {cell: [a, b]}", "8: parameters.c.nodes: is required\n  add under parameters.c:  nodes: 4"),
        ("  c: {cell: [a], nodes: 1}", "8: parameters.c.nodes: must be between 2, the input and the output, and 20"),
        ("  c: {cell: [a], nodes: 3, inputs: 2}", "8: parameters.c.inputs: must not be given where each is edge"),
        ("  c: {cell: [a], nodes: 3, each: edges}", "8: parameters.c.each: must be edge or node, got 'edges'"),
        ("  w: {min: 0, max: 1, when: lrr > 1}", "8: parameters.w.when: must name parameters, but lrr isn't one"),
        (
            "  w: {value: 1, when: z > 1}\n  z: {value: 3}",
            "8: parameters.w.when: must name parameters that are above",
        ),
        ("  w: {value: 1, when: 'lr >'}", "8: parameters.w.when: must be an expression, got 'lr >': invalid syntax"),
        ("  w: {value: 1, when: lr}", "8: parameters.w.when: must be true or false"),
        ("  w: {value: 1, when: 3}", "8: parameters.w.when: must be an expression in quotes, got 3"),
        ("  w: {value: 1, when: 'open(lr)'}", "8: parameters.w.when: must call a known function, got open"),
        (
            "  o: {choice: {sgd: {}, adam: {}}}\n  w: {value: 1, when: o == 'agd'}",
            "9: parameters.w.when: must compare o with what it may be: it must be one of the values ('sgd', 'adam')",
        ),
        ("  w: {derived: lr / 0}", "8: parameters.w: must be kept by more points: of 10,000 draws none is valid"),
        ("  w: {derived: lr + 'a'}", "8: parameters.w: must make sense for the values that there are"),
        ("  w: {derived: 3}", "8: parameters.w.derived: must be an expression such as"),
        ("  g: {when: lr > 0.5, parameters: {x: {min: 0, max: y}}}", "8: parameters.g.parameters.x.max: must be a num"),
        ("  o: {choice: {s: {k: {value: 1, when: q > 1}}}}", "8: parameters.o.choice.s.k.when: must name parameters"),
        ("  v: {values: [1, 1], ordered: true}", "8: parameters.v.values: must be distinct where they are ordered"),
        ("  v: {values: [1, 2], ordered: perhaps}", "8: parameters.v.ordered: must be true or false, got 'perhaps'"),
        ("constraints: [lr > 0.5, xx < 3]", "8: constraints[1]: must name parameters, but xx isn't one"),
        ("constraints: {a: 3}", "8: constraints: must be a list, got a mapping"),
        ("constraints: ['lr + 1']", "8: constraints[0]: must be true or false, such as"),
        (
            "constraints: [lr < 0.5, lr > 2]",
            "8: constraints[1]: must be kept by more points: of 10,000 draws none is val",
        ),
    ],
)
def test_a_mistake_is_said_with_line_and_key(load, rest, told):
    with pytest.raises(SweepError) as caught:
        load(rest + "\n")
    assert str(caught.value).startswith(f"sweep.yaml:{told}")
    assert str(caught.value).count("sweep.yaml") == 1  # and said once


def test_a_space_without_a_point_is_told_alike_whatever_the_searchers_checks_draw(load):
    with pytest.raises(SweepError, match=r"8: constraints\[0\]: must be kept by more points: of 10,000 draws none"):
        load("constraints: [lr > 2]\n", "evolution")


@pytest.mark.parametrize(
    ("method", "rest", "told"),
    [
        (
            "grid",
            "  r: {repeat: {values: [1]}}",
            "8: parameters.r.max: is required where the method is",
        ),
        ("gp", "  r: {repeat: {values: [1]}}", "8: parameters.r.max: is required where the method is"),
        ("cmaes", "  r: {values: [a, b]}", "method: must be another one than cmaes, which moves numbers, where r is a"),
        ("qmc", "constraints: [lr > 0.1]", "constraints: must not be given for qmc"),
        ("spectral", "  w: {min: 0, max: 1, when: lr > 0.5}", "parameters: must be parameters that every trial has"),
    ],
)
def test_a_method_that_cannot_search_it_is_refused_and_others_are_named(load, method, rest, told):
    with pytest.raises(SweepError) as caught:
        load(rest + "\n", method)
    assert told in str(caught.value)
    assert "evolution" in str(caught.value)


@pytest.mark.parametrize(
    ("point", "told"),
    [
        ("{optimizer: {sgdd: {momentum: 1}}}", "optimizer: must be one of the branches, got 'sgdd'"),
        ("{optimizer: adam, optimizer.sgd.momentum: 0.5}", "optimizer.sgd.momentum: doesn't apply with the other"),
        ("{hidden.0: 16}", "hidden.0: doesn't apply with the other values, got 16\n  give what decides whether it"),
        ("{hidden: [16, 16, 16, 16]}", "hidden: must have 1 to 3 copies, got 4"),
        ("{hidden: [16, 17]}", "hidden.1: must be one of the values (16, 32, 64), got 17"),
        ("{hidden: [64, 64]}", "total <= 200 must hold, but doesn't: total is 256"),
        ("{hidden: [16], total: 3}", "total: must be what sum(hidden.*) * 2 gives, 32, got 3"),
        ("{cell: {0-1: jump}}", "cell.0-1: must be one of the values ('none', 'skip'), got 'jump'"),
        ("{nas: {'1': [{from: 1}]}}", "nas.1"),
    ],
)
def test_a_wrong_point_to_try_is_said_with_its_place(load, point, told):
    with pytest.raises(SweepError) as caught:
        load(f"{WHOLE}points_to_try: [{point}]\n")
    assert f"points_to_try[0].{told}" in str(caught.value) or f"points_to_try[0]: {told}" in str(caught.value)


def test_points_to_try_are_given_as_a_trainable_sees_them(load):
    point = "{optimizer: {sgd: {momentum: 0.25}}, hidden: [64, 16], cell: {0-1: skip}, lr: 0.5}"
    sweep = load(f"{WHOLE}points_to_try: [{point}]\n")
    (given,) = sweep.points_to_try
    expected = {
        "lr": 0.5,
        "optimizer": "sgd",
        "optimizer.sgd.momentum": 0.25,
        "hidden": 2,
        "hidden.0": 64,
        "hidden.1": 16,
        "group.x": 1,
        "net": 3,
        "cell.0-1": "skip",
        "total": 160,
    }
    assert given == expected
    params = sweep.parameters.complete(given, 0, 0)
    assert params.items() >= expected.items()
    assert sweep.parameters.check(params) == params


def test_a_log_range_in_a_branch_reads_as_outside(load):
    space = load("  o: {choice: {a: {x: {distribution: log_uniform_values, min: 1.0e-4, max: 0.1}}}}\n").parameters
    found = space.find("o.a.x")
    assert found is not None
    assert found.distribution == LogUniform(1e-4, 0.1)


def test_two_mistakes_in_two_branches_are_both_told(load):
    with pytest.raises(SweepError) as caught:
        load(textwrap.indent("o:\n  choice:\n    a: {x: {min: 1}}\n    b: {y: {values: []}}\n", "  "))
    assert [line.split(" ")[0] for line in str(caught.value).splitlines() if "yaml" in line] == [
        "sweep.yaml:10:",
        "sweep.yaml:11:",
    ]
