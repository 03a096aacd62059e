"""SQL92 filters, at random: no text breaks the compiler, and printed trees mean what a plain evaluator says."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from latermq.errors import FilterError
from latermq.group.sql.filter import compile_sql_filter

Properties = Mapping[str, str]
ORDERS: dict[str, Callable[[float, float], bool]] = {
    "=": lambda left, right: left == right,
    "<>": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
WORDS = [
    *("a", "b", "_x$1", "NOT", "and", "Or", "BETWEEN", "in", "TRUE", "false", "null", "is", "contains", "startswith"),
    *("endswith", "0", "3", "5L", "9223372036854775807", "3.5", ".5", "1e3", "1e999", "'x'", "''", "'it''s'", "'"),
    *("=", "<>", "<", "<=", ">", ">=", "(", ")", ",", "+", "-", "--", "/*", "*/", "\n", "!", "\\", "\x00", "é", "😀"),
]


class Tree(NamedTuple):
    """A condition as it is printed, and what it is: true, false, or None for unknown."""

    text: str
    value: Callable[[Properties], bool | None]


def ordered(name: str, operator: str, number: float) -> Tree:
    def value(properties: Properties) -> bool | None:
        return ORDERS[operator](float(properties[name]), number) if name in properties else None

    return Tree(f"{name} {operator} {number}", value)


def between(name: str, low: int, width: int, negated: bool) -> Tree:
    def value(properties: Properties) -> bool | None:
        if name not in properties:
            return None
        return (low <= float(properties[name]) <= low + width) is not negated

    return Tree(f"{name} {'NOT ' * negated}BETWEEN {low} AND {low + width}", value)


def equal_text(name: str, text: str, operator: str) -> Tree:
    def value(properties: Properties) -> bool | None:
        return (properties[name] == text) is (operator == "=") if name in properties else None

    return Tree(f"{name}{operator}{quoted(text)}", value)


def one_of(name: str, texts: list[str], negated: bool) -> Tree:
    def value(properties: Properties) -> bool | None:
        return (properties[name] in texts) is not negated if name in properties else None

    return Tree(f"{name} {'not ' * negated}in ({','.join(map(quoted, texts))})", value)


def contains(name: str, text: str, negated: bool) -> Tree:
    def value(properties: Properties) -> bool:
        return bool(text) and name in properties and (text in properties[name]) is not negated

    return Tree(f"{name} {'NOT ' * negated}CONTAINS {quoted(text)}", value)


def is_null(name: str, negated: bool) -> Tree:
    return Tree(f"{name} IS {'NOT ' * negated}NULL", lambda properties: (name not in properties) is not negated)


def negation(inner: Tree) -> Tree:
    def value(properties: Properties) -> bool | None:
        found = inner.value(properties)
        return None if found is None else not found

    return Tree(f"NOT ({inner.text})", value)


def joined(parts: list[Tree], keyword: str) -> Tree:
    """In RocketMQ's order: left to right, as far as the first part that decides."""
    decisive = keyword == "OR"

    def value(properties: Properties) -> bool | None:
        answer: bool | None = not decisive
        for part in parts:
            found = part.value(properties)
            if found is decisive:
                return decisive
            answer = None if found is None else answer
        return answer

    return Tree(f" {keyword} ".join(f"({part.text})" for part in parts), value)


def sum_of_products(rows: list[list[Tree]]) -> Tree:
    """`a AND b OR c AND d`, where only the precedence says what belongs together."""
    products = [joined(row, "AND") for row in rows]
    text = " OR ".join(" AND ".join(leaf.text for leaf in row) for row in rows)
    return Tree(text, joined(products, "OR").value)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


names = st.sampled_from(["a", "b", "c"])
texts = st.sampled_from(["", "3", "x", "it's", "7.5", "true"]) | st.text(max_size=3)
numbers = st.integers(-20, 20) | st.integers(-(10**10), 10**10) | st.sampled_from([0.0, -0.5, 7.5, 2.5e9, 1e-7])
leaves = st.one_of(
    st.builds(ordered, names, st.sampled_from(sorted(ORDERS)), numbers),
    st.builds(between, names, st.integers(-20, 20), st.integers(0, 30), st.booleans()),
    st.builds(equal_text, names, texts, st.sampled_from(["=", "<>"])),
    st.builds(one_of, names, st.lists(texts, min_size=1, max_size=6), st.booleans()),
    st.builds(contains, names, texts, st.booleans()),
    st.builds(is_null, names, st.booleans()),
)
trees = st.recursive(
    leaves | st.builds(sum_of_products, st.lists(st.lists(leaves, min_size=1, max_size=3), min_size=1, max_size=3)),
    lambda inner: (
        st.builds(negation, inner)
        | st.builds(joined, st.lists(inner, min_size=1, max_size=3), st.sampled_from(["AND", "OR"]))
    ),
    max_leaves=12,
)
values = st.sampled_from(["3", "-7", "7.5", "+12", "1e1", "0", "4000000000", "x", "", "it's", "true"])


@given(trees, st.dictionaries(names, values))
def test_a_compiled_tree_agrees_with_a_direct_evaluation(tree: Tree, properties: dict[str, str]) -> None:
    try:
        expected = tree.value(properties) is True
    except ValueError:  # float() of a text that is no number
        expected = False
    assert compile_sql_filter(tree.text, max_words=10_000).matches(properties) is expected


@given(
    st.text(max_size=40) | st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join), st.dictionaries(names, texts)
)
def test_any_text_compiles_or_is_refused_with_a_position(text: str, properties: dict[str, str]) -> None:
    answer: bool | str
    try:
        answer = compile_sql_filter(text, max_words=10_000).matches(properties)
    except FilterError as error:
        answer = error.message
    assert answer in (True, False) or "position" in str(answer)
