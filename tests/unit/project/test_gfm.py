"""Pages written for GitHub look the same on the site: lists, nested lists, tables and code in lists."""

import markdown
import pytest

from scripts.site.gfm import adapt

EXTENSIONS = ["tables", "pymdownx.superfences"]


def html(text: str) -> str:
    return "".join(markdown.markdown(adapt(text), extensions=EXTENSIONS).split("\n"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Text:\n- a\n- b", "<p>Text:</p><ul><li>a</li><li>b</li></ul>"),
        ("Text:\n1. a\n2. b", "<p>Text:</p><ol><li>a</li><li>b</li></ol>"),
        ("- a\n  - b\n- c", "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>"),
        ("1. a\n   - b", "<ol><li>a<ul><li>b</li></ul></li></ol>"),
        ("- a\n  continued\n- b", "<ul><li>acontinued</li><li>b</li></ul>"),
        ("- a\n\nText", "<ul><li>a</li></ul><p>Text</p>"),
    ],
)
def test_lists(text: str, expected: str) -> None:
    assert html(text).replace("    ", "").replace("  ", "") == expected


def test_a_table_may_follow_a_line_of_text() -> None:
    assert "<table>" in html("Text:\n| a | b |\n|---|---|\n| 1 | 2 |")


def test_code_in_a_list_keeps_its_indentation() -> None:
    text = "- a\n\n  ```text\n  x\n    y\n  ```\n- b"
    found = markdown.markdown(adapt(text), extensions=EXTENSIONS)
    assert "x\n  y" in found
    assert found.count("<li>") == 2


def test_list_markers_in_code_are_no_lists() -> None:
    text = "```text\nnote\n- a\n| b |\n```"
    assert adapt(text) == text
