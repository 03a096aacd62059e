"""SQL92 property filters: each expression is compiled once per subscription and evaluated once per candidate message.

An expression is compiled to closures: every node of the tree becomes a function of `properties.get`, so matching a
message needs no dispatch on node types.

Results equal RocketMQ's with one exception. RocketMQ parses a property as exactly the type of the literal, so its
evaluation of 3.5 > 3 and 3000000000 > 1 fails with an error. Here such numbers are compared.
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from latermq.group.sql.parser import (
    AllOf,
    AnyOf,
    Condition,
    Equal,
    HasText,
    IsNull,
    Literal,
    Negative,
    Node,
    Not,
    OneOf,
    Ordered,
    Property,
    Truth,
    parse_sql,
)
from latermq.group.sql.tokens import tokenize

Value = str | int | float | bool | None
Get = Callable[[str], str | None]
Test = Callable[[Get], bool | None]
Evaluator = Callable[[Get], Value]

_MAX_WHOLE_DIGITS = 19  # the digits of a long; longer numbers are compared as doubles
# A longer text does not count as a number. Every comparison in an expression parses its property again. Properties may
# have 32 KiB; with this limit, parsing one takes at most a microsecond.
MAX_NUMBER_CHARS = 128
# The time of Python's substring search grows with the product of both lengths, up to 0.6 ms, unless the text has at
# least 100 characters, and the value has at least 2,500 and at least three times as many as the text. Above this
# product, values are padded to that length if the text is long enough. Shorter texts are searched with a regular
# expression, which takes longer to start, but whose time grows with the sum of both lengths.
_MAX_SEARCH_PRODUCT = 1 << 14
_LONG_TEXT_CHARS = 100
_LONG_VALUE_CHARS = 2_500
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}").fullmatch
# The syntax of Java's Double.valueOf without hexadecimal numbers and NaN, which cannot be ordered.
# The possessive quantifiers `++` and `*+` rule out backtracking.
_DOUBLE = re.compile(
    r"[\x00-\x20]*+([+-]?(?:Infinity|(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?))[fFdD]?[\x00-\x20]*+"
).fullmatch
_ORDERS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_MIRRORED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


class NotComparable(Exception):
    """A property's text is not a number where one is needed. This ends the evaluation: the message does not match."""


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A compiled filter, with the maximum number of words and searches that it evaluates per message."""

    expression: str
    words: int
    searches: int
    _test: Test = field(repr=False, compare=False)

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether the expression is true for a message with these properties. Unknown is not true."""
        try:
            return self._test(properties.get) is True
        except NotComparable:
            return False


def compile_sql_filter(expression: str, *, max_words: int) -> SqlFilter:
    """Compile an expression. Raises FilterError with the problem and its position."""
    tokens = tokenize(expression, max_words)
    searches = sum(token.kind == "CONTAINS" for token in tokens)
    return SqlFilter(expression, len(tokens), searches, _compile_condition(parse_sql(tokens)))


def _compile_condition(node: Node) -> Test:
    match node:
        case AllOf(parts=parts):
            return _all_of(tuple(_compile_condition(part) for part in parts))
        case AnyOf(parts=parts):
            return _any_of(tuple(_compile_condition(part) for part in parts))
        case Not(operand=IsNull(operand=operand)):
            present = _compile_value(operand)
            return lambda get: present(get) is not None
        case Not(operand=operand):
            return _not(_compile_condition(operand))
        case IsNull(operand=operand):
            value = _compile_value(operand)
            return lambda get: value(get) is None
        case Equal():
            return _equal(node)
        case Ordered():
            return _ordered(node)
        case OneOf():
            return _one_of(node)
        case HasText():
            return _has_text(node)
        case Truth(name=name):
            return lambda get: None if get(name) is None else False
        case Literal(value=bool() | None as constant):
            return lambda get: constant
    raise AssertionError(f"the parser returned {node} as a condition")


def _compile_value(node: Node) -> Evaluator:
    match node:
        case Property(name=name):
            return lambda get: get(name)
        case Literal(value=constant) | Negative(value=constant):
            return lambda get: constant
        case Condition():
            return _compile_condition(node)


def _all_of(tests: tuple[Test, ...]) -> Test:
    def all_of(get: Get) -> bool | None:
        answer: bool | None = True
        for test in tests:
            found = test(get)
            if found is False:
                return False
            if found is None:
                answer = None
        return answer

    return all_of


def _any_of(tests: tuple[Test, ...]) -> Test:
    def any_of(get: Get) -> bool | None:
        answer: bool | None = False
        for test in tests:
            found = test(get)
            if found:
                return True
            if found is None:
                answer = None
        return answer

    return any_of


def _not(test: Test) -> Test:
    def negation(get: Get) -> bool | None:
        found = test(get)
        return None if found is None else not found

    return negation


