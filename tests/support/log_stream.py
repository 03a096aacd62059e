"""A stream for log output in a test. The logging configuration is restored afterwards."""

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
