"""Timers one by one: scheduled, looked up, moved, run now and cancelled."""

import asyncio
import hashlib
import re
import secrets
from collections.abc import Sequence
from http import HTTPStatus
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec

from latermq.client import Outcome, PendingTimer, Verdict
from latermq.client.scheduling.scheduler import Scheduled, TimerScheduler
from latermq.errors import IllegalOperation, InvalidParameter, LaterMQError, QueryNotFound, TopicNotFound
from latermq.http.brokers import Brokers
from latermq.http.endpoint import Answer, Call, Endpoint, HeaderField
from latermq.http.problems import HttpError
from latermq.http.timer_request import DIGEST_PROPERTY, NewDue, NewTimer, row_of, time_of, time_text
from latermq.message.recall_handle import encode_recall_handle
from latermq.message.timer_ids import parse_timer_id, timer_id
from latermq.protocol.remoting.rows import unique_key_of

IDEMPOTENCY_KEY = HeaderField(
    "Idempotency-Key",
    "A text that names this request. Repeated with the same key and body, it schedules nothing twice, as long as the "
    "timer is pending, or was delivered or cancelled within store.retention.",
    r"^[\x21-\x7e]{1,255}$",
)
IF_MATCH = HeaderField("If-Match", "The ETag of the state that is changed, or *. Another state is refused with 412.")
SINGLE_JOB = "http.timer"  # the unique keys of single requests differ from those of batches with the same key
_STATES = {
    Verdict.PENDING: "pending",
    Verdict.MOVED: "pending",
    Verdict.CANCELLED: "cancelled",
    Verdict.DELIVERED: "delivered",
    Verdict.ACCEPTED: "accepted",
}
_DIGEST_BYTES = 16


class Timer(msgspec.Struct, omit_defaults=True):
    """A timer and its state: `pending`, `cancelled`, `delivered`, or `accepted` while its broker recovers.

    `recall_handle` cancels it with any RocketMQ client. The fields after it are known of pending timers.
    """

    id: str
    topic: str
    unique_key: str
    due: str
    due_ms: int
    state: str
    recall_handle: str = ""
    key: str = ""
    tag: str = ""
    scheduled_ms: int = 0
    body_bytes: int = 0
    body_start: str = ""
    broker: str = ""
    is_far: bool = False


def timer_of(pending: PendingTimer, broker: str) -> Timer:
    """Return a pending timer as the API shows it."""
    return Timer(
        timer_id(pending.topic, pending.unique_key),
        pending.topic,
        pending.unique_key,
        time_text(pending.due_ms),
        pending.due_ms,
        "pending",
        encode_recall_handle(pending.topic, broker, pending.due_ms, pending.unique_key),
        pending.keys,
        pending.tags,
        pending.scheduled_ms,
        pending.body_bytes,
        pending.sample,
        broker,
        is_far=not pending.scheduled_ms,  # the record has left the broker's log
    )


def etag_of(outcome: Outcome) -> str:
    """Return the ETag of a timer's state."""
    state = f"{outcome.verdict} {outcome.due_ms} {outcome.timers}"
    return f'"{hashlib.blake2b(state.encode(), digest_size=8).hexdigest()}"'


class _Move(NamedTuple):
    """A new due time, or a delay from now by the broker's clock."""

    due_ms: int | None
    delay_ms: int | None


