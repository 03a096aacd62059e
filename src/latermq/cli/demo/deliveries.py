"""What became of timers: every record of a topic is read and compared with what was promised."""

import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from latermq.cli.demo.checks import check
from latermq.client import Message, PullConsumer
from latermq.message.properties import DUE_MS, ORIGIN_MESSAGE_ID

_PULL_MESSAGES = 256


@dataclass(frozen=True)
class Outage:
    """The time in which the broker was dead, by the clock of this machine."""

    from_ms: int
    until_ms: int

    def delayed(self, due_ms: int, stored_ms: int) -> bool:
        """Whether a timer was due before the broker was back, and stored by the restarted broker."""
        return due_ms <= self.until_ms and stored_ms >= self.from_ms and stored_ms > due_ms


@dataclass
class Figures:
    """The outcome of one kind of timers. A count that makes no sense for it is None."""

    name: str
    scheduled: int | None = None
    cancelled: int | None = None
    moved: int | None = None
    delivered: int = 0
    missing: int | None = None
    early: int = 0
    twice: int | None = None
    late_ms: list[int] = field(default_factory=list)

    def late_percentile_ms(self, share: float) -> int | None:
        if not self.late_ms:
            return None
        ordered = sorted(self.late_ms)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


async def read_topic(namesrv: str, topic: str) -> AsyncIterator[Message]:
    """All messages of a topic, from the first to the last record that it has now."""
    async with PullConsumer(namesrv, group="demo-reader") as consumer:
        for queue in await consumer.queues(topic):
            at, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while at < end:
                result = await consumer.pull(queue, at, _PULL_MESSAGES)
                for message in result.messages:
                    yield message
                check(result.next_offset > at, f"reading {queue} stopped at {at} of {end}")
                at = result.next_offset


class Promise(NamedTuple):
    """The timers that a topic must have in the end."""

    topic: str
    dues_ms: Mapping[str, int]  # by key, without those that are known to be cancelled
    recalled: Set[str] = frozenset()  # keys that were cancelled together
    cancelled: int = 0  # how many of these were, as the cancel reported


async def compare(namesrv: str, name: str, promise: Promise, outage: Outage, delayed: Figures) -> Figures:
    """Compare a topic with what was promised. Raises DemoFailed at any difference.

    Deliveries that the outage delayed count in `delayed` as well, and their lateness only there.
    """
    topic = promise.topic
    figures = Figures(name)
    times: Counter[str] = Counter()
    wrong_due = 0
    async for message in read_topic(namesrv, topic):
        if ORIGIN_MESSAGE_ID in message.properties:
            continue  # a dead letter that was sent again
        key = message.properties["KEYS"]
        times[key] += 1
        due = int(message.properties[DUE_MS])
        wrong_due += promise.dues_ms.get(key, due) != due
        late_ms = message.store_timestamp_ms - due
        figures.early += late_ms < 0
        is_delayed = outage.delayed(due, message.store_timestamp_ms)
        (delayed if is_delayed else figures).late_ms.append(late_ms)
        delayed.delivered += is_delayed
    figures.delivered = times.total()
    absent = promise.dues_ms.keys() - times.keys()
    recalled = len(absent & promise.recalled)
    figures.missing = len(absent) - recalled
    figures.twice = sum(count - 1 for count in times.values())
    unexpected = times.keys() - promise.dues_ms.keys()
    check(not figures.missing, f"{figures.missing} timers of {topic} were not delivered")
    check(
        recalled == promise.cancelled,
        f"{promise.cancelled} timers of {topic} were cancelled, but {recalled} are absent",
    )
    check(not unexpected, f"{len(unexpected)} cancelled timers of {topic} were delivered")
    check(not figures.twice, f"{figures.twice} timers of {topic} were delivered twice")
    check(not figures.early, f"{figures.early} timers of {topic} were early")
    check(not wrong_due, f"{wrong_due} timers of {topic} have another due time than was acknowledged")
    return figures
