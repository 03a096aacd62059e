"""Requests of the pipeline: broker state, epochs, pulls, commits, windows and rows."""

from collections.abc import Callable
from typing import Protocol

import structlog
from msgspec import Struct

from latermq.broker.messages.record_pulls import RecordPulls
from latermq.broker.timers.far_timers import FarTimers
from latermq.broker.timers.ingest_mark import IngestMark
from latermq.broker.timers.row_schedule import RowSchedule
from latermq.clock import Clock
from latermq.errors import InvalidParameter, LaterMQError, NoPermission
from latermq.handover.cut import FOREVER_MS
from latermq.message.names import TIMER_TOPIC
from latermq.model.pipeline_state import CutState, PipelineState, WindowState
from latermq.model.rows import RowReceiver
from latermq.pipeline_secret import Recipient, is_valid_signature
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.pipeline import (
    BeginPipelineHeader,
    CommitIngestHeader,
    PipelineStateHeader,
    PullRecordsHeader,
    ScheduleRowsHeader,
    WindowReadyHeader,
    encode_state,
    signed_fields,
)
from latermq.protocol.remoting.rows import decode_rows, encode_receiver
from latermq.server.broker.pipeline_folder import OnToken
from latermq.server.handlers.async_replies import RunOffLoop, answer, refuse, run_inline
from latermq.server.handlers.flush_queue import FlushBarrier
from latermq.server.remoting.access import GET, PUB, SUB, UPDATE, on_cluster, on_topic, on_topics
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import Endpoint
from latermq.store.message_store import MessageStore
from latermq.timer.far.frontier import Frontier

_log = structlog.get_logger(__name__)


class Tokens(Protocol):
    """The folder of this broker's pipeline, with the token that the last driver wrote there."""

    root_uri: str

    def read(self, on_token: OnToken) -> None: ...


