"""SQL92 filters: which messages an expression takes, and what is said about one that is wrong."""

import time
from dataclasses import FrozenInstanceError

import pytest

from latermq.errors import FilterError
from latermq.group.sql.filter import MAX_NUMBER_CHARS, SqlFilter, compile_sql_filter
from latermq.group.sql.parser import MAX_DEPTH, Node, parse_sql
from latermq.group.sql.tokens import tokenize

AND = "a=3 and b<>4 And c>5 AND d<=4"
OR = "a=3 or b<>4 Or c>5 OR d<=4"
LONG_MAX = 2**63 - 1


MAX_WORDS = 50_000


def compiled(expression: str) -> SqlFilter:
    return compile_sql_filter(expression, max_words=MAX_WORDS)


def parsed(expression: str) -> Node:
    return parse_sql(tokenize(expression, MAX_WORDS))


def matches(expression: str, **properties: str) -> bool:
    return compiled(expression).matches(properties)


def problem(expression: str) -> str:
    with pytest.raises(FilterError) as caught:
        compiled(expression)
    assert caught.value.code == 23
    assert not caught.value.retriable
    return caught.value.remark


@pytest.mark.parametrize("value", ["axb", "x", "axxb"])
@pytest.mark.parametrize(
    ("operator", "text"), [("contains", "x"), ("CONTAINS", "x"), ("startswith", "{}"), ("endsWith", "{}")]
)
def test_a_text_operator_finds_its_text_and_its_negation_does_not(operator: str, text: str, value: str) -> None:
    text = text.format(value[:1] if operator == "startswith" else value[-1:])
    assert matches(f"v {operator} '{text}'", v=value)
    assert not matches(f"v not {operator} '{text}'", v=value)
    assert matches(f"'{value}' {operator} '{text}'")


@pytest.mark.parametrize("operator", ["contains", "startswith", "endswith"])
@pytest.mark.parametrize("text", ["x", ".", "\\", "B"])
def test_a_text_that_is_not_there_is_lacked(operator: str, text: str) -> None:
    assert not matches(f"v {operator} '{text}'", v="abb")
    assert matches(f"v not {operator} '{text}'", v="abb")


@pytest.mark.parametrize("operator", ["contains", "startswith", "endswith"])
def test_a_text_operator_on_anything_but_a_string_or_with_an_empty_text_is_false_both_ways(operator: str) -> None:
    for negation in ("", "not "):
        assert not matches(f"v {negation}{operator} ''", v="axb")
        assert not matches(f"v {negation}{operator} 'x'")
        assert not matches(f"1.23 {negation}{operator} '1'")
        assert not matches(f"TRUE {negation}{operator} 'x'")
        assert not matches(f"(v = 'x') {negation}{operator} 'x'", v="x")
    assert matches(f"NOT (v {operator} 'x')"), "false, not unknown"
    assert matches(f"' ' {operator} ' '")


def test_all_kinds_of_condition_work_in_one_expression() -> None:
    for operator in ("contains", "startswith", "endswith"):
        expression = f"a not in ('4', '4', '5') and b between 3 and 10 and c not {operator} 'axbc'"
        assert matches(expression, a="3", b="3", c="axbdc")
        assert not matches(expression, a="4", b="3", c="axbdc")


def test_and_needs_every_part_and_or_needs_one() -> None:
    assert matches(AND, a="3", b="5", c="6", d="1")
    assert not matches(AND, a="4", b="5", c="6", d="1")
    assert matches(OR, a="3")
    assert matches(OR, a="4", b="5")
    assert matches(OR, a="4", b="4", c="6")
    assert matches(OR, a="4", b="4", c="3", d="2")
    assert not matches(OR, a="4", b="4", c="3", d="10")


