"""The process that reads the timeline for the console: started when it is needed, ended when it is idle or fails."""

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from latermq.config import HttpConfig
from latermq.http.problems import HttpError
from latermq.pipeline.timeline.far_reads import LENGTH, MAX_FRAME_BYTES, Reply, Request
from latermq.processes import describe_exit, end_worker, start_worker

WATCH_EVERY_S = 0.1  # its memory
KEPT_SHARE = 4  # this part of its memory may be counts that it keeps for the next reads
_KEPT_BYTES = 1 << 12  # of its other output, for the log
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_log = structlog.get_logger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decode_reply = msgspec.msgpack.Decoder(Reply).decode

Result = TypeVar("Result")


class TimelineUnavailable(HttpError):
    """The console cannot read the timeline of the brokers."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(HTTPStatus.SERVICE_UNAVAILABLE, message, hint=hint)


class TimelineProcess:
    """Reads one after another. One that takes too long or too much memory ends the process; the next starts another."""

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._lock = asyncio.Lock()
        self._process: Process | None = None
        self._last_words: asyncio.Task[bytes] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._is_closed = False
        self._waiting = 0
        self._starts = 0

    def command(self) -> Sequence[str]:
        kept_bytes = self._config.timeline_memory // KEPT_SHARE
        module = "latermq.pipeline.timeline.read_process"
        return [sys.executable, "-m", module, str(os.getpid()), str(kept_bytes)]

    def statistics(self) -> dict[str, int]:
        """Reads that wait or run, starts of the process, and its memory."""
        return {
            "timeline_reads": self._waiting,
            "timeline_starts": self._starts,
            "timeline_memory": _resident_bytes(self._process),
        }

    async def read(self, request: Request, kind: type[Result]) -> Result:
        """Return the answer, which is of this type. May raise TimelineUnavailable."""
        if self._waiting >= self._config.max_timeline_reads:
            raise TimelineUnavailable(
                f"{self._waiting} reads of the timeline wait, the limit is http.max_timeline_reads",
                hint="Try again a moment later",
            )
        self._waiting += 1
        try:
            async with asyncio.timeout(self._config.timeline_timeout / 1000), self._lock:
                reply = await self._ask(request)
        except TimeoutError:
            raise TimelineUnavailable(
                f"the timeline was not read within {self._config.timeline_timeout} ms",
                hint="Ask for a shorter span, or raise http.timeline_timeout",
            ) from None
        finally:
            self._waiting -= 1
        return _result(reply, kind)

    async def close(self) -> None:
        """End the process, and refuse further reads."""
        self._is_closed = True
        if self._idle is not None:
            self._idle.cancel()
        if self._ending is not None:
            await self._ending
        await self._end()

    async def _ask(self, request: Request) -> Reply:
        if self._idle is not None:
            self._idle.cancel()
        if self._ending is not None:
            await asyncio.shield(self._ending)
        process = await self._running()
        try:
            reply = await self._exchange(process, _encode(request))
        except BaseException:  # it may still work on the request, or be half through an answer
            await self._end()
            raise
        self._idle = asyncio.get_running_loop().call_later(self._config.timeline_idle / 1000, self._retire)
        return reply

    async def _running(self) -> Process:
        if self._is_closed:
            raise TimelineUnavailable("the console is stopping", hint="Try again a moment later")
        if not _resident_bytes(self._process):  # it may have died just now, which asyncio does not know yet
            await self._end()
        if self._process is None:
            self._starts += 1
            self._process = await start_worker(self.command(), has_requests=True)
            self._last_words = asyncio.create_task(_end_of_output(self._process))
        return self._process

    async def _exchange(self, process: Process, request: bytes) -> Reply:
        exchange = asyncio.create_task(_send_and_receive(process, request))
        try:
            while not (await asyncio.wait([exchange], timeout=WATCH_EVERY_S))[0]:
                if _resident_bytes(process) > self._config.timeline_memory:
                    raise TimelineUnavailable(
                        "reading the timeline took more memory than http.timeline_memory allows",
                        hint="Ask for a shorter span or a smaller page, or raise the setting",
                    )
            return _decode_reply(exchange.result())
        except (OSError, EOFError):  # EOFError: also an answer that is incomplete
            raise await self._death(process) from None
        finally:
            exchange.cancel()

    async def _death(self, process: Process) -> TimelineUnavailable:
        how = describe_exit(await process.wait())
        words = await self._last_words if self._last_words is not None else b""
        _log.warning("the process that reads the timeline ended", reason=how, output=words.decode(errors="replace"))
        return TimelineUnavailable(f"the process that reads the timeline ended: {how}", hint="Try again")

    def _retire(self) -> None:
        """End the process because it is idle."""
        if self._waiting == 0:
            self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        process, words, self._process, self._last_words = self._process, self._last_words, None, None
        if process is not None:
            await end_worker(process)
        if words is not None:
            words.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await words


async def _send_and_receive(process: Process, request: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(LENGTH.pack(len(request)) + request)
    await process.stdin.drain()
    [size_bytes] = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
    if size_bytes > MAX_FRAME_BYTES:
        raise TimelineUnavailable(f"the answer has {size_bytes} bytes", hint="Ask for a smaller page")
    return await process.stdout.readexactly(size_bytes)


async def _end_of_output(process: Process) -> bytes:
    """Read what the process prints, so that it never waits, and return the end of it."""
    assert process.stderr is not None
    kept = b""
    while read := await process.stderr.read(_KEPT_BYTES):
        kept = (kept + read)[-_KEPT_BYTES:]
    return kept


def _result(reply: Reply, kind: type[Result]) -> Result:
    if reply.lacks_packages:
        raise TimelineUnavailable(
            "the console has no packages to read the timeline", hint="Install latermq[pipeline] there"
        )
    if reply.error:  # it may name files, and an address with credentials
        _log.warning("the timeline cannot be read", error=reply.error, hint=reply.hint)
        raise TimelineUnavailable("the timeline cannot be read", hint="See the log of the console, and try again")
    return msgspec.msgpack.decode(reply.answer, type=kind)


def _resident_bytes(process: Process | None) -> int:
    """Return its memory, 0 if it has ended."""
    if process is None or process.returncode is not None:
        return 0
    try:
        return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0
