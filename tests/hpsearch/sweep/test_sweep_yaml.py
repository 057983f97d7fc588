"""What plain words of a sweep file are: numbers by YAML 1.2's core schema, and nothing in silence."""

from __future__ import annotations

import math
import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.errors import SweepError
from hpsearch.sweep.document import parse_value

CORE_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
CORE_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
ZEROS = st.integers(0, 3).map(lambda count: "0" * count)
SIGNS = st.sampled_from(["", "-", "+"])


def read(text: str) -> object:
    value = parse_value(f"[{text}]", "here")
    assert isinstance(value, list)
    (item,) = value
    return item


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-.5", -0.5),
        ("+.5", 0.5),
        (".5", 0.5),
        ("1.", 1.0),
        ("-1.e-2", -0.01),
        ("1e3", 1000.0),
        ("+1E+3", 1000.0),
        (".5e1", 5.0),
        ("-.inf", -math.inf),
        ("08", 8),
        ("010", 10),
        ("-010", -10),
        ("+7", 7),
        ("0o17", 15),
        ("0xfF", 255),
        ("0o8", "0o8"),
        ("0xg", "0xg"),
        ("e3", "e3"),
        ("1e", "1e"),
        ("1.2.3", "1.2.3"),
        ("1:75", "1:75"),
        ("'1_000'", "1_000"),
        ("'010'", "010"),
        ("yes", True),
        ("off", False),
        ("y", "y"),
    ],
)
def test_plain_words_are_read_so(text, value):
    assert repr(read(text)) == repr(value)


@pytest.mark.parametrize(
    "text",
    ["1_000", "-1_0", "1:30", "12:30:45", "190:20:30.15", "0b11", "-0x1F", "+0x1F", "0_7", "1_0.5", ".5_0", "1_"],
)
def test_what_only_yaml_1_1_takes_for_a_number_is_refused(text):
    assert isinstance(yaml.safe_load(f"[{text}]")[0], int | float)
    with pytest.raises(
        SweepError, match=rf"here:1: \[0\]: must be a number .* text in quotes, got '{re.escape(text)}'"
    ):
        read(text)
    assert read(f"'{text}'") == text


@settings(deadline=None, max_examples=80)
@given(sign=SIGNS, zeros=ZEROS, number=st.integers(0, 2**70))
def test_every_decimal_integer_is_that_integer(sign, zeros, number):
    got = read(f"{sign}{zeros}{number}")
    assert type(got) is int
    assert got == (-number if sign == "-" else number)


@settings(deadline=None, max_examples=80)
@given(number=st.floats(allow_nan=False, allow_infinity=False), sign=st.sampled_from(["", "+"]), short=st.booleans())
def test_every_float_that_python_writes_is_that_float(number, sign, short):
    text = repr(number)
    if short:
        text = re.sub(r"(?<![0-9])0\.", ".", text)  # 0.5 as .5
    assert repr(read(text if text.startswith("-") else sign + text)) == repr(number)


@settings(deadline=None, max_examples=150)
@given(text=st.text("0123456789+-._:eExXobaf", min_size=1, max_size=8))
def test_a_word_is_a_number_by_yaml_1_2_or_a_text_for_every_yaml_or_an_error(text):
    try:
        got = read(text)
    except SweepError:
        return
    if CORE_INTEGER.fullmatch(text):
        assert type(got) is int
    elif CORE_FLOAT.fullmatch(text):
        assert type(got) is float
    else:
        assert isinstance(got, bool) or not isinstance(got, int | float)
        assert repr(got) == repr(yaml.safe_load(f"[{text}]")[0])
