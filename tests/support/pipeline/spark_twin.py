"""Spark's part for a broker, in memory and without a JVM: ingest, build, and loading of windows.

All decisions are made by the pipeline's own code with real replies of the broker: how records become rows, who owns
them, and which rows belong to a window. Only the table is a dict. So a simulated clock can drive both sides through
every interleaving.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyarrow import fs

from latermq.broker.broker import Broker
from latermq.broker.messages.record_pulls import RecordPulls
from latermq.handover.window import Window as BuiltWindow
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import REAL_TOPIC, UNIQUE_KEY, encode_properties
from latermq.message.record import decode_record
from latermq.message.timer_code import CANCEL, MOVED, TIMER, timer_kind
from latermq.message.timer_name import timer_name
from latermq.model.pipeline_state import PipelineState, WindowState
from latermq.pipeline.driver.ingest import INGESTED_COLUMNS
from latermq.pipeline.source.reader import timeline_batch
from latermq.pipeline.source.records import RecordBlock
from latermq.pipeline.timeline.local_timeline import LocalTimeline
from latermq.pipeline.timeline.ownership import ownership_of
from latermq.pipeline.timeline.root import Root
from latermq.pipeline.windows.local_build import read_tail, tail_start, window_batches
from latermq.protocol.remoting.pipeline import decode_state, encode_state
from latermq.server.broker.composition import pipeline_requests
from latermq.timer.far.windows import Window, WindowRows

ROOT = Root("memory:", fs.LocalFileSystem(), "/nowhere")
KINDS = {"timer": TIMER, "cancel": CANCEL, "move": MOVED}
PULLED_BYTES = 1 << 20


@dataclass(frozen=True)
class Row:
    """A row of the timeline. Near timers have no record."""

    entry: int
    timer_id: int
    kind: int
    due_ms: int
    name: str
    record: bytes
    takes: str = ""  # where a cancel or a move finds what it ends, as the broker wrote it


@dataclass
class SparkTwin:
    """The timeline and the attempts of one store. It outlives the broker."""

    chance: Random
    timeline: dict[int, Row] = field(default_factory=dict)
    ingested: int = 0
    attempts: dict[str, list[Row]] = field(default_factory=dict)  # each immutable
    by_window: dict[tuple[int, int], list[str]] = field(default_factory=dict)  # number and cut entry

    def begin(self, broker: Broker) -> None:
        """Start a driver with a new epoch."""
        broker.ingest.begin()
        broker.ingest.save()

    def ingest(self, broker: Broker) -> None:
        """Ingest a random part of the flushed records, then commit it at the broker, or crash before."""
        queue = broker.store.queues.find(TIMER_TOPIC, 0)
        if queue is None or not broker.ingest.epoch:
            return
        end = broker.store.reader.flushed_end(queue)
        end = self.chance.choice((end, self.chance.randint(min(self.ingested, end), end)))
        state = state_of(broker)
        start = max(self.ingested, state.min_entry)
        for row in _rows(broker, state, start, end):
            self.timeline[row.entry] = row
        self.ingested = max(self.ingested, end)
        if self.chance.random() < 0.8:
            broker.ingest.commit(self.ingested, broker.ingest.epoch, end)
            broker.ingest.save()

    def build(self, broker: Broker, window: Window) -> str:
        """Build an attempt from the timeline, and from the broker's records that are not ingested yet."""
        state = state_of(broker)
        timeline = cast(LocalTimeline, _Table(self.timeline, self.ingested)) if self.ingested else None
        built = BuiltWindow.from_state(
            state.store_id, WindowState(window.number, window.cut_entry, window.from_ms, window.until_ms)
        )
        start = tail_start(ROOT, state, timeline)
        tail = read_tail(state, built, start, lambda low, high: _pull(broker, low, high))
        rows = [
            _attempt_row(row["entry_offset"], row["timer_id"], row["due_ms"], row["record"])
            for batch in window_batches(timeline, built, tail)
            for row in batch.to_pylist()
        ]
        attempt = f"attempt-{len(self.attempts)}"
        self.attempts[attempt] = rows
        earlier = self.by_window.setdefault((window.number, window.cut_entry), [])
        assert all(self.attempts[one] == rows for one in earlier), "attempts have equal rows"
        earlier.append(attempt)
        return attempt

    def turn(self, broker: Broker) -> None:
        """Cut, build the pending windows, and feed those that are needed now, as a server does every second."""
        broker.far.run()
        queue = broker.store.queues.find(TIMER_TOPIC, 0)
        for window in [one for one in broker.far.windows.waiting() if not one.attempt]:
            if queue is None or broker.store.reader.flushed_end(queue) <= window.cut_entry:
                continue
            attempt = self.build(broker, window)
            broker.far.choose(window, attempt)
            broker.far.save_attempts()
            window.attempt = attempt
        self.feed(broker)

    def feed(self, broker: Broker) -> None:
        """Feed the broker all pieces that it needs, split at random. Sometimes another attempt is loaded instead."""
        windows = broker.far.windows
        while (window := windows.wants(broker.clock.now_ms())) is not None:
            rows = self.attempts[window.attempt]
            if self.chance.random() < 0.05:
                windows.restart(window.number, self.build(broker, window))
            start = self._fed_rows(window, rows)
            if start >= len(rows):
                windows.feed(window.number, None)
                continue
            piece = rows[start : start + self.chance.randint(1, 5)]
            if window.pieces and self.chance.random() < 0.1:
                piece = rows[max(0, start - 2) : start] + piece  # as after a switch to another attempt
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


