"""The audit log of a process: takes records on the event loop, and writes them on a thread.

Administrative requests and counts have a file each, so that a flood of data requests, which anyone can cause, does not
push out what administrators did. A full disk never stops the process: lines wait up to a bound, and are then counted
as lost.
"""

import asyncio
import contextlib
import fcntl
import itertools
import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

import structlog

from latermq.audit.counters import Counters, Tally
from latermq.audit.records import AuditedAccess, CountKey, Result, encode_counts, encode_request
from latermq.audit.rotated_file import RotatedFile
from latermq.clock import Clock
from latermq.config import AuditConfig
from latermq.errors import ConfigError

FOLDER = "audit"
# Per user, result and interval, of requests that are refused or need no administrator; further ones are only counted.
MAX_BOUNDED_LINES = 100
_RETRY_S = 1.0
_LOG_EVERY_S = 60.0
_STOP_TIMEOUT_S = 5.0
_LINES_AT_ONCE = 64  # a file may be so much longer than its limit
NO_AUDIT = {"audit_waiting": 0, "audit_lost": 0, "audit_counters": 0}
_log = structlog.get_logger(__name__)

_Item = bytes | tuple[int, int, dict[CountKey, int]]  # a line, or counts with the begin and end of their interval


class AuditLog:
    """The audit log. `start` and `stop` it once each; all methods are called on the event loop."""

    def __init__(self, config: AuditConfig, folder: Path, part: str, clock: Clock) -> None:
        """`part` names the process in lines; its first word names the files. Raises ConfigError."""
        name = part.partition(" ")[0]
        self._part = part
        self._clock = clock
        self._max_waiting = config.max_waiting
        self._flush_every_s = config.flush_every / 1000
        self._lock = _locked(folder, name)
        bounds = int(config.file_size), config.files
        self._requests = RotatedFile(folder / f"{name}.jsonl", *bounds)
        self._counts = RotatedFile(folder / f"{name}-counts.jsonl", *bounds)
        self.counters = Counters(config.max_counters, self._put_counts)
        self._since_ms = clock.now_ms()
        self._bounded: dict[tuple[str, Result], int] = {}
        self._items: deque[_Item] = deque()
        self._waiting = 0  # lines, not items
        self._lost = 0
        self._state = threading.Condition()  # guards the three above
        self._is_stopping = False
        self._logged_s = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._thread = threading.Thread(target=self._run, name="latermq-audit", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()
        self._schedule()

    def stop(self) -> None:
        """Write what is left, as far as the disk takes it."""
        if self._timer is not None:
            self._timer.cancel()
        self.flush()
        with self._state:
            self._is_stopping = True
            self._state.notify()
        if self._thread.is_alive():
            self._thread.join(_STOP_TIMEOUT_S)
        with contextlib.suppress(OSError):
            os.close(self._lock)

    def note(
        self,
        *,
        user: str,
        source: str,
        request: str,
        access: Iterable[AuditedAccess] = (),
        result: Result,
        reason: str = "",
        details: Mapping[str, str] | None = None,
        is_bounded: bool = False,
    ) -> None:
        """Record one administrative request, or with `is_bounded` one that users make all the time."""
        if result == "refused" or is_bounded:
            number = self._bounded[user, result] = self._bounded.get((user, result), 0) + 1
            if number > MAX_BOUNDED_LINES:
                self.counters.add(CountKey(user, source, request, "", result, reason=reason))
                return
        line = encode_request(
            self._part,
            self._clock.now_ms(),
            user=user,
            source=source,
            request=request,
            access=access,
            result=result,
            reason=reason,
            details=details or {},
        )
        self._put(line, 1)

    def count(self, key: CountKey) -> None:
        """Count one request."""
        self.counters.add(key)

    def tally(self, key: CountKey) -> Tally:
        """A counter for many requests of one kind."""
        return self.counters.tally(key)

    def flush(self) -> None:
        """Write the counts of the interval that ends now."""
        self.counters.flush()
        self._since_ms = self._clock.now_ms()
        self._bounded.clear()

    def statistics(self) -> dict[str, int]:
        """Lines that wait for the disk, and lines that were lost."""
        with self._state:
            return {
                "audit_waiting": self._waiting,
                "audit_lost": self._lost,
                "audit_counters": len(self.counters),
            }

    def _schedule(self) -> None:
        def run() -> None:
            self.flush()
            self._schedule()

        self._timer = asyncio.get_running_loop().call_later(self._flush_every_s, run)

    def _put_counts(self, counts: dict[CountKey, int]) -> None:
        now_ms = self._clock.now_ms()
        self._put((self._since_ms, now_ms, counts), len(counts))

    def _put(self, item: _Item, lines: int) -> None:
        with self._state:
            if self._waiting + lines > self._max_waiting:
                self._lost += lines
                return
            self._items.append(item)
            self._waiting += lines
            self._state.notify()

    # On the thread.

    def _run(self) -> None:
        while True:
            with self._state:
                while not self._items and not self._is_stopping:
                    self._state.wait()
                if not self._items:
                    break
                items = self._next_items()
            try:
                self._write(items)
            except OSError as error:  # of a full disk, for example: the same items are tried again
                self._log_failure(error)
                with self._state:
                    if self._is_stopping:
                        self._lost += self._waiting
                        break
                    self._state.wait_for(lambda: self._is_stopping, _RETRY_S)
        self._requests.close()
        self._counts.close()

    def _next_items(self) -> list[_Item]:
        """The oldest items that are written together: counts, or some lines."""
        lines = itertools.islice(itertools.takewhile(lambda item: isinstance(item, bytes), self._items), _LINES_AT_ONCE)
        return list(lines) or [self._items[0]]

    def _write(self, items: list[_Item]) -> None:
        lines = [item for item in items if isinstance(item, bytes)]
        if lines:
            self._requests.append(b"".join(lines), sync=True)
        for item in items:
            if not isinstance(item, bytes):
                self._write_counts(*item)
        with self._state:
            for _ in items:
                self._items.popleft()
            self._waiting -= len(lines)

    def _write_counts(self, since_ms: int, until_ms: int, counts: dict[CountKey, int]) -> None:
        """Write counts in parts, and drop each part as soon as it is written."""
        while counts:
            some = dict(itertools.islice(counts.items(), _LINES_AT_ONCE))
            self._counts.append(b"".join(encode_counts(self._part, since_ms, until_ms, some)), sync=False)
            for key in some:
                del counts[key]
            with self._state:
                self._waiting -= len(some)

    def _log_failure(self, error: OSError) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._logged_s < _LOG_EVERY_S:
            return
        self._logged_s = now_s
        with self._state:
            waiting, lost = self._waiting, self._lost
        _log.error(
            "the audit log cannot be written",
            reason=error.strerror or str(error),
            waiting=waiting,
            lost=lost,
            hint="Requests are served. Free disk space, or set audit.folder to another disk",
        )


def _locked(folder: Path, name: str) -> int:
    """Make sure that no other process writes the same files. The lock ends with the process."""
    path = folder / f"{name}.lock"
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(
            f"cannot write the audit log in {folder}: {error.strerror}",
            hint="Set audit.folder to a folder that this process can write, or audit.enabled to false",
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ConfigError(
            f"another process writes the audit log {folder / name}.jsonl",
            hint="Give each process a folder of its own in audit.folder",
        ) from None
    return lock


def open_audit(config: AuditConfig, data: Path, part: str, clock: Clock) -> AuditLog | None:
    """The audit log of a process, or None if it is off. `data` is the directory for the default folder."""
    if not config.enabled:
        return None
    folder = Path(config.folder).absolute() if config.folder else data.absolute() / FOLDER
    return AuditLog(config, folder, part, clock)
