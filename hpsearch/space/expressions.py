"""Expressions over parameters: conditions, derived values and constraints. They are parsed, never run as code.

The syntax is a subset of Python's: numbers, strings, lists, arithmetic, comparisons (also chained, and `in`), `and`,
`or`, `not`, `a if b else c`, and a few functions. Names are those of parameters, as in tables (`optimizer.momentum`,
`blocks.0.width`). Names with other characters are quoted with backquotes. `*` instead of the index of a copy is the
list of the values of all copies: `sum(blocks.*.width)`.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hpsearch.config.checks import InvalidKey, nearest, shown
from hpsearch.trial import Value

_LONGEST = 1_000
_DEEPEST = 50

_MOST_BITS = 4_096
"""Maximum size of an integer. Powers of larger integers take long and do not fit in a float."""

_TOKEN = re.compile(
    r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"|\d[\w.]*(?:(?<=[eE])[+-]\d+)?|`(?P<quoted>[^`\n]*)`|"""
    r"(?P<name>[^\W\d]\w*(?:\.(?:\w+|\*))*)"
)
_PLACEHOLDER = re.compile(r"_\d+")
"""A placeholder for a parameter in the syntax tree."""

_WORDS = frozenset({"and", "or", "not", "in", "if", "else", "True", "False", "None"})


_YAML_WORDS = {"true": "True", "false": "False", "null": "None"}


_Read = Callable[[str], Value]
"""Returns the value of a name, or `ABSENT`."""

_Compute = Callable[[_Read], Value]
"""Returns the value of an expression, or of a part of it."""


class _Absent:
    """The type of `ABSENT`."""

    def __repr__(self) -> str:
        return "absent"


ABSENT: Any = _Absent()
"""The value of an inactive parameter, and of an expression that reads one."""


class Uncomputable(ValueError):
    """An expression has no value for a configuration, such as a division by zero. The message says why."""


class _IsAbsent(Exception):
    """An inactive parameter was read."""


