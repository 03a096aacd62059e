"""Cancels and moves of all pending timers that match, near and far."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import numpy as np

from latermq.client import Verdict
from latermq.errors import LaterMQError, NoPermission, QueryNotFound, TopicNotFound
from latermq.http.api.timer_list import ListedPage, TimerListApi, TimerQuery
from latermq.http.brokers import Brokers
from latermq.http.jobs.job import REFUSED, Job, JobPreview, Order
from latermq.http.jobs.work import Done, Row
from latermq.http.timeline_process import TimelineUnavailable
from latermq.message.timer_ids import timer_id
from latermq.model.rows import Column
from latermq.model.timer_changes import NO_TIME, TimerChanges
from latermq.protocol.remoting.timer_changes import ALONE, CHANGES_AT_ONCE, VERDICTS

PAGE_ROWS = 1_000
SAMPLE_ROWS = 10
PREVIEW_S = 5.0  # for counting what matches
ALONE_AT_ONCE = 32  # single requests for timers that a bulk request leaves
MAX_IDS = 100  # timers of one name; a name with more is refused by its broker


class TimerWork:
    """Lists what matches, and changes it with the brokers' bulk request."""

    rows_at_once = CHANGES_AT_ONCE

    def __init__(self, brokers: Brokers, timers: TimerListApi) -> None:
        self._brokers = brokers
        self._timers = timers

    async def preview(self, order: Order) -> JobPreview:
        end_s = time.monotonic() + PREVIEW_S
        preview = JobPreview(0, True, [], [])
        async for page in self._pages(order):
            preview.far_missing = preview.far_missing or page.far_missing
            for timer in page.timers:
                if order.matches(timer.key, timer.tag):
                    preview.matched += 1
                    if len(preview.timers) < SAMPLE_ROWS:
                        preview.timers.append(timer)
            if page.next and time.monotonic() > end_s:
                preview.is_exact = False
                break
        return preview

    async def plan(self, order: Order) -> AsyncIterator[list[Row]]:
        async for page in self._pages(order):
            if page.far_missing and not order.allow_partial:
                raise TimelineUnavailable(page.far_missing, hint="Or set allow_partial, to change the others")
            rows: list[Row] = []
            for timer, broker_id in zip(page.timers, page.broker_ids, strict=True):
                if order.matches(timer.key, timer.tag):
                    rows.append([timer.broker, timer.topic, timer.unique_key, timer.due_ms, [broker_id]])
            yield rows

    async def _pages(self, order: Order) -> AsyncIterator[ListedPage]:
        bounds = [str(time_ms) if time_ms else "" for time_ms in (order.from_ms, order.to_ms)]
        query = TimerQuery(topic=order.topic, key=order.key, from_=bounds[0], to=bounds[1])
        while True:
            page = await self._timers.page(query, PAGE_ROWS)
            yield page
            if not page.next:
                return
            query.cursor = page.next

    def merged(self, rows: Sequence[Row]) -> list[Row]:
        by_name: dict[tuple[str, str, str], Row] = {}
        for broker, topic, unique_key, due_ms, ids in rows:
            known = by_name.setdefault((broker, topic, unique_key), [broker, topic, unique_key, due_ms, []])
            known[3] = min(known[3], due_ms)
            known[4] = sorted({*known[4], *ids})
        return list(by_name.values())

    async def change(self, job: Job, rows: Sequence[Row]) -> list[Done]:
        order = job.order
        rows = self.merged(rows) if len({tuple(row[:3]) for row in rows}) < len(rows) else rows
        addresses = await self._brokers.masters()
        done: list[Done | None] = [None] * len(rows)
        for broker in dict.fromkeys(row[0] for row in rows):
            numbers = [number for number, row in enumerate(rows) if row[0] == broker]
            if broker not in addresses:
                await self._brokers.check_all_online()  # raises, and the step is repeated
                for number in numbers:
                    done[number] = _done(rows[number], REFUSED, f"broker {broker} is not registered any more")
                continue
            outcomes = await self._brokers.change_timers(addresses[broker], _changes([rows[n] for n in numbers], order))
            alone = []
            for at, (number, verdict) in enumerate(zip(numbers, outcomes.verdicts, strict=True)):
                if VERDICTS[verdict] == ALONE:
                    alone.append(number)
                else:
                    done[number] = _done(rows[number], str(VERDICTS[verdict]), outcomes.problems.get(at, ""))
            turns = asyncio.Semaphore(ALONE_AT_ONCE)

            async def change(number: int, address: str = addresses[broker], turns: asyncio.Semaphore = turns) -> None:
                async with turns:
                    done[number] = await self._change_alone(address, rows[number], order)

            await asyncio.gather(*map(change, alone))
        return [one for one in done if one is not None]

    async def _change_alone(self, address: str, row: Row, order: Order) -> Done:
        _, topic, unique_key, due_ms, ids = row
        try:
            outcome = await self._brokers.change_seen_timer(address, topic, unique_key, ids, _new_due(due_ms, order))
        except LaterMQError as error:
            if error.retriable or isinstance(error, NoPermission):
                raise
            is_gone = isinstance(error, TopicNotFound | QueryNotFound)
            return _done(row, str(Verdict.NOT_FOUND) if is_gone else REFUSED, error.message)
        return _done(row, str(outcome.verdict))


def _changes(rows: Sequence[Row], order: Order) -> TimerChanges:
    topics = list(dict.fromkeys(row[1] for row in rows))
    index = {topic: number for number, topic in enumerate(topics)}
    dues = [_new_due(row[3], order) for row in rows]
    ids = [row[4][:MAX_IDS] for row in rows]
    return TimerChanges(
        topics,
        np.array([index[row[1]] for row in rows], np.uint16),
        Column.of(row[2].encode() for row in rows),
        np.array([NO_TIME if due_ms is None else due_ms for due_ms in dues], np.int64),
        np.full(len(rows), NO_TIME, np.int64),  # only the timers that were listed
        np.concatenate(([0], np.cumsum([len(one) for one in ids]))).astype(np.int64),
        np.array([one for listed in ids for one in listed], np.int64),
    )


def _new_due(due_ms: int, order: Order) -> int | None:
    if order.action == "cancel":
        return None
    return max(0, due_ms + order.by_ms) if order.by_ms is not None else order.due_ms


def _done(row: Row, outcome: str, detail: str = "") -> Done:
    return Done(outcome, timer_id(row[1], row[2]), row[1], detail)
