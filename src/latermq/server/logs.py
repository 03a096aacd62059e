"""Log output of a server process: text or JSON, one event per line, on standard error.

Log lines contain names and texts from clients. These are escaped and truncated, so that they cannot control a
terminal, start a new line or fill the disk.
"""

import itertools
import logging
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor

from latermq.config import LogConfig
from latermq.redaction import redacted
from latermq.visible_text import visible

_MAX_ENTRIES = 32  # shown of a list or mapping
_MAX_LEVELS = 8  # of nested lists and mappings; a traceback in JSON has five
# Without the values of variables, which may be message bodies or secrets.
_TRACEBACKS = structlog.tracebacks.ExceptionDictTransformer(show_locals=False, max_frames=_MAX_ENTRIES)
_TRACE_VALUES = 16  # the maximum length of a traceback, in maximum value lengths


def set_up_logs(config: LogConfig, part: str, *, stream: TextIO | None = None) -> None:
    """Send events of structlog and of the standard library, including asyncio, to one stream in one format."""
    stream = sys.stderr if stream is None else stream
    level = logging.getLevelNamesMapping()[config.level.upper()]
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=config.format == "json"),
        _PartName(part),
    ]
    renderers = _renderers(config, colors=stream.isatty())
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _renderers(config: LogConfig, *, colors: bool) -> list[Processor]:
    escaper = _ValueEscaper(config.max_value)
    if config.format == "json":
        return [structlog.processors.ExceptionRenderer(_TRACEBACKS), escaper, structlog.processors.JSONRenderer()]
    plain = structlog.dev.plain_traceback
    renderer = structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=0, exception_formatter=plain)
    return [structlog.processors.format_exc_info, escaper, renderer]


class _PartName:
    """Adds the process's part, to distinguish lines of several processes on one terminal."""

    def __init__(self, part: str) -> None:
        self._part = part

    def __call__(self, _logger: Any, _method: str, event: EventDict) -> EventDict:
        event["part"] = self._part
        return event


class _ValueEscaper:
    """Makes every value of an event safe to display: escapes it, and truncates it if it is long."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars

    def __call__(self, _logger: Any, _method: str, event: EventDict) -> EventDict:
        trace = event.get("exception")
        shown = {visible(key): self._escape(value) for key, value in event.items() if key != "exception"}
        if isinstance(trace, str):
            shown["exception"] = self._escape_trace(trace)
        elif trace is not None:
            shown["exception"] = self._escape(trace)
        return shown

    def _escape(self, value: object, level: int = 0) -> object:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self._truncate(value)
        if level < _MAX_LEVELS and isinstance(value, Mapping):
            entries = itertools.islice(value.items(), _MAX_ENTRIES)
            return {self._truncate(str(key)): self._escape(entry, level + 1) for key, entry in entries}
        if level < _MAX_LEVELS and isinstance(value, list | tuple | set | frozenset):
            shown = [self._escape(entry, level + 1) for entry in itertools.islice(value, _MAX_ENTRIES)]
            left = len(value) - len(shown)
            return [*shown, f"and {left} more"] if left else shown
        return self._truncate(repr(value))

    def _escape_trace(self, trace: str) -> str:
        """Mark the start of each line, since an error's text may contain lines that look like other events."""
        trace = redacted(trace)
        max_chars = _TRACE_VALUES * self._max_chars
        if len(trace) > max_chars:  # keep the end, which has the error
            trace = f"… {len(trace) - max_chars} characters …\n{trace[-max_chars:]}"
        return "\n".join(f"  | {visible(line)}" for line in trace.split("\n"))

    def _truncate(self, text: str) -> str:
        text = redacted(text)  # before truncation, which could leave part of a secret
        if len(text) <= self._max_chars:
            return visible(text)
        return f"{visible(text[: self._max_chars])}… ({len(text)} characters)"