class TimerApi:
    """The requests on one timer."""

    def __init__(self, brokers: Brokers, scheduler: TimerScheduler) -> None:
        self._brokers = brokers
        self._scheduler = scheduler
        # Two moves that were both made for the same state: the second sees what the first has changed.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def endpoints(self) -> list[Endpoint]:
        one, found = "/api/v1/timers/{id}", {HTTPStatus.OK: Timer}
        return [
            Endpoint(
                "POST",
                "/api/v1/timers",
                self._schedule,
                "Schedule a timer",
                {HTTPStatus.CREATED: Timer},
                "timers",
                body=NewTimer,
                headers=(IDEMPOTENCY_KEY,),
            ),
            Endpoint("GET", one, self._find, "Look up a timer", found, "timers"),
            Endpoint("PATCH", one, self._move, "Move a timer", found, "timers", body=NewDue, headers=(IF_MATCH,)),
            Endpoint("DELETE", one, self._cancel, "Cancel a timer", found, "timers", headers=(IF_MATCH,)),
            Endpoint("POST", one + "/run", self._run, "Deliver a timer now", found, "timers", headers=(IF_MATCH,)),
        ]

    async def _schedule(self, call: Call) -> Answer:
        new: NewTimer = call.body
        key = idempotency_key(call)
        digest = hashlib.blake2b(msgspec.json.encode(new), digest_size=_DIGEST_BYTES).hexdigest() if key else ""
        unique_key = unique_key_of(SINGLE_JOB, f"{new.topic} {key}") if key else secrets.token_hex(16).upper()
        row = row_of(new, unique_key, digest)
        if key and (known := await self._elsewhere(new.topic, unique_key)) is not None:
            return await self._replayed(known[0], known[1], new, unique_key, digest)
        [result] = await self._scheduler.schedule([row])
        if isinstance(result, LaterMQError):
            raise result
        if key and result.is_known:
            outcome = await self._brokers.timer_status(new.topic, unique_key=unique_key)
            return await self._replayed(result.broker, outcome, new, unique_key, digest)
        return self._created(result, new, unique_key)

    def _created(self, result: Scheduled, new: NewTimer, unique_key: str) -> Answer:
        due_ms = result.due_ms
        timer = Timer(
            timer_id(new.topic, unique_key),
            new.topic,
            unique_key,
            time_text(due_ms),
            due_ms,
            "pending",
            encode_recall_handle(new.topic, result.broker, due_ms, unique_key),
            new.key,
            new.tag,
            broker=result.broker,
        )
        etag = etag_of(Outcome(Verdict.PENDING, new.topic, unique_key, due_ms, 1))
        return Answer(timer, HTTPStatus.CREATED, {"Location": f"/api/v1/timers/{timer.id}", "ETag": etag})

    async def _elsewhere(self, topic: str, unique_key: str) -> tuple[str, Outcome] | None:
        """Return the earlier timer of an Idempotency-Key if the brokers of the topic have changed since."""
        if not await self._brokers.offline() and len(await self._brokers.places_of(topic)) < 2:
            return None  # its only broker knows the name itself
        try:
            outcome = await self._brokers.timer_status(topic, unique_key=unique_key)
        except TopicNotFound:  # it may be auto-created
            outcome = Outcome(Verdict.NOT_FOUND, topic, unique_key)
        if outcome.verdict != Verdict.NOT_FOUND:
            return "", outcome
        await self._brokers.check_all_online()
        return None

    async def _replayed(self, broker: str, outcome: Outcome, new: NewTimer, unique_key: str, digest: str) -> Answer:
        """Answer a repeated request with the timer that the first one scheduled."""
        for name, address in (await self._brokers.holders_of(new.topic)).items():
            record = await self._brokers.timer_record(address, new.topic, unique_key)
            if record is None:
                continue
            broker = name
            if record.properties.get(DIGEST_PROPERTY) != digest:
                raise HttpError(
                    HTTPStatus.UNPROCESSABLE_ENTITY,
                    "this Idempotency-Key was used for another timer",
                    hint="Use a new key for each timer",
                )
            break
        timer = _shown(outcome, broker)
        headers = {"Location": f"/api/v1/timers/{timer.id}", "ETag": etag_of(outcome), "Idempotency-Replayed": "true"}
        return Answer(timer, HTTPStatus.CREATED, headers)

    async def _find(self, call: Call) -> Answer:
        topic, unique_key = parse_timer_id(call.path["id"])
        outcome = await self._status(topic, unique_key)
        timer = _shown(outcome)
        if outcome.verdict == Verdict.PENDING:
            timer = await self._described(topic, unique_key, outcome) or timer
        return Answer(timer, headers={"ETag": etag_of(outcome)})

    async def _described(self, topic: str, unique_key: str, outcome: Outcome) -> Timer | None:
        """Return a pending timer with what its record says."""
        fields = {"topic": topic, "key": unique_key, "limit": "8"}
        for broker, address in (await self._brokers.holders_of(topic)).items():
            page = await self._brokers.pending_page(address, fields)
            for pending in page.timers:
                if pending.unique_key == unique_key and pending.due_ms == outcome.due_ms:
                    return timer_of(pending, broker)
        return None

    async def _move(self, call: Call) -> Answer:
        time_ms, is_delay = time_of(call.body)
        return await self._change(call, _Move(None, time_ms) if is_delay else _Move(time_ms, None))

    async def _run(self, call: Call) -> Answer:
        return await self._change(call, _Move(None, 0))

    async def _cancel(self, call: Call) -> Answer:
        return await self._change(call, None)

    async def _change(self, call: Call, move: _Move | None) -> Answer:
        """Move a timer, or cancel it."""
        topic, unique_key = parse_timer_id(call.path["id"])
        lock = self._locks.setdefault(call.path["id"], asyncio.Lock())
        async with lock:
            await self._check_match(call, topic, unique_key)
            if move is None:
                outcomes = await self._brokers.cancel_timer(topic, unique_key=unique_key)
            else:
                outcomes = await self._brokers.move_timer(
                    topic, unique_key=unique_key, due_ms=move.due_ms, delay_ms=move.delay_ms
                )
        if not outcomes or outcomes[0].verdict == Verdict.NOT_FOUND:
            await self._brokers.check_all_online()
        outcome = _changed(outcomes, Verdict.CANCELLED if move is None else Verdict.MOVED)
        return Answer(_shown(outcome), headers={"ETag": etag_of(_settled(outcome))})

    async def _check_match(self, call: Call, topic: str, unique_key: str) -> None:
        wanted = call.headers.get("if-match")
        if wanted is None:
            return
        outcome = await self._status(topic, unique_key)
        if wanted.strip() != "*" and etag_of(outcome) not in [tag.strip() for tag in wanted[:1000].split(",")]:
            raise HttpError(
                HTTPStatus.PRECONDITION_FAILED,
                f"the timer has changed: it is {_STATES[outcome.verdict]}, due {time_text(outcome.due_ms)}",
                hint="Look it up again, and use its new ETag",
            )

    async def _status(self, topic: str, unique_key: str) -> Outcome:
        outcome = await self._brokers.timer_status(topic, unique_key=unique_key)
        if outcome.verdict == Verdict.NOT_FOUND:
            await self._brokers.check_all_online()
            raise QueryNotFound("no timer has this id", hint="It may be older than store.retention")
        return outcome


