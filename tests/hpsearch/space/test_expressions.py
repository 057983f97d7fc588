"""Expressions: what they give, beside Python's own; what they refuse; and that none runs anything."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.config.checks import InvalidKey
from hpsearch.space.expressions import ABSENT, Expression, Uncomputable

VALUES: dict[str, Any] = {
    "a": 3,
    "b": 0.5,
    "c": "sgd",
    "d": True,
    "lambda": 7,
    "blocks.0.width": 16,
    "blocks.*.width": [16, 32],
    "drop-out": 0.25,
    "none": ABSENT,
}


def value(text: str) -> Any:
    return Expression(text).value(VALUES.__getitem__)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a * 2 + 1", 7),
        ("a ** 2 // 2 % 3", 1),
        ("-a + +b", -2.5),
        ("a / 2", 1.5),
        ("1 < a <= 3", True),
        ("a in [1, 2, 3] and c not in ['adam']", True),
        ("c == 'sgd' or none > 3", True),
        ("not d", False),
        ("a if d else none", 3),
        ("lambda + 1", 8),
        ("blocks.0.width * 2", 32),
        ("sum(blocks.*.width) <= 48", True),
        ("max(blocks.*.width) + min(a, b, 9) + len(blocks.*.width)", 34.5),
        ("`drop-out` * 4", 1.0),
        ("round(2.6) + int(2.6) + ceil(2.1) + floor(2.9) + abs(-1)", 11),
        ("log2(8) + sqrt(16) + exp(0) + log(1) + log10(100)", 10.0),
        ("present(none)", False),
        ("present(a) and a > 2", True),
        ("1e-3 < b < 1E+3", True),
        ("'a.b' == \"a.b\"", True),
        ("c == 'a if b else c'", False),
        ("1_000 + 0", 1000),
        ("d == true and not false and null == None", True),
    ],
)
def test_it_gives_what_python_would(text, expected):
    assert value(text) == expected
    assert type(value(text)) is type(expected)


@pytest.mark.parametrize(
    "text", ["none + 1", "none > 3 and d", "[none, 1]", "d and none > 3", "none if d else 1", "-none"]
)
def test_what_reads_what_is_absent_is_absent(text):
    assert value(text) is ABSENT


@pytest.mark.parametrize(
    "text",
    [
        *("1 / 0", "a // 0", "a % 0", "0 ** -1", "log(0)", "sqrt(-1)", "(-8) ** 0.5", "max([])"),
        *("2 ** 10 ** 10", "9 ** 9 ** 9 ** 9", "(2 ** 4000) ** 2"),  # which would take all time and memory
        *("exp(1000)", "1e308 * 10", "2 ** 64", "int(1e400)"),
    ],
)
def test_what_has_no_value_says_so(text):
    with pytest.raises(Uncomputable):
        value(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "must be an expression such as"),
        ("a >", "must be an expression, got 'a >'"),
        ("a = 3", "must be an expression, got"),
        ("a b", "must be an expression, got"),
        ("(a", "must be an expression, got"),
        ("a is b", "must be an expression, got"),
        ("lambda: 3", "must be an expression, got"),
        ("f'{a}'", "must be an expression, got"),
        ("b'x'", "must be an expression, got"),
        ("[x for x in y]", "must be an expression, got"),
        ("a.__class__()", "must hold numbers, texts, names, arithmetic"),
        ("open('x')", "must call a known function, got open"),
        ("().__class__", "must hold numbers, texts, names, arithmetic"),
        ("(a)(3)", "must hold numbers, texts, names, arithmetic"),
        ("a[0]", "must hold numbers, texts, names, arithmetic"),
        ("{1: 2}", "must hold numbers, texts, names, arithmetic"),
        ("a & 3", "must hold numbers, texts, names, arithmetic"),
        ("a << 3", "must hold numbers, texts, names, arithmetic"),
        ("~a", "must hold numbers, texts, names, arithmetic"),
        ("1j", "must hold numbers, texts, names, arithmetic"),
        ("(a := 3)", "must hold numbers, texts, names, arithmetic"),
        ("sum()", "must give sum at least one argument, got 0"),
        ("abs(1, 2)", "must give abs one argument, got 2"),
        ("round(b, ndigits=2)", "must hold numbers, texts, names, arithmetic"),
        ("max(*blocks)", "must"),
        ("present(3)", "must give present the name of a parameter"),
        ("isnan(a + b)", "must give isnan the name of a parameter"),
        ("roud(b)", "must call a known function, got roud"),
        ("a + " * 400 + "a", "must be an expression of at most 1000 letters"),
        ("-" * 200 + "a", "must not be nested deeper"),
        ("(" * 300 + "a" + ")" * 300, "must be an expression"),
    ],
)
def test_what_is_no_expression_is_refused(text, told):
    with pytest.raises(InvalidKey) as caught:
        Expression(text)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "text", ["c + 1", "'x' * 3", "a < c", "d and a", "not a", "len(a)", "sum(c)", "a if a else b", "[1] + 2"]
)
def test_what_makes_no_sense_for_the_values_says_what_does(text):
    with pytest.raises(InvalidKey, match="must make sense for the values that there are"):
        value(text)


def test_a_condition_is_true_or_false():
    assert Expression("a > 2").holds(VALUES.__getitem__) is True
    assert Expression("none > 2").holds(VALUES.__getitem__) is None
    with pytest.raises(InvalidKey, match="must be true or false, such as 'width <= 64', but a is 3"):
        Expression("a").holds(VALUES.__getitem__)


def test_its_names_are_those_of_parameters_alone():
    text = "a + sum(blocks.*.width) > len(c) and 'd' != c or `drop-out` in [a]"
    assert Expression(text).names == ("a", "blocks.*.width", "c", "drop-out")


def test_what_names_are_said_to_be_is_known():
    text = "a == 'x' or 3 != b and c in ['p', 'q'] or 'r' in d and a < 5 or [1, a] == 3 or e == f"
    assert set(Expression(text).compared) == {("a", "x"), ("b", 3), ("c", "p"), ("c", "q"), ("d", "r"), ("a", 3)}


def test_texts_keep_their_spaces_and_lines_are_joined():
    assert Expression("c == 'a  b' or\n   a > 2").text == "c == 'a  b' or a > 2"


def test_alike_ones_are_equal_and_survive_being_sent():
    one = Expression(" a >\n 2")
    assert one == Expression("a > 2") == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(Expression("a > 2"))


_NUMBERS = st.sampled_from(["a", "b", "2", "0.5", "7", "lambda"])


def _joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner)
    return st.one_of(
        pairs.map(lambda parts: f"({' '.join(parts)})"),
        inner.map(lambda part: f"-{part}"),
        st.tuples(inner, inner).map(lambda parts: f"max({', '.join(parts)})"),
        st.tuples(inner, inner, inner).map(lambda parts: f"({parts[0]} if {parts[1]} < {parts[2]} else {parts[1]})"),
    )


@settings(max_examples=60)
@given(st.recursive(_NUMBERS, _joined, max_leaves=8))
def test_random_arithmetic_is_pythons(text):
    names = {"a": 3, "b": 0.5, "x7": 7, "max": max}
    try:
        expected = eval(text.replace("lambda", "x7"), {"__builtins__": {}}, names)  # our own text
    except ZeroDivisionError:
        with pytest.raises(Uncomputable):
            value(text)
        return
    found = value(text)
    assert found == expected or math.isclose(found, expected)
    assert type(found) is type(expected)
