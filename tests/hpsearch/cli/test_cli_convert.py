"""`convert` writes a W&B file so that it runs, says each change, and changes nothing where nothing has to be."""

from __future__ import annotations

import textwrap

import yaml

from hpsearch.objective import Metric
from hpsearch.sweep.convert import converted
from hpsearch.sweep.file import load_sweep

FINE = textwrap.dedent("""\
    # ours
    program: train.py
    method: bayes   # as it was
    metric: {name: loss, goal: minimize}
    parameters:
      lr: {min: 0.0001, max: 0.1}
    early_terminate: {type: hyperband, min_iter: 3}
    """)

BROKEN = textwrap.dedent("""\
    program: train.py  # kept
    method: grid
    metric:
      name: acc
      goal: maximum
    parameters:
      batch:
        value: 1
      lr: {distribution: uniform, min: 0.0001, max: 0.1}
      momentum:
        min: 0.5
        max: 0.9
      depth:
        values: 3
      width:
        distribution: uniform
        values: [1_000, 2000]
      seed: 7
      names: ["a", "b"]
      batch:
        value: 2
    command:
      - ${env}
      - ${interpereter}
      - ${program}
      - ${args}
    """)


def test_a_file_that_runs_stays_as_it_is(here, hpsearch_command):
    (here / "w.yaml").write_text(FINE)
    answer = hpsearch_command("convert", "w.yaml")
    assert (answer.code, answer.out) == (0, FINE)
    assert "note: early_terminate of type hyperband is W&B's and runs as type bands" in answer.err
    assert answer.err.endswith("w.yaml: nothing had to be changed\n")


def test_what_cannot_be_meant_is_written_as_it_was_meant(here, hpsearch_command):
    (here / "w.yaml").write_text(BROKEN)
    answer = hpsearch_command("convert", "w.yaml", "--output", "out.yaml")
    assert answer.code == 0, answer.err
    sweep = load_sweep(here / "out.yaml")
    assert isinstance(sweep.metric, Metric)
    assert sweep.metric.goal == "maximize"
    assert sweep.command == ("${env}", "${interpreter}", "${program}", "${args}")
    assert sweep.parameters.names == ("lr", "momentum", "depth", "width", "seed", "names", "batch")
    written = (here / "out.yaml").read_text()
    found = yaml.safe_load(written)["parameters"]
    assert found["width"] == {"distribution": "categorical", "values": [1000, 2000]}
    assert (found["momentum"]["points"], found["lr"]["points"]) == (10, 10)
    assert (found["depth"], found["seed"], found["names"]) == ({"values": [3]}, {"value": 7}, {"values": ["a", "b"]})
    assert found["batch"] == {"value": 2}
    assert "program: train.py  # kept\n" in written
    assert "  # hpsearch convert: goal was maximum\n  goal: maximize\n" in written
    assert "  depth:\n    # hpsearch convert: values was no list\n    values: [3]\n" in written
    again = hpsearch_command("convert", "out.yaml")
    assert again.out == written


def test_a_command_in_one_text_and_a_key_with_a_hyphen_are_written_as_they_were_meant(here, hpsearch_command):
    (here / "w.yaml").write_text(FINE.replace("program: train.py\n", "command: uv run train.py ${args}\nrun-cap: 4\n"))
    assert hpsearch_command("convert", "w.yaml", "--output", "out.yaml").code == 0
    sweep = load_sweep(here / "out.yaml")
    assert (sweep.command, sweep.run_cap) == (("uv", "run", "train.py", "${args}"), 4)


def test_what_is_left_empty_stays_so():
    text = "command:\nparameters:\n  a:\n    values:\n  b: {values: }\n  c:\n  d: {values: ''}\n"
    assert converted(text, "w.yaml") == (text, [])


def test_quotes_in_a_command_hold_words_together(here, hpsearch_command):
    text = FINE.replace("program: train.py\n", 'command: python train.py --note "two words" ${args}\n')
    (here / "w.yaml").write_text(text)
    assert hpsearch_command("convert", "w.yaml", "--output", "out.yaml").code == 0
    assert load_sweep(here / "out.yaml").command == ("python", "train.py", "--note", "two words", "${args}")


def test_what_only_its_writer_knows_is_an_error_with_the_line(here, hpsearch_command):
    (here / "w.yaml").write_text("method: bayes\nparameters: {lr: {min: 0.0, max: 1.0}}\n")
    answer = hpsearch_command("convert", "w.yaml", "--output", "out.yaml")
    assert answer.code == 1
    assert "w.yaml:1: metric: is required where method is bayes" in answer.err
    assert not (here / "out.yaml").exists()


