"""docs/operations.md names every setting with its real default, so that it cannot go stale."""

import re
from pathlib import Path

import msgspec
import pytest

from latermq.config import Config, load_config

PAGE = Path(__file__).resolve().parents[3] / "docs" / "operations.md"
# | `section.key` | `default` | meaning |
_ROW = re.compile(r"^\| `(\w+\.\w+)` \| (?:`([^`]*)`|empty) \| (.+) \|$", re.MULTILINE)


def _documented() -> dict[str, str]:
    return {key: default for key, default, _meaning in _ROW.findall(PAGE.read_text())}


def _settings() -> list[str]:
    return [
        f"{section.name}.{field.name}"
        for section in msgspec.structs.fields(Config)
        for field in msgspec.structs.fields(section.type)
    ]


def test_the_page_lists_every_setting_in_the_order_of_the_code() -> None:
    assert list(_documented()) == _settings()


@pytest.mark.parametrize("key", _settings())
def test_the_page_shows_the_default_as_it_could_be_written(key: str) -> None:
    section, name = key.split(".")
    written = load_config(settings=[f"{key}={_documented()[key]}"], environment={})
    assert getattr(getattr(written, section), name) == getattr(getattr(Config(), section), name)
