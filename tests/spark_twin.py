"""What Spark does for a broker, in plain Python and memory: ingest, roll, and the player that feeds windows back.

It follows the contract of the real jobs, so that a simulated clock can drive both sides through every interleaving.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import numpy as np

from latermq.broker.broker import Broker
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import DUE_MS, REAL_TOPIC, TIMER_DELETE_KEY, TIMER_ID, UNIQUE_KEY, encode_properties
from latermq.message.record import decode_record
from latermq.message.timer_code import CANCEL, CUT, MOVED, timer_kind
from latermq.timer.windows import Window, WindowRows


@dataclass(frozen=True)
class Row:
    """A row of the timeline; near timers have no record."""

    entry: int
    timer_id: int
    kind: int
    due_ms: int
    name: str
    record: bytes


@dataclass
class SparkTwin:
    """The timeline and the attempts of one store. It outlives the broker."""

    chance: Random
    timeline: dict[int, Row] = field(default_factory=dict)
    ingested: int = 0
    attempts: dict[str, list[Row]] = field(default_factory=dict)  # each immutable
    by_window: dict[tuple[int, int], list[str]] = field(default_factory=dict)  # number and cut entry

    def begin(self, broker: Broker) -> None:
        """A driver starts: it takes a new epoch."""
        broker.ingest.begin()
        broker.ingest.save()

    def ingest(self, broker: Broker) -> None:
        """Bring a random piece of what is flushed into the timeline, then tell the broker, or die before."""
        queue = broker.store.find_queue(TIMER_TOPIC, 0)
        if queue is None or not broker.ingest.epoch:
            return
        end = broker.store.flushed_end(queue)
        end = self.chance.choice((end, self.chance.randint(min(self.ingested, end), end)))
        for row in _rows(broker, self.ingested, end):
            self.timeline[row.entry] = row
        self.ingested = max(self.ingested, end)
        if self.chance.random() < 0.8:
            broker.ingest.commit(self.ingested, broker.ingest.epoch, end)
            broker.ingest.save()

    def roll(self, broker: Broker, window: Window) -> str:
        """Make an attempt: the timeline, and from the broker itself what is not ingested."""
        rows = dict(self.timeline) if self.ingested else {}
        for row in _rows(broker, self.ingested, window.cut_entry):
            rows[row.entry] = row
        before = [row for row in rows.values() if row.entry < window.cut_entry]
        takers: dict[str, int] = {}
        for row in before:
            if row.kind in (CANCEL, MOVED):
                takers[row.name] = max(takers.get(row.name, -1), row.entry)
        wanted = [
            row
            for row in before
            if row.record and window.from_ms <= row.due_ms < window.until_ms and takers.get(row.name, -1) <= row.entry
        ]
        attempt = f"attempt-{len(self.attempts)}"
        self.attempts[attempt] = sorted(wanted, key=lambda row: (row.due_ms, row.timer_id, row.entry))
        earlier = self.by_window.setdefault((window.number, window.cut_entry), [])
        assert all(self.attempts[one] == self.attempts[attempt] for one in earlier), "attempts have equal rows"
        earlier.append(attempt)
        return attempt

    def turn(self, broker: Broker) -> None:
        """Cut, and roll what waits; feed what is wanted now. What a server does in a second."""
        broker.far.run()
        queue = broker.store.find_queue(TIMER_TOPIC, 0)
        for window in [one for one in broker.far.windows.waiting() if not one.attempt]:
            if queue is None or broker.store.flushed_end(queue) <= window.cut_entry:
                continue
            attempt = self.roll(broker, window)
            broker.far.choose(window.number, attempt)
            broker.far.save_attempts()
            window.attempt = attempt
        self.feed(broker)

    def feed(self, broker: Broker) -> None:
        """Give the broker all pieces that it wants, cut at random places; at times another attempt is played on."""
        windows = broker.far.windows
        while (window := windows.wants(broker.clock.now_ms())) is not None:
            rows = self.attempts[window.attempt]
            if self.chance.random() < 0.05:
                windows.restart(window.number, self.roll(broker, window))
            start = self._fed_rows(window, rows)
            if start >= len(rows):
                windows.feed(window.number, None)
                continue
            piece = rows[start : start + self.chance.randint(1, 5)]
            if window.pieces and self.chance.random() < 0.1:
                piece = rows[max(0, start - 2) : start] + piece  # as after a change of attempts
            windows.feed(window.number, piece_of(piece))

    def _fed_rows(self, window: Window, rows: list[Row]) -> int:
        if not window.last_due_ms:
            return 0
        seen = set(window.last_entries.tolist())
        return sum(
            row.due_ms < window.last_due_ms or (row.due_ms == window.last_due_ms and row.entry in seen) for row in rows
        )


def piece_of(rows: list[Row]) -> WindowRows:
    return WindowRows(
        np.array([row.entry for row in rows], np.int64),
        np.array([row.due_ms for row in rows], np.int64),
        np.array([len(row.record) for row in rows], np.int64),
        b"".join(row.record for row in rows),
    )


def _rows(broker: Broker, start: int, end: int) -> Iterator[Row]:
    """The rows of these entries, as ingest makes them."""
    queue = broker.store.find_queue(TIMER_TOPIC, 0)
    assert queue is not None
    assert start >= queue.min_offset or start >= end, "retention took what was not ingested"
    cuts = broker.far.frontier.cuts_from(start)
    for offset in range(start, end):
        place = queue.entry(offset)
        assert place is not None
        record = broker.store.log.read(place[0], place[1])
        message = decode_record(record)
        properties = message.properties
        kind = timer_kind(encode_properties(properties).encode())
        if kind == CUT:
            continue
        due_ms = int(properties[DUE_MS])
        before = [cut for cut in cuts if cut.entry < offset]
        frontier_ms = before[-1].frontier_ms if before else (cuts[0].last_frontier_ms if cuts else 1 << 62)
        is_far = kind != CANCEL and due_ms >= frontier_ms
        name = properties[TIMER_DELETE_KEY] if kind == CANCEL else f"{properties[REAL_TOPIC]}+{properties[UNIQUE_KEY]}"
        timer_id = int(properties.get(TIMER_ID, offset))
        yield Row(offset, timer_id, kind, due_ms, name, record if is_far else b"")