def test_in_compares_strings() -> None:
    assert [v for v in ("3", "4", "5", "8", "3.0") if matches("a in ('3', '4', '5')", a=v)] == ["3", "4", "5"]
    assert [v for v in ("3", "4", "5", "8", "3.0") if matches("a NOT IN ('3', '4', '5')", a=v)] == ["8", "3.0"]
    assert matches("(((a))) in('x')", a="x")
    assert not matches("a in ('x')")
    assert not matches("a not in ('x')")


def test_between_includes_its_bounds() -> None:
    assert [n for n in range(13) if matches("a between 2 and 10", a=str(n))] == list(range(2, 11))
    assert [n for n in range(13) if matches("a not between 2 and 10", a=str(n))] == [0, 1, 11, 12]
    assert matches("a between low and high", a="3.14", low="3", high="4")
    assert not matches("a between up and low", a="3.14")
    assert not matches("a between up and low", a="3.14", up="up", low="low")
    assert matches("3 between a and 10", a="-1")
    assert not matches("a between 5 and -5", a="3")


def test_is_null_asks_whether_the_property_is_there() -> None:
    assert matches("a is null", abc="2")
    assert not matches("a is null", a="")
    assert matches("a IS NOT NULL", a="2")
    assert not matches("a is not null", abc="2")
    assert matches("a is null OR a='hello'")
    assert matches("a is null OR a='hello'", a="hello")
    assert not matches("a is null OR a='hello'", a="abc")
    assert not matches("a is not null and a='hello'")
    assert not matches("a is not null and a > 0")


def test_a_quote_in_a_string_is_written_twice() -> None:
    assert matches("TAGS is not null and TAGS='''''tag'''''", TAGS="''tag''")
    assert matches("a = 'two\nlines -- /* é */'", a="two\nlines -- /* é */")


def test_boolean_literals_read_a_property_as_true_or_anything_else() -> None:
    assert matches("a=TRUE OR b=FALSE", a="true", b="false")
    assert not matches("a=TRUE OR b=FALSE", a="false", b="true")
    assert matches("a = true", a="TRUE")
    assert matches("a = FALSE", a="hello")
    assert matches("TRUE = a", a="true")
    assert not matches("a = TRUE")
    assert not matches("a <> TRUE")


@pytest.mark.parametrize(
    ("expression", "properties", "expected"),
    [
        ("a > 3.1E10", {"a": "31415000000.0"}, True),
        ("a > 3.14", {"a": "3.1415"}, True),
        ("a > 3", {"a": "3.5"}, True),
        ("a = 3", {"a": "3.0"}, True),
        ("a = 3.0", {"a": "3"}, True),
        ("a > 100", {"a": "3000000000"}, True),
        ("a >= 9223372036854775807", {"a": str(LONG_MAX)}, True),
        ("a >= 9223372036854775807", {"a": str(LONG_MAX - 1)}, False),
        ("a > 9223372036854775807", {"a": "99999999999999999999"}, True),
        ("a = 5L AND a = 5l", {"a": "5"}, True),
        ("a = -5 AND a = - 5 AND a = +-5 AND a = - -(-5)", {"a": "-5"}, True),
        ("a = 7", {"a": "+007"}, True),
        ("a = 0.0 AND a < .5 AND a > -5. AND a < 5.E-1", {"a": "0"}, True),
        ("a < 0.5", {"a": " 2.5e-1d\t"}, True),
        ("a > 1", {"a": "Infinity"}, True),
        ("a > 1", {"a": "1e999"}, True),
        ("3 < a", {"a": "4"}, True),
        ("3 = 3.0 AND 2 < 2.5 AND '3' = 3 AND NOT (3 = TRUE)", {}, True),
    ],
)
def test_a_property_beside_a_number_is_read_as_a_number(
    expression: str, properties: dict[str, str], expected: bool
) -> None:
    assert matches(expression, **properties) is expected