def idempotency_key(call: Call) -> str:
    """Return the Idempotency-Key of a request, empty if it has none."""
    keys = call.headers.getlist(IDEMPOTENCY_KEY.name)
    if not keys:
        return ""
    if len(keys) > 1 or not re.fullmatch(IDEMPOTENCY_KEY.pattern, keys[0]):
        raise InvalidParameter(
            "the Idempotency-Key must be one word of 1–255 visible ASCII characters", hint="Use a UUID"
        )
    return keys[0]


def _settled(outcome: Outcome) -> Outcome:
    """Return the state that a look-up reports after a change."""
    verdict = Verdict.PENDING if outcome.verdict == Verdict.MOVED else outcome.verdict
    return Outcome(verdict, outcome.topic, outcome.unique_key, outcome.due_ms, outcome.timers)


def _changed(outcomes: Sequence[Outcome], expected: Verdict) -> Outcome:
    """Return the outcome of a change, or raise why there was none."""
    outcome = outcomes[0] if outcomes else None
    if outcome is None or outcome.verdict == Verdict.NOT_FOUND:
        raise QueryNotFound("no timer has this id", hint="It may be older than store.retention")
    if outcome.verdict in (expected, Verdict.ACCEPTED):
        return outcome
    raise IllegalOperation(
        f"the timer is {_STATES.get(outcome.verdict, outcome.verdict)}, so it cannot be "
        f"{'cancelled' if expected == Verdict.CANCELLED else 'moved'}",
        hint="Schedule a new timer" if expected == Verdict.MOVED else "Its message is in its topic",
    )


def _shown(outcome: Outcome, broker: str = "") -> Timer:
    topic, unique_key, due_ms = outcome.topic, outcome.unique_key, outcome.due_ms
    timer = Timer(timer_id(topic, unique_key), topic, unique_key, time_text(due_ms), due_ms, _STATES[outcome.verdict])
    if broker:
        timer.broker = broker
        timer.recall_handle = encode_recall_handle(topic, broker, due_ms, unique_key)
    return timer