def test_no_file_is_overwritten(here, hpsearch_command):
    (here / "w.yaml").write_text(FINE)
    assert hpsearch_command("convert", "w.yaml", "--output", "w.yaml").code == 1
    assert (here / "w.yaml").read_text() == FINE


def test_a_file_without_a_program_is_converted_and_says_so(here, hpsearch_command):
    (here / "w.yaml").write_text(FINE.replace("program: train.py\n", ""))
    answer = hpsearch_command("convert", "w.yaml")
    assert answer.code == 0
    assert "note: no program is named" in answer.err


def test_a_misspelt_macro_is_mended_within_brackets_as_well(here, hpsearch_command):
    (here / "w.yaml").write_text(FINE + 'command: [python, "${program}", "${arg}"]\n')
    answer = hpsearch_command("convert", "w.yaml")
    assert answer.code == 0, answer.err
    assert yaml.safe_load(answer.out)["command"] == ["python", "${program}", "${args}"]


def test_keys_that_nobody_knows_are_taken_out_and_misspelt_ones_are_not(here, hpsearch_command):
    text = FINE + "settings:\n  x: 1\n\n  y: [2,\n    3]\nx-common: &common {value: 3}\nother: 3\n"
    (here / "w.yaml").write_text(text)
    answer = hpsearch_command("convert", "w.yaml")
    assert answer.code == 0, answer.err
    assert "# hpsearch convert: settings isn't a key of a sweep\n# settings:\n" in answer.out
    assert yaml.safe_load(answer.out).keys() == {*yaml.safe_load(FINE), "x-common"}
    assert "other isn't a key of a sweep" in answer.err
    (here / "w.yaml").write_text(FINE.replace("parameters:", "parametrs:"))
    assert "did you mean parameters?" in hpsearch_command("convert", "w.yaml").err


def test_a_goal_in_capitals_and_whole_floats_of_an_integer_are_written_as_they_are_meant(here, hpsearch_command):
    text = FINE.replace("goal: minimize", "goal: Minimize").replace("  lr:", "  {at}\n  lr:")
    (here / "w.yaml").write_text(text.replace("{at}", "warmup: {distribution: int_uniform, min: 0, max: 100.0}"))
    answer = hpsearch_command("convert", "w.yaml", "--output", "out.yaml")
    assert answer.code == 0, answer.err
    assert "line 4: goal was Minimize" in answer.out + answer.err
    read = yaml.safe_load((here / "out.yaml").read_text())
    assert read["metric"]["goal"] == "minimize"
    assert str(read["parameters"]["warmup"]["max"]) == "100"


def test_a_fraction_is_no_bound_of_an_integer(here, hpsearch_command):
    warmup = "  warmup: {distribution: int_uniform, min: 0, max: 100.5}\n  lr:"
    (here / "w.yaml").write_text(FINE.replace("  lr:", warmup))
    answer = hpsearch_command("convert", "w.yaml")
    assert answer.code == 1
    assert "parameters.warmup.max: must be an integer, got 100.5" in answer.err


def test_a_sweep_below_a_key_is_not_taken_for_one_that_nobody_knows(here, hpsearch_command):
    (here / "w.yaml").write_text("sweeps:\n" + textwrap.indent(FINE, "  "))
    answer = hpsearch_command("convert", "w.yaml")
    assert answer.code == 1
    assert "w.yaml:1: sweeps: isn't a known key" in answer.err


def test_a_sweep_under_a_lone_key_sweep_is_converted_there(here, hpsearch_command):
    (here / "w.yaml").write_text("x-a: 1\nsweep:\n" + textwrap.indent(FINE.replace("minimize", "MIN"), "  "))
    answer = hpsearch_command("convert", "w.yaml", "--output", "out.yaml")
    assert answer.code == 0, answer.err
    assert yaml.safe_load((here / "out.yaml").read_text())["sweep"] == yaml.safe_load(FINE)
    assert answer.err.endswith("w.yaml: 1 line changed\n")


def test_lines_are_those_of_the_file_and_each_is_counted_once(here, hpsearch_command):
    (here / "w.yaml").write_text(BROKEN.replace("value: 2", "value: 2\n  odd: {min: 3.0, max: 1.0, points: 2}"))
    wrong = hpsearch_command("convert", "w.yaml")
    assert wrong.code == 1
    assert f"w.yaml:{BROKEN.splitlines().index('    value: 2') + 2}: parameters.odd.max: must be" in wrong.err
    (here / "w.yaml").write_text("method: grid\nmetric: {name: a, goal: max}\nparameters: {a: 3, b: 4}\n")
    assert hpsearch_command("convert", "w.yaml").err.endswith("w.yaml: 2 lines changed\n")