def _equal(node: Equal) -> Test:
    """Compile an equality. The two most common forms, property = string and property = number, need no dispatch."""
    match node.left, node.right:
        case Property(name=name), Literal(value=str() as text):

            def equals_text(get: Get) -> bool | None:
                value = get(name)
                return None if value is None else value == text

            return equals_text
        case Property(name=name), Literal(value=(bool() | int() | float()) as constant) | Negative(
            value=(int() | float()) as constant
        ):
            read = _READERS[type(constant)]

            def equals_constant(get: Get) -> bool | None:
                value = get(name)
                return None if value is None else read(value) == constant

            return equals_constant
    left, right = _compile_value(node.left), _compile_value(node.right)
    return lambda get: _equal_values(left(get), right(get))


def _ordered(node: Ordered) -> Test:
    left_node, right_node, symbol = node.left, node.right, node.operator
    if isinstance(right_node, Property):
        left_node, right_node, symbol = right_node, left_node, _MIRRORED[symbol]
    compare = _ORDERS[symbol]
    match left_node, right_node:
        case Property(name=name), Literal(value=(int() | float()) as number) | Negative(
            value=(int() | float()) as number
        ):
            read = _READERS[type(number)]

            def ordered_to_number(get: Get) -> bool | None:
                value = get(name)
                return None if value is None else compare(read(value), number)

            return ordered_to_number
    left, right = _compile_value(left_node), _compile_value(right_node)
    return lambda get: _order_values(compare, left(get), right(get))


def _one_of(node: OneOf) -> Test:
    name, values, negated = node.name, node.values, node.negated

    def one_of(get: Get) -> bool | None:
        value = get(name)
        return None if value is None else (value in values) is not negated

    return one_of


def _has_text(node: HasText) -> Test:
    """Compile CONTAINS, STARTSWITH or ENDSWITH, which are never unknown.

    A value that is not a string matches neither the operator nor its negation. The same holds for an empty text.
    """
    if not node.text or isinstance(node.operand, Condition):
        return lambda get: False
    value_of, text, negated = _compile_value(node.operand), node.text, node.negated
    find = _find(node.operator, text)

    def has_text(get: Get) -> bool:
        value = value_of(get)
        return isinstance(value, str) and find(value) is not negated

    return has_text


def _find(symbol: str, text: str) -> Callable[[str], bool]:
    if symbol == "STARTSWITH":
        return lambda value: value.startswith(text)
    if symbol == "ENDSWITH":
        return lambda value: value.endswith(text)
    short_chars = _MAX_SEARCH_PRODUCT // len(text)
    search = _long_search(text) if len(text) >= _LONG_TEXT_CHARS else _short_search(text)
    return lambda value: text in value if len(value) <= max(short_chars, len(text)) else search(value)


def _long_search(text: str) -> Callable[[str], bool]:
    width = max(_LONG_VALUE_CHARS, 3 * len(text) + 16)
    filling = next(char for char in map(chr, range(len(text) + 1)) if char not in text)
    return lambda value: text in value.ljust(width, filling)


def _short_search(text: str) -> Callable[[str], bool]:
    pattern: re.Pattern[str] | None = None  # compiled on first use: few values are long

    def contains(value: str) -> bool:
        nonlocal pattern
        if pattern is None:
            pattern = re.compile(re.escape(text))
        return pattern.search(value) is not None

    return contains


def _equal_values(left: Value, right: Value) -> bool | None:
    """Compare two values by RocketMQ's rule: null on the left is unknown, on the right false; two nulls are equal."""
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    if type(left) is type(right):
        return left == right
    if isinstance(left, str):
        return _READERS[type(right)](left) == right
    if isinstance(right, str):
        return left == _READERS[type(left)](right)
    if isinstance(left, bool) or isinstance(right, bool):
        return False
    return left == right


def _order_values(compare: Callable[[float, float], bool], left: Value, right: Value) -> bool | None:
    """Order two properties, read as doubles, or two numbers."""
    if left is None or right is None:
        return None
    left_number = _read_double(left) if isinstance(left, str) else left
    right_number = _read_double(right) if isinstance(right, str) else right
    return compare(left_number, right_number)


def _read_number(text: str) -> int | float:
    """Read a property that is compared with a whole number."""
    if len(text) <= _MAX_WHOLE_DIGITS and text.isdigit() and text.isascii():
        return int(text)  # takes half the time of the pattern below
    return int(text) if len(text) <= _MAX_WHOLE_DIGITS + 1 and _WHOLE(text) else _read_double(text)


def _read_double(text: str) -> float:
    match = _DOUBLE(text) if len(text) <= MAX_NUMBER_CHARS else None
    if match is None:
        raise NotComparable(text)
    return float(match[1])


def _read_boolean(text: str) -> bool:
    return len(text) == 4 and text.lower() == "true"


_READERS: dict[type, Callable[[str], int | float | bool]] = {
    int: _read_number,
    float: _read_double,
    bool: _read_boolean,
}