@dataclass(frozen=True)
class Expression:
    """An expression. Two expressions are equal if their texts are.

    Raises:
        InvalidKey: The text is not a valid expression.
    """

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip():
            raise InvalidKey((), f"must be an expression such as 'width * depth <= 1024', got {shown(self.text)}")
        if len(self.text) > _LONGEST:
            raise InvalidKey((), f"must be an expression of at most {_LONGEST} letters, got {len(self.text)}")
        object.__setattr__(self, "text", re.sub(r"\s*\n\s*", " ", self.text.strip()))
        _ = self._compute

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        return Expression, (self.text,)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters in the expression, without duplicates."""
        return tuple(dict.fromkeys(self._parsed[1]))

    @property
    def compared(self) -> tuple[tuple[str, Value], ...]:
        """Names and the constants that they are compared with: `x == 'a'`, `x in ['a', 'b']`, `'a' in x`."""
        tree, names = self._parsed
        pairs = [pair for node in ast.walk(tree) if isinstance(node, ast.Compare) for pair in _equated(node)]
        return tuple((names[int(name.id[1:])], constant.value) for name, constant in pairs)

    @cached_property
    def _parsed(self) -> tuple[ast.expr, tuple[str, ...]]:
        """The syntax tree, in which the n-th name is `_n`, and the names."""
        names: list[str] = []

        def replace_name(match: re.Match[str]) -> str:
            name = match["quoted"] if match["quoted"] is not None else match["name"]
            is_call = match["quoted"] is None and self.text[match.end() :].lstrip().startswith("(")
            if name is None or (match["quoted"] is None and (name in _WORDS or is_call)):
                return match[0]
            if match["quoted"] is None and name in _YAML_WORDS:
                return _YAML_WORDS[name]
            names.append(name)
            return f" _{len(names) - 1} "

        try:
            tree = ast.parse(_TOKEN.sub(replace_name, self.text).strip(), mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else str(error)
            raise InvalidKey((), f"must be an expression, got {shown(self.text)}: {reason}") from None
        return tree, tuple(names)

    @cached_property
    def _compute(self) -> _Compute:
        return _compiled(*self._parsed)

    def value(self, read: _Read) -> Value:
        """Return the value of the expression.

        Args:
            read: Returns the value of a name, or `ABSENT`.

        Returns:
            The value; `ABSENT` if the expression reads an inactive parameter.

        Raises:
            Uncomputable: There is no value: division by zero, a number that is too large, or a parameter that is NaN.
            InvalidKey: An operation is not defined for values of these types.
        """
        try:
            return _finite(self._compute(read))
        except _IsAbsent:
            return ABSENT
        except (ArithmeticError, Uncomputable) as error:
            raise Uncomputable(f"{self.text} has no value: {error}") from None
        except (TypeError, ValueError) as error:
            raise InvalidKey(
                (), f"must make sense for the values that there are, but in {self.text}: {error}"
            ) from None

    def holds(self, read: _Read) -> bool | None:
        """Return whether the expression is true; None if it reads an inactive parameter.

        Raises:
            Uncomputable: See `value`.
            InvalidKey: See `value`; or the value is not a boolean.
        """
        value = self.value(read)
        if value is ABSENT:
            return None
        if not isinstance(value, bool):
            raise InvalidKey((), f"must be true or false, such as 'width <= 64', but {self.text} is {shown(value)}")
        return value


def _equated(node: ast.Compare) -> Iterator[tuple[ast.Name, ast.Constant]]:
    """Yield the pairs of a name and a constant that a comparison tests for equality or membership."""
    sides = [node.left, *node.comparators]
    for op, lower, upper in zip(node.ops, sides[:-1], sides[1:], strict=True):
        if not isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn):
            continue
        lefts, rights = (side.elts if isinstance(side, ast.List | ast.Tuple) else [side] for side in (lower, upper))
        for left in lefts:
            for right in rights:
                match left, right:
                    case (ast.Name(), ast.Constant()):
                        yield left, right
                    case (ast.Constant(), ast.Name()):
                        yield right, left


def _finite(value: Value) -> Value:
    if isinstance(value, float) and not math.isfinite(value):
        raise Uncomputable(f"it is {value}")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise Uncomputable("it is an integer beyond 64 bits")
    return value


def _number(value: Value) -> int | float:
    if not isinstance(value, int | float):
        raise TypeError(f"a number is needed, got {shown(value)}")
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise Uncomputable("an integer is too large")
    return value


def _numbers(*values: Value) -> list[int | float]:
    """Return the numbers of a list, or of several arguments."""
    listed = values[0] if len(values) == 1 and isinstance(values[0], list) else values
    return [_number(value) for value in listed]


def _power(base: int | float, exponent: int | float) -> Value:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > _MOST_BITS:
        raise Uncomputable("a power is too large")
    power = base**exponent
    if isinstance(power, complex):
        raise Uncomputable("a root of a negative number")
    return power


def _extreme(of: Callable[[list[int | float]], Value]) -> Callable[..., Value]:
    def extreme(*values: Value) -> Value:
        numbers = _numbers(*values)
        if not numbers:
            raise Uncomputable("none is there to take the least or the greatest of")
        return of(numbers)

    return extreme


def _length(value: Value) -> int:
    if not isinstance(value, list | str):
        raise TypeError(f"len needs a list or a text, got {shown(value)}")
    return len(value)


def _of_number(function: Callable[[Any], Value]) -> Callable[[Value], Value]:
    def computed(value: Value) -> Value:
        try:
            return function(_number(value))
        except ValueError as error:
            raise Uncomputable(str(error)) from None

    return computed


_FUNCTIONS: Mapping[str, tuple[Callable[..., Value], int | None]] = {
    "abs": (_of_number(abs), 1),
    "ceil": (_of_number(math.ceil), 1),
    "exp": (_of_number(math.exp), 1),
    "float": (_of_number(float), 1),
    "floor": (_of_number(math.floor), 1),
    "int": (_of_number(int), 1),
    "len": (_length, 1),
    "log": (_of_number(math.log), 1),
    "log10": (_of_number(math.log10), 1),
    "log2": (_of_number(math.log2), 1),
    "max": (_extreme(max), None),
    "min": (_extreme(min), None),
    "round": (_of_number(round), 1),
    "sqrt": (_of_number(math.sqrt), 1),
    "sum": (lambda *values: sum(_numbers(*values)), None),
}
"""Functions by name, with their number of arguments; None: any number, or one list."""


def _is_nan(value: Value) -> bool:
    if value is ABSENT:
        raise _IsAbsent
    return math.isnan(_number(value))


_OF_NAMES: Mapping[str, Callable[[Value], bool]] = {"isnan": _is_nan, "present": lambda value: value is not ABSENT}
"""Functions whose argument is a name. They can also read NaN and inactive parameters."""

_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Value]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}

_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, others: one in others,
    ast.NotIn: lambda one, others: one not in others,
}

_SIGNS: Mapping[type[ast.unaryop], Callable[[Any], Value]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}


def _compiled(node: ast.expr, names: tuple[str, ...], depth: int = 0) -> _Compute:
    """Return a function that computes the value of a syntax tree.

    Raises:
        InvalidKey: Expressions do not have this syntax.
    """
    if depth > _DEEPEST:
        raise InvalidKey((), f"must not be nested deeper than {_DEEPEST} levels")

    def operands(*nodes: ast.expr) -> list[_Compute]:
        return [_compiled(operand, names, depth + 1) for operand in nodes]

    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as constant):
            return lambda read: constant
        case ast.Name(id=placeholder):
            name = names[int(placeholder[1:])]
            return lambda read: _readable(read(name))
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            items = operands(*elements)
            return lambda read: [item(read) for item in items]
        case ast.BoolOp(op=op, values=values):
            conditions, joined = operands(*values), all if isinstance(op, ast.And) else any
            return lambda read: joined(_truth(condition(read)) for condition in conditions)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            (negated,) = operands(operand)
            return lambda read: not _truth(negated(read))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _SIGNS:
            sign, (number,) = _SIGNS[type(op)], operands(operand)
            return lambda read: sign(_number(number(read)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            operate, (first, second) = _ARITHMETIC[type(op)], operands(left, right)
            return lambda read: operate(_number(first(read)), _number(second(read)))
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARISONS for op in ops):
            comparisons, (side, *sides) = [_COMPARISONS[type(op)] for op in ops], operands(left, *others)
            return lambda read: _compared(read, side, comparisons, sides)
        case ast.IfExp(test=test, body=body, orelse=other):
            condition, then, otherwise = operands(test, body, other)
            return lambda read: then(read) if _truth(condition(read)) else otherwise(read)
        case ast.Call(func=ast.Name(id=called), args=[ast.Name(id=placeholder)], keywords=[]) if called in _OF_NAMES:
            of_name, name = _OF_NAMES[called], names[int(placeholder[1:])]
            return lambda read: of_name(read(name))
        case ast.Call(func=ast.Name(id=called), args=args, keywords=[]) if not _PLACEHOLDER.fullmatch(called):
            _check_call(called, len(args))
            function, arguments = _FUNCTIONS[called][0], operands(*args)
            return lambda read: function(*[argument(read) for argument in arguments])
    kind = type(node).__name__
    problem = f"must hold numbers, texts, names, arithmetic, comparisons, and, or, not, if; got a {kind}"
    raise InvalidKey((), problem, "quote names with other signs than letters in backquotes: `drop-out`")


def _readable(value: Value) -> Value:
    """Return the value of a parameter that is active and not NaN."""
    if value is ABSENT:
        raise _IsAbsent
    if isinstance(value, float) and math.isnan(value):  # otherwise `x != 3` and `not x < 3` would be true
        raise Uncomputable("it reads NaN")
    return value


def _truth(value: Value) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"true or false is needed, got {shown(value)}")
    return value


def _compared(
    read: _Read, side: _Compute, comparisons: Sequence[Callable[[Any, Any], bool]], sides: Sequence[_Compute]
) -> bool:
    """Return the result of a chain of comparisons, with short-circuit evaluation."""
    first = side(read)
    for comparison, other in zip(comparisons, sides, strict=True):
        second = other(read)
        if not comparison(first, second):
            return False
        first = second
    return True


def _check_call(name: str, arguments: int) -> None:
    """Raise an InvalidKey if there is no function with this name and number of arguments."""
    if name in _OF_NAMES:
        raise InvalidKey((), f"must give {name} the name of a parameter, as in {name}(optimizer.momentum)")
    if name not in _FUNCTIONS:
        problem = f"must call a known function, got {name}"
        raise InvalidKey((), problem, nearest(name, [*_FUNCTIONS, *_OF_NAMES]))
    count = _FUNCTIONS[name][1]
    if not arguments or (count is not None and arguments != count):
        required = "at least one" if count is None else "one"
        raise InvalidKey((), f"must give {name} {required} argument, got {arguments}")
