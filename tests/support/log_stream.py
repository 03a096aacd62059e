"""A stream to set up logs on; afterwards logging is as it was before."""

import io
import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
