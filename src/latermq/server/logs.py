"""Log lines of a server process: text or JSON, one event a line, on standard error."""

import logging
import sys
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor

from latermq.config import LogConfig
from latermq.redaction import redacted


def set_up_logs(config: LogConfig, part: str, *, stream: TextIO | None = None) -> None:
    """Send structlog's events and those of the standard library, asyncio's among them, to one stream in one format."""
    stream = sys.stderr if stream is None else stream
    level = logging.getLevelNamesMapping()[config.level.upper()]
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=config.format == "json"),
        _PartName(part),
    ]
    rendering = _rendering(config, colors=stream.isatty())
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _rendering(config: LogConfig, *, colors: bool) -> list[Processor]:
    if config.format == "json":
        return [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer(), _redact]
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=0, exception_formatter=plain), _redact]


def _redact(_logger: Any, _method: str, line: Any) -> Any:
    """Behind everything that makes text: tracebacks repeat what they were called with."""
    return redacted(line)


class _PartName:
    """Tells the lines of several processes on one terminal apart."""

    def __init__(self, part: str) -> None:
        self._part = part

    def __call__(self, _logger: Any, _method: str, event: EventDict) -> EventDict:
        event["part"] = self._part
        return event
