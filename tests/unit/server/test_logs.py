"""Log lines of a server process: what they hold and which are left out."""

import io
import json
import logging
from typing import Literal

import pytest
import structlog

from latermq.config import LogConfig
from latermq.server.logs import set_up_logs
from tests.support.log_stream import stream as stream  # a fixture


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


NASTY = "orders\x1b[2J\n2026-01-01T00:00:00 [error    ] all is lost part=broker\r\x9b31m\u202eevil\u2028\ud800"


@pytest.mark.parametrize("format_", ["json", "text"])
def test_what_a_client_calls_itself_neither_steers_the_terminal_nor_makes_a_line(
    stream: io.StringIO, format_: Literal["json", "text"]
) -> None:
    set_up_logs(LogConfig(format=format_), "broker", stream=stream)
    structlog.get_logger().warning(
        f"refused {NASTY}", topic=NASTY, names=[NASTY, {NASTY: NASTY.encode("utf-8", "replace")}]
    )
    logging.getLogger("asyncio").warning("slow %s", NASTY)
    first, second = stream.getvalue().split("\n")[:-1]
    for line in (first, second):
        assert line.isprintable()
        assert "\\x1b[2J" in line
        assert "\\u202e" in line


def test_a_long_value_is_cut_and_its_length_is_reported(stream: io.StringIO) -> None:
    set_up_logs(LogConfig(format="json", max_value=100), "broker", stream=stream)
    structlog.get_logger().info(
        "x" * 5_000, topic="y" * 1_000_000, names=["z"] * 5_000, many={n: n for n in range(900)}
    )
    line = json.loads(stream.getvalue())
    assert line["event"] == "x" * 100 + "… (5000 characters)"
    assert line["topic"] == "y" * 100 + "… (1000000 characters)"
    assert line["names"] == ["z"] * 32 + ["and 4968 more"]
    assert len(stream.getvalue()) < 2_000


@pytest.mark.parametrize("format_", ["json", "text"])
def test_the_text_of_an_error_makes_no_line_that_looks_like_another_event(
    stream: io.StringIO, format_: Literal["json", "text"]
) -> None:
    set_up_logs(LogConfig(format=format_, max_value=200), "broker", stream=stream)
    secret = "hidden in a variable"  # noqa: F841
    try:
        raise ValueError(NASTY + "x" * 100_000)
    except ValueError:
        structlog.get_logger().exception("a request failed")
    event, *trace = stream.getvalue().split("\n")[:-1]
    assert "a request failed" in event
    assert all(line.startswith("  | ") for line in trace)
    assert all(line.isprintable() for line in (event, *trace))
    assert len(stream.getvalue()) < 5_000
    if format_ == "json":
        assert "hidden" not in stream.getvalue()