def _attempt_row(entry: int, timer_id: int, due_ms: int, record: bytes) -> Row:
    properties = decode_record(record).properties
    kind = timer_kind(encode_properties(properties).encode())
    return Row(entry, timer_id, kind, due_ms, timer_name(properties[REAL_TOPIC], properties[UNIQUE_KEY]), record)


@dataclass(frozen=True)
class _Table:
    """The part of the timeline that a build uses."""

    rows: dict[int, Row]
    ingested: int

    def surviving_rows(self, window: BuiltWindow) -> Iterator[pa.RecordBatch]:
        """The query on the real table, in Python. Every timer that is ended by name must be found by due time too."""
        changes: dict[str, int] = {}
        placed: dict[tuple[str, str], int] = {}
        for row in self.rows.values():
            if row.kind != TIMER and row.entry < window.cut_entry:
                changes[row.name] = max(changes.get(row.name, -1), row.entry)
                for place in row.takes.split(","):
                    placed[row.name, place] = max(placed.get((row.name, place), -1), row.entry)
        found = [
            row
            for row in self.rows.values()
            if row.kind != CANCEL
            and row.record
            and row.entry < window.cut_entry
            and window.from_ms <= row.due_ms < window.until_ms
            and max(placed.get((row.name, place), -1) for place in ("", str(row.due_ms))) <= row.entry
        ]
        assert all(changes.get(row.name, -1) <= row.entry for row in found), "a taker lacks a due time"
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([row.due_ms for row in found], pa.int64()),
                pa.array([row.entry for row in found], pa.int64()),
                pa.array([row.timer_id for row in found], pa.int64()),
                pa.array([row.name for row in found], pa.large_string()),
                pa.array([row.record for row in found], pa.large_binary()),
            ],
            names=["due_ms", "entry_offset", "timer_id", "name", "record"],
        )


def state_of(broker: Broker) -> PipelineState:
    """The state that a driver receives, encoded and decoded."""
    service = pipeline_requests(broker, cast(Any, None))  # only requests that schedule wait for a flush
    return decode_state(encode_state(service.state()))


def _pull(broker: Broker, start: int, until: int) -> Iterator[bytes]:
    """The flushed records of these entries, as a driver pulls them."""
    pulls = RecordPulls(broker.store.reader, broker.topics, max_bytes=PULLED_BYTES)
    while start < until:
        pulled = pulls.pull(TIMER_TOPIC, 0, start, PULLED_BYTES, until)
        if pulled.next_offset == start:
            return
        yield pulled.records
        start = pulled.next_offset


def ingested_entries(broker: Broker, state: PipelineState, start: int, end: int) -> Iterator[dict[str, Any]]:
    """These entries, as ingest decodes them."""
    for records in _pull(broker, start, end):
        block = RecordBlock([records], is_timer_topic=True)
        yield from timeline_batch(block, INGESTED_COLUMNS, ownership_of(state)).to_pylist()


def _rows(broker: Broker, state: PipelineState, start: int, end: int) -> Iterator[Row]:
    """The rows of these entries, as ingest builds them."""
    for row in ingested_entries(broker, state, start, end):
        kind, unique_key = KINDS[row["kind"]], row["unique_key"] or ""
        name = unique_key if kind == CANCEL else f"{row['topic']}+{unique_key}"
        values = (row["queue_offset"], row["timer_id"], kind, row["due_ms"], name, row["record"] or b"")
        yield Row(*values, row["takes"] or "")