class PipelineRequests:
    """Serves these requests."""

    def __init__(
        self,
        store: MessageStore,
        far: FarTimers,
        ingest: IngestMark,
        pulls: RecordPulls,
        rows: RowSchedule,
        clock: Clock,
        broker_name: str,
        flush_barrier: FlushBarrier,
        *,
        run_off_loop: RunOffLoop = run_inline,
        timeline: str = "",
        tokens: Tokens | None = None,
        instance: str = "",
        secret: bytes = b"",
    ) -> None:
        """`run_off_loop` does blocking work off the loop, in order.

        `timeline` is the folder that this broker reads; `instance` identifies this process. Without a `secret` the
        broker accepts no driver.
        """
        self._secret = secret
        self._timeline = timeline
        self._store = store
        self._far = far
        self._ingest = ingest
        self._pulls = pulls
        self._rows = rows
        self._clock = clock
        self._broker_name = broker_name
        self._tokens = tokens
        self._instance = instance
        self._flush_barrier = flush_barrier
        self._run_off_loop = run_off_loop

    @property
    def endpoints(self) -> list[Endpoint]:
        rows = (on_topics(lambda command, _: decode_rows(command.body).topics, PUB),)
        pull = (on_topic("topic", SUB, GET),)
        code = Request
        return [
            Endpoint(code.PIPELINE_STATE, self._state, on_cluster(GET), PipelineStateHeader),
            Endpoint(code.BEGIN_PIPELINE, self._begin, on_cluster(UPDATE), BeginPipelineHeader),
            Endpoint(code.PULL_RECORDS, self._pull, pull, PullRecordsHeader),
            Endpoint(code.COMMIT_INGEST, self._commit, on_cluster(UPDATE), CommitIngestHeader),
            Endpoint(code.WINDOW_READY, self._window_ready, on_cluster(UPDATE), WindowReadyHeader),
            Endpoint(code.SCHEDULE_ROWS, self._schedule, rows, ScheduleRowsHeader, stores=True),
        ]

    def _state(self, connection: Connection, command: Command, header: PipelineStateHeader) -> bytes | None:
        def reply() -> bytes:
            return encode_response(command, body=encode_state(self.state()))

        if not header.flush:
            return reply()
        self._flush_barrier.when_flushed(lambda: answer(connection, command, reply()))
        return None

    def _check_signature(self, command: Command, header: Struct, signature: str) -> None:
        """Refuse requests without a valid signature: a driver's reports decide which timers leave the log."""
        recipient = Recipient(self._store.store_id, self._instance)
        if is_valid_signature(signature, self._secret, command.code, recipient, signed_fields(header)):
            return
        self._ingest.refused += 1
        if not self._secret:
            raise NoPermission(
                f"broker {self._broker_name} has no secret to authenticate its driver",
                hint="Its log has the reason. Restart it when pipeline.secret_file is readable and writable",
            )
        raise NoPermission(
            f"request {command.code} is not signed with the secret of broker {self._broker_name}",
            hint="Copy the broker's pipeline.secret_file to the driver",
        )

    def _begin(self, connection: Connection, command: Command, header: BeginPipelineHeader) -> None:
        self._check_signature(command, header, header.signature)
        # If Spark holds no timers and never will, the driver's folder does not matter.
        if self._tokens is None or not self._far.uses_pipeline:
            self._begin_epoch(connection, command, header)
            return
        root_uri = self._tokens.root_uri

        def begin(found: str | LaterMQError) -> None:
            try:
                if isinstance(found, LaterMQError):
                    raise found
                if not found or found != header.token:
                    raise InvalidParameter(
                        f"broker {self._broker_name} does not find this driver's note in its own "
                        f"pipeline.timeline, {root_uri}: the driver uses another folder",
                        hint="Give the driver the same --timeline as the broker",
                    )
                self._begin_epoch(connection, command, header)
            except LaterMQError as error:
                refuse(connection, command, error)

        self._tokens.read(begin)

    def _begin_epoch(self, connection: Connection, command: Command, header: BeginPipelineHeader) -> None:
        """Begin a new epoch. It ends the previous driver, so every check that may refuse the request comes first."""
        if header.afterEpoch != self._ingest.epoch:
            raise InvalidParameter(
                f"this driver expects epoch {header.afterEpoch}, but the last one is {self._ingest.epoch}",
                hint="Another driver has started, or the request was sent twice: query the state again",
            )
        queue = self._store.queues.find(TIMER_TOPIC, 0)
        min_entry = queue.min_offset if queue else 0
        before = self._ingest.offset
        epoch = self._ingest.begin(header.tableEnd, min_entry=min_entry, flushed_end=self._flushed_entry())
        if self._ingest.offset < before:
            _log.warning(
                "the timeline lost ingested entries, which are ingested again",
                from_entry=self._ingest.offset,
                until_entry=before,
            )

        def reply() -> bytes:
            _log.info("pipeline started", peer=connection.peer_name, epoch=epoch, tableEnd=header.tableEnd)
            # Another driver may have begun meanwhile: report the epoch of this request.
            state = self.state()
            state.epoch = epoch
            return encode_response(command, body=encode_state(state))

        self._answer_when_saved(connection, command, reply)

    def _commit(self, connection: Connection, command: Command, header: CommitIngestHeader) -> None:
        self._check_signature(command, header, header.signature)
        offset = self._ingest.commit(header.offset, header.epoch, self._flushed_entry())
        self._answer_when_saved(
            connection, command, lambda: encode_response(command, fields={"ingestOffset": str(offset)})
        )

    def _answer_when_saved(self, connection: Connection, command: Command, reply: Callable[[], bytes]) -> None:
        """Reply after the state is saved, so that whatever the driver learns survives a crash."""

        def when_done(error: LaterMQError | None) -> None:
            if error is None:
                answer(connection, command, reply())
            else:
                refuse(connection, command, error)

        self._run_off_loop([self._ingest.save], when_done)

    def _pull(self, connection: Connection, command: Command, header: PullRecordsHeader) -> bytes:
        if header.epoch is not None:
            self._ingest.check(header.epoch)
        pulled = self._pulls.pull(header.topic, header.queueId, header.offset, header.maxBytes, header.untilOffset)
        fields = {
            "nextOffset": str(pulled.next_offset),
            "minOffset": str(pulled.min_offset),
            "flushedOffset": str(pulled.flushed_offset),
        }
        return encode_response(command, fields=fields, body=pulled.records)

    def _window_ready(self, connection: Connection, command: Command, header: WindowReadyHeader) -> bytes:
        self._check_signature(command, header, header.signature)
        self._ingest.check(header.epoch)
        self._far.report_ready(header.number, header.attempt)
        return encode_response(command)

    def _schedule(self, connection: Connection, command: Command, header: ScheduleRowsHeader) -> bytes | None:
        self._flush_barrier.check_room()
        batch = decode_rows(command.body)
        if not len(batch):  # a job asks this. It needs no more than the right to send to its topic
            reply = encode_response(command, fields=encode_receiver(RowReceiver(self._rows.limits, self._instance)))
            if not batch.topics:
                return reply
            self._flush_barrier.when_flushed(lambda: answer(connection, command, reply))
            return None
        done = self._rows.schedule(batch, connection.peer_host)
        fields = {"scheduled": str(done.scheduled), "known": str(done.known), "nowMs": str(done.now_ms)}
        response = encode_response(command, fields=fields, body=done.is_known.tobytes())
        # Known rows may have arrived only a moment ago: they are confirmed when they are flushed, like new ones.
        return self._flush_barrier.reply_when_flushed(connection, command, response)

    def state(self) -> PipelineState:
        """Return the broker state that a driver needs.

        Completed deliveries are reported as of the last checkpoint. A driver that removes rows by this report never
        removes a row that a crash makes pending again.
        """
        store = self._store
        queue = store.queues.find(TIMER_TOPIC, 0)
        marks = store.waiting.saved_marks
        offset = self._ingest.offset
        min_entry = queue.min_offset if queue else 0
        return PipelineState(
            store_id=store.store_id,
            broker_name=self._broker_name,
            epoch=self._ingest.epoch,
            ingest_offset=offset,
            min_entry=min_entry,
            flushed_entry=self._flushed_entry(),
            now_ms=self._clock.now_ms(),
            done_upto=marks.done_upto if marks else 0,
            done_wake_ms=marks.done_wake_ms if marks else 0,
            done=store.waiting.safely_delivered.get(0, []),
            near_done_wake_ms=marks.near_done_wake_ms if marks else 0,
            far_done=marks.far_done if marks else [],
            cuts=cut_states(self._far.frontier),
            owned_from=self._far.frontier.ownership.known_from,
            windows=[
                WindowState(window.number, window.cut_entry, window.from_ms, window.until_ms, window.attempt)
                for window in self._far.unfinished_windows()
                if not window.is_skipped  # no delivery waits for it
            ],
            timeline=self._timeline,
            instance=self._instance,
            lag_ms=self._far.lag_ms(self._clock.now_ms()) if self._far.frontier.last else 0,
            keeps_far_timers=self._far.keeps_far_timers,
            deadline_ms=self._far.deadline_ms(),
            built_by=dict(self._far.built_by),
            last_windows=self._far.last_windows(),
        )

    def _flushed_entry(self) -> int:
        queue = self._store.queues.find(TIMER_TOPIC, 0)
        return self._store.reader.flushed_end(queue) if queue else 0


def cut_states(frontier: Frontier) -> list[CutState]:
    """Return all frontiers that apply to entries of the log, as cuts, including one whose cut has left the log.

    Drivers of every version assume that the broker owns the entries before the first of these cuts.
    """
    kept = {cut.entry: cut for cut in frontier.cuts()}
    states: list[CutState] = []
    for start, frontier_ms in frontier.ownership.rows:
        cut = kept.get(start - 1)
        if states or cut is not None or frontier_ms != FOREVER_MS:
            number, handback_ms = (cut.number, cut.handback_ms) if cut is not None else (0, 0)
            states.append(CutState(number, start - 1, frontier_ms, handback_ms))
    return states
