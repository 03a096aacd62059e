"""Untrusted text on a terminal: control characters and invisible characters are escaped."""

import io
import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latermq.cli.output import print_error, print_fields, print_json, print_line, print_note, print_rows
from latermq.visible_text import visible, visible_json

UNSAFE = "a\x1b[2Jb\x07\x7f\x9b1m\u202ec\u2066d\u200be\u2028f\u2029g\ud800h\ti\nj\rk\ufeffl\U000e0041"
ESCAPED = (
    r"a\x1b[2Jb\x07\x7f\x9b1m\u202ec\u2066d\u200be\u2028f\u2029g\ud800h\ti\nj\rk\ufeffl\U000e0041"
)  # fmt: skip


def test_every_control_or_invisible_character_is_escaped() -> None:
    assert visible(UNSAFE) == ESCAPED
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, formats, surrogates, separators of lines and paragraphs
    # Visible signs before digits, musical notes and hieroglyphs.
    seen = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
    for number in range(0x110000):
        is_hidden = unicodedata.category(chr(number)) in hidden and number not in seen
        if is_hidden and not 0x13430 <= number < 0x13460 and not 0x1BCA0 <= number < 0x1D180:
            assert visible(chr(number)) != chr(number), f"U+{number:04X}"


@pytest.mark.parametrize("text", ["orders", "größe", "订单", "заказ", "طلب", "❤️ 🙂", "C:\\new", '{"a": "b"}'])
def test_visible_text_is_unchanged(text: str) -> None:
    assert visible(text) == text
    assert visible_json(text) == text


@given(st.text(alphabet=st.characters(), max_size=50))
def test_escaped_json_has_the_same_meaning(text: str) -> None:
    escaped = visible_json(json.dumps({"a": text}, ensure_ascii=False))
    assert json.loads(escaped) == {"a": text}
    assert visible(escaped) == escaped


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    out, errors = capsys.readouterr()
    return out + errors


def test_every_print_function_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    row: dict[str, Any] = {"name": UNSAFE, "keys": [UNSAFE], "properties": {UNSAFE: UNSAFE}}
    print_rows([row], {"name": UNSAFE, "keys": "keys", "properties": "properties"}, as_json=False, empty="")
    print_fields(row, as_json=False)
    print_line(UNSAFE)
    print_note(UNSAFE)
    print_error(UNSAFE, UNSAFE)
    output = printed(capsys)
    assert all(line.isprintable() for line in output.split("\n"))
    assert output.replace("\n", "").replace(" ", "").count(ESCAPED.replace(" ", "")) >= 9
    print_rows([row], {}, as_json=True, empty="")
    print_json(row)
    output = printed(capsys)
    assert all(line.isprintable() for line in output.split("\n"))
    assert [json.loads(line) for line in output.splitlines()] == [row, row]


def test_raw_output_is_not_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    text = "a\x1b[31mb\x9bc"
    print_line(text, raw=True)
    print_fields({"body": text}, as_json=False, raw=True)
    assert printed(capsys).count(text) == 2
    print_line("half \ud800", raw=True)
    assert printed(capsys) == "half \\ud800\n"


def test_a_utf8_stream_gets_escaped_text(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(out, encoding="utf-8"))
    print_line(UNSAFE)
    assert out.getvalue().decode() == ESCAPED + "\n"
