"""Many timers in one request: one JSON object per line, and one result per line."""

import asyncio
import hashlib
import os
from http import HTTPStatus

import msgspec

from latermq.access.resources import PUB
from latermq.client.scheduling.rows import Row
from latermq.client.scheduling.scheduler import TimerScheduler
from latermq.config import HttpConfig
from latermq.errors import LaterMQError
from latermq.http.api.timers import IDEMPOTENCY_KEY, idempotency_key
from latermq.http.brokers import Brokers
from latermq.http.endpoint import NDJSON, Answer, Call, Endpoint, decode_json
from latermq.http.problems import HttpError, Problem, problem_of
from latermq.http.timer_request import NewTimer, row_of, time_text
from latermq.message.recall_handle import encode_recall_handle
from latermq.message.timer_ids import timer_id
from latermq.model.topic_access import topic_access

LINES_AT_ONCE = 500  # decoded before other requests get their turn, in about 5 ms
_KEY_BYTES = 16


class BatchLine(msgspec.Struct, omit_defaults=True):
    """The result of one line, counted from 1.

    `result` is `scheduled`, `known` (an earlier request with the same Idempotency-Key scheduled it) or `refused`.
    """

    line: int
    result: str
    id: str = ""
    due: str = ""
    due_ms: int = 0
    recall_handle: str = ""
    problem: Problem | None = None


class TimerBatchApi:
    """The request with many timers."""

    def __init__(self, brokers: Brokers, scheduler: TimerScheduler, config: HttpConfig) -> None:
        self._brokers = brokers
        self._scheduler = scheduler
        self._max_lines = config.max_batch
        self._decode = msgspec.json.Decoder(NewTimer).decode
        self._encode = msgspec.json.Encoder()

    @property
    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "POST",
                "/api/v1/timers:batch",
                self._schedule,
                "Schedule many timers",
                {HTTPStatus.OK: BatchLine},
                "timers",
                body=NewTimer,
                body_type=NDJSON,
                answer_type=NDJSON,
                headers=(IDEMPOTENCY_KEY,),
                meaning="A refused line does not affect the others. The status is 200 even if lines were refused.",
            )
        ]

    async def _schedule(self, call: Call) -> Answer:
        job = idempotency_key(call)
        # Counted first: a list of millions of lines is many times as large as the body.
        ends = call.body.count(b"\n")
        has_open_line = bool(call.body[call.body.rfind(b"\n") + 1 :].strip())
        if ends + has_open_line > self._max_lines:
            raise HttpError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the batch has {ends + has_open_line} lines, the limit of http.max_batch is {self._max_lines}",
                hint="Send several smaller batches",
            )
        if job:
            await self._brokers.check_all_online()
        lines = call.body.split(b"\n")
        if not has_open_line:
            lines.pop()
        results: list[BatchLine | None] = [None] * len(lines)
        rows: list[Row] = []
        numbers: list[int] = []
        for first in range(0, len(lines), LINES_AT_ONCE):
            last = min(first + LINES_AT_ONCE, len(lines))
            keys = _unique_keys(job, lines, first, last)
            for number in range(first, last):
                try:
                    new = decode_json(self._decode, lines[number])
                    call.permit(topic_access(new.topic, (PUB,)))
                    rows.append(row_of(new, keys[number - first]))
                except LaterMQError as error:
                    results[number] = _refused(number, error)
                else:
                    numbers.append(number)
            await asyncio.sleep(0)
        await self._fill(rows, numbers, results, has_key=bool(job))
        return Answer(self._encode.encode_lines(results), media_type=NDJSON)

    async def _fill(
        self, rows: list[Row], numbers: list[int], results: list[BatchLine | None], *, has_key: bool
    ) -> None:
        outcomes = await self._scheduler.schedule(rows)
        for at, (number, row, outcome) in enumerate(zip(numbers, rows, outcomes, strict=True)):
            if isinstance(outcome, LaterMQError):
                results[number] = _refused(number, outcome)
                continue
            # Without an Idempotency-Key only a repetition on the way to the broker makes a row known.
            results[number] = BatchLine(
                number + 1,
                "known" if outcome.is_known and has_key else "scheduled",
                timer_id(row.topic, row.unique_key),
                time_text(outcome.due_ms),
                outcome.due_ms,
                encode_recall_handle(row.topic, outcome.broker, outcome.due_ms, row.unique_key),
            )
            if at % LINES_AT_ONCE == 0:
                await asyncio.sleep(0)


def _unique_keys(job: str, lines: list[bytes], first: int, last: int) -> list[str]:
    """Return the unique keys of some lines: random, or derived from the Idempotency-Key, the number and the content."""
    if not job:
        words = os.urandom(_KEY_BYTES * (last - first)).hex().upper()
        return [words[at : at + 2 * _KEY_BYTES] for at in range(0, len(words), 2 * _KEY_BYTES)]
    start = hashlib.blake2b(f"http.batch {job}".encode(), digest_size=_KEY_BYTES)
    keys = []
    for number in range(first, last):
        digest = start.copy()
        digest.update(b"%d " % number)
        digest.update(lines[number].strip())
        keys.append(digest.hexdigest().upper())
    return keys


def _refused(number: int, error: LaterMQError) -> BatchLine:
    return BatchLine(number + 1, "refused", problem=problem_of(error))
