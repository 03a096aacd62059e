"""Adapts pages written for GitHub to Python-Markdown, which wants blank lines before lists and tables.

It also wants four spaces for each level of a list, where GitHub is content with the width of the marker.
"""

import re

_FENCE = re.compile(r"^ *(```|~~~)")
_ITEM = re.compile(r"^( *)([-*]|\d+\.) +")
_ROW = re.compile(r"^ *\|")
_INDENT = 4


def adapt(text: str) -> str:
    """The same page, as Python-Markdown reads it."""
    lines: list[str] = []
    levels: list[int] = []  # the columns at which the content of the open list items begins
    fence = ""
    shift = 0  # of the lines of a fence in a list
    for line in text.split("\n"):
        if fence:
            lines.append(_shifted(line, shift))
            if line.strip() == fence:
                fence = ""
            continue
        item, width = _ITEM.match(line), len(line) - len(line.lstrip())
        if line.strip() and not item:
            levels = [level for level in levels if level <= width] if width or _is_blank(lines) else levels
        if item:
            levels = [level for level in levels if level <= width]
        depth = len(levels)
        shift = _INDENT * depth - (levels[-1] if levels else 0) if width or item else 0
        found = _FENCE.match(line)
        if found:
            fence = found[1]
        starts_block = (item and not _in_list(lines)) or (_ROW.match(line) and not _in_table(lines))
        if starts_block and lines and not _is_blank(lines):
            lines.append("")
        lines.append(_shifted(line, shift) if line.strip() else "")
        if item:
            levels.append(item.end())
    return "\n".join(lines)


def _shifted(line: str, shift: int) -> str:
    return " " * shift + line if shift >= 0 else line[min(-shift, len(line) - len(line.lstrip())) :]


def _is_blank(lines: list[str]) -> bool:
    return not lines or not lines[-1].strip()


def _in_list(lines: list[str]) -> bool:
    """Whether the lines above belong to a list: up to the last blank line there is an item."""
    for line in reversed(lines):
        if not line.strip():
            return False
        if _ITEM.match(line):
            return True
    return False


def _in_table(lines: list[str]) -> bool:
    return bool(lines) and bool(_ROW.match(lines[-1]))