@pytest.mark.parametrize("value", ["abc", "", "1_000", "١٢", "0x10", "NaN", "nan", "inf", "1 2", "--1", ".", "1e", "²"])
def test_a_property_that_is_no_number_ends_the_evaluation_without_a_match(value: str) -> None:
    for number in ("0", "0.5"):
        for condition in (f"a > {number}", f"a <= {number}", f"a = {number}", f"a <> {number}", f"{number} < a"):
            assert not matches(condition, a=value)
            assert not matches(f"NOT ({condition})", a=value)
            assert not matches(f"({condition}) IS NULL", a=value)
            assert not matches(f"{condition} OR b = 'x'", a=value, b="x")
            assert matches(f"b = 'x' OR {condition}", a=value, b="x"), "what stands behind a true part is not asked"
    assert not matches("a > b", a="1", b=value)


def test_two_properties_are_ordered_as_numbers_and_equal_as_strings() -> None:
    assert not matches("a > b", a="10", b="20")
    assert matches("a > b", a="20", b="10")
    assert matches("a > b", a="20", b="9.5")
    assert matches("a=b", a="3.14", b="3.14")
    assert not matches("a<>b", a="3.14", b="3.14")
    assert matches("a<>b", a="3.14", b="3.140")


def test_null_on_the_left_of_equal_is_unknown_and_on_the_right_false() -> None:
    assert not matches("a = b", b="1")
    assert not matches("a <> b", b="1")
    assert not matches("a = b", a="1")
    assert matches("a <> b", a="1")
    assert matches("a = b"), "two nulls are equal"
    assert matches("-a IS NULL", a="3"), "only a number literal has a negative"


@pytest.mark.parametrize(
    ("left", "right", "both", "either"),
    [
        ("TRUE", "TRUE", "TRUE", "TRUE"),
        ("TRUE", "FALSE", "FALSE", "TRUE"),
        ("TRUE", "NULL", "NULL", "TRUE"),
        ("FALSE", "FALSE", "FALSE", "FALSE"),
        ("FALSE", "NULL", "FALSE", "NULL"),
        ("NULL", "NULL", "NULL", "NULL"),
    ],
)
def test_logic_has_three_values(left: str, right: str, both: str, either: str) -> None:
    for first, second in ((left, right), (right, left)):
        for joined, expected in ((f"({first} AND {second})", both), (f"({first} OR {second})", either)):
            assert matches(joined) is (expected == "TRUE")
            assert matches(f"NOT {joined}") is (expected == "FALSE")
            assert matches(f"{joined} IS NULL") is (expected == "NULL")


def test_and_binds_tighter_than_or_and_not_tighter_than_anything() -> None:
    assert matches("a = 1 OR a = 1 AND b = 1", a="1")
    assert not matches("(a = 1 OR a = 1) AND b = 1", a="1")
    assert not matches("NOT a = 3", a="4"), "reads (NOT a) = 3, as in RocketMQ"
    assert matches("NOT (a = 3)", a="4")
    assert matches("NOT a", a="true"), "no string is a boolean"
    assert not matches("a", a="true")
    assert matches("a = 3 = TRUE AND a > 2 = TRUE", a="3")
    assert matches("a = 3 IS NULL")


def test_blanks_and_comments_separate_words() -> None:
    assert matches("a='x'and b=5or\tc\nis\r\fnull", a="x", b="5")
    assert matches("-- first\n a /* * */ = /***/ 'x' -- last", a="x")
    assert parsed(AND) == parsed(AND.replace(" ", "   ")) != parsed(OR)


def test_names_are_case_sensitive_and_may_hold_digits_underscores_and_dollars() -> None:
    assert matches("$a_1 = 'x' AND _ = 'y'", **{"$a_1": "x", "_": "y"})
    assert not matches("A = 'x'", a="x")
    assert matches("a <= now", a="1", now="2")
    assert matches("android = 'x' AND inner = 'y'", android="x", inner="y")


