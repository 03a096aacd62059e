"""Log lines of a server process: what they hold and which are left out."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from latermq.config import LogConfig
from latermq.server.logs import set_up_logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_are_one_object_each_and_name_the_part(stream: io.StringIO) -> None:
    set_up_logs(LogConfig(format="json"), "broker", stream=stream)
    structlog.get_logger().info("segment removed", start=0, reason="age")
    logging.getLogger("asyncio").warning("slow %s", "callback")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["event"], first["level"], first["part"], first["start"]) == ("segment removed", "info", "broker", 0)
    assert (second["event"], second["level"], second["part"]) == ("slow callback", "warning", "broker")
    assert first["timestamp"].endswith("Z")


def test_text_lines_hold_the_same(stream: io.StringIO) -> None:
    set_up_logs(LogConfig(), "broker", stream=stream)
    structlog.get_logger().warning("disk is nearly full", used=0.86)
    (line,) = stream.getvalue().splitlines()
    assert "warning" in line
    assert "disk is nearly full" in line
    assert "used=0.86" in line
    assert "part=broker" in line


def test_what_is_below_the_level_is_left_out(stream: io.StringIO) -> None:
    set_up_logs(LogConfig(level="warning"), "broker", stream=stream)
    structlog.get_logger().info("not this")
    logging.getLogger("latermq").info("nor this")
    structlog.get_logger().error("but this")
    assert len(stream.getvalue().splitlines()) == 1


def test_an_exception_keeps_its_trace_in_both_formats(stream: io.StringIO) -> None:
    for format_ in ("json", "text"):
        set_up_logs(LogConfig(format=format_), "broker", stream=stream)
        try:
            raise ValueError("torn")
        except ValueError:
            structlog.get_logger().exception("flush failed")
        assert "torn" in stream.getvalue()
        assert "test_logs.py" in stream.getvalue()
        stream.truncate(0)
        stream.seek(0)