@pytest.mark.parametrize(
    ("expression", "position", "said"),
    [
        ("", 1, "end of the expression"),
        ("  -- nothing", 13, "end of the expression"),
        ("a and between 2 and 10", 7, "between"),
        ("a > 100000000000000000000000", 5, str(LONG_MAX)),
        ("a = 9223372036854775808", 5, str(LONG_MAX)),
        ("a > " + "1" * 400 + ".0", 5, "double"),
        ("a > 1e400", 5, "double"),
        ("a > 1e-400", 5, "too small"),
        ("a = 007", 5, "leading zeros"),
        ("a between 10 and 0", 3, "lower bound first"),
        ("a between 1 or 2", 13, "expected AND"),
        ("value contains x", 16, "string in single quotes"),
        ("value not contains 123", 20, "string in single quotes"),
        ("'axb' contains ", 16, "string in single quotes"),
        ("a in ()", 7, "string in single quotes"),
        ("a in (1)", 7, "string in single quotes"),
        ("a in ('x' 'y')", 11, "',' or ')'"),
        ("a in 'x'", 6, "'(' after IN"),
        ("'a' in ('x')", 5, "property"),
        ("a != 3", 3, "<>"),
        ('a = "x"', 5, "single quotes"),
        ("a = 'x", 5, "unterminated string"),
        ("a = 'x''", 5, "unterminated string"),
        ("a = 1 /* x", 7, "unterminated comment"),
        ("a = 1 / 2", 7, "arithmetic"),
        ("a = é", 5, "'é'"),
        ("a like 'x%'", 3, "CONTAINS"),
        ("a = 1 garbage", 7, "garbage"),
        ("a = 1;", 6, "';'"),
        ("a = 1)", 6, ")"),
        ("(a = 1", 7, "')'"),
        ("a is 3", 6, "NULL or NOT NULL"),
        ("a is not 3", 10, "NULL"),
        ("a not = 3", 7, "after NOT"),
        ("a = ", 5, "property, a literal"),
        ("a = NULL", 3, "IS NULL"),
        ("TRUE = 3", 6, "boolean"),
        ("a > 'x'", 3, "order"),
        ("a > TRUE", 3, "order"),
        ("a > 3 > 2", 7, "order"),
        ("a between 'x' and 'y'", 3, "order"),
        ("NOT a > 3", 7, "order"),
        ("3", 1, "condition"),
        ("a = 1 AND 'x'", 11, "condition"),
        ("-a", 1, "condition"),
        ("NOT 3 = TRUE", 1, "condition"),
    ],
)
def test_an_error_names_the_position_and_what_is_wrong(expression: str, position: int, said: str) -> None:
    text = problem(expression)
    assert f"position {position}," in text
    assert said in text


def test_an_error_does_not_repeat_a_long_token() -> None:
    assert len(problem("a = 1 '" + "x" * 5000 + "'")) < 200


def test_an_expression_has_a_bounded_number_of_words() -> None:
    assert compile_sql_filter("a = 1 /* no word */ -- none", max_words=3).words == 4, "the end is one"
    for expression in ("a = 1", "(a)", "a IN ('x')", "a AND ("):
        with pytest.raises(FilterError, match="max_expression_words") as caught:
            compile_sql_filter(expression, max_words=2)
        assert caught.value.code == 23


def test_a_search_counts_as_many_words_since_it_may_cost_as_much() -> None:
    searches = " OR ".join(["a CONTAINS 'x'"] * 10)
    assert compile_sql_filter(searches, max_words=189).searches == 10
    with pytest.raises(FilterError, match="max_expression_words"):
        compile_sql_filter(searches, max_words=188)


@pytest.mark.parametrize("text", ["x", "ab" * 3, "a" * 49 + "b" + "a" * 49, "a" * 500 + "b", "a" * 30_000])
def test_a_text_is_found_in_long_properties_too(text: str) -> None:
    for filling in ("a" * 32_000, "ab" * 16_000, "\0" * 3_000, ""):
        assert matches(f"v CONTAINS '{text}'", v=filling + text + filling)
        assert not matches(f"v CONTAINS '{text}.'", v=filling + text + filling)
        for end in "\0\1 ~":
            assert not matches(f"v CONTAINS '{text}{end * 100}'", v=f".{text}{end * 99}.{text}")
            assert not matches(f"v CONTAINS '{text}{end * 100}'", v=filling + text + end * 99)


@pytest.mark.parametrize("value_chars", [600, 2_499, 2_500, 9_000, 29_999, 32_000])
@pytest.mark.parametrize("text_chars", [5, 99, 100, 160, 1_200, 2_600, 20_000])
def test_no_search_takes_long(text_chars: int, value_chars: int) -> None:
    """The most awkward texts for Python's own search, in one filter as many as it may have."""
    half = text_chars // 2
    texts = [f"{'a' * half}{chr(98 + number % 20)}{'a' * half}" for number in range(min(100, 60_000 // text_chars))]
    made = compile_sql_filter(" OR ".join(f"v CONTAINS '{text}'" for text in texts), max_words=2_048)
    began_s = time.process_time()
    for _ in range(100 if value_chars <= 2_500 else 30 if text_chars == 99 else 3):
        assert not made.matches({"v": "a" * value_chars})
    assert time.process_time() - began_s < 1.0, "where it is quadratic, it takes seconds"


@pytest.mark.parametrize("padding", [" ", "0", "\x00"])
def test_a_number_has_a_bounded_length(padding: str) -> None:
    assert matches("a = 1", a="1".rjust(MAX_NUMBER_CHARS, padding))
    assert not matches("a = 1", a="1".rjust(MAX_NUMBER_CHARS + 1, padding))
    assert not matches("a <> 1", a="1".rjust(MAX_NUMBER_CHARS + 1, padding))


@pytest.mark.parametrize(
    ("left", "core", "right"),
    [
        ("(", "a = 1", ")"),
        ("NOT ", "TRUE", ""),
        ("- ", "1", " = a"),
        ("+ ", "1", " = a"),
        ("", "a", " IS NULL"),
        ("", "a", " = b"),
        ("", "a", " CONTAINS 'x'"),
        ("a = 1 OR b = 2 AND c = (", "TRUE", ")"),
        ("(", "a", " = b = b = b = b)"),
    ],
)
def test_nesting_is_bounded_long_before_the_stack_is(left: str, core: str, right: str) -> None:
    assert "nested deeper" in problem((left * 1500) + core + (right * 1500))


def test_the_deepest_expressions_compile_and_match() -> None:
    assert matches("(" * MAX_DEPTH + "a = 1" + ")" * MAX_DEPTH, a="1")
    assert matches("NOT " * (MAX_DEPTH - 1) + "FALSE") is (MAX_DEPTH % 2 == 0)
    levels = MAX_DEPTH // 3  # each adds an OR, an AND and an '='
    assert matches("a = 1 OR b = 2 AND TRUE = (" * levels + "a = 3" + ")" * levels, a="3", b="2")
    assert not matches("a = 1 OR b = 2 AND TRUE = (" * levels + "a = 3" + ")" * levels, a="4", b="2")


def test_thousands_of_parts_side_by_side_are_not_nesting() -> None:
    assert matches(" OR ".join(f"a = {n}" for n in range(5000)), a="4999")
    assert matches("(" * 90 + " OR b = 1)".join(["a = 1"] + [""] * 90), b="1")


def test_a_filter_keeps_its_expression_and_cannot_be_changed() -> None:
    made = compiled("a = 1")
    assert made.expression == "a = 1"
    assert made == compiled("a = 1") != compiled("a  = 1")
    assert isinstance(made, SqlFilter)
    with pytest.raises(FrozenInstanceError):
        made.expression = "a = 2"  # type: ignore[misc]
