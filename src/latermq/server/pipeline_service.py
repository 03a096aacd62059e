"""The broker's side of the requests that the pipeline makes: its state, epochs, pulls, commits, windows and rows."""

from collections.abc import Callable

from latermq.broker.broker import Broker
from latermq.broker.record_pulls import RecordPulls
from latermq.broker.row_schedule import RowSchedule
from latermq.errors import LaterMQError
from latermq.message.names import TIMER_TOPIC
from latermq.protocol.remoting.bodies import encode_body
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.pipeline_bodies import CutState, PipelineState, WindowState
from latermq.protocol.remoting.pipeline_headers import (
    CommitIngestHeader,
    PipelineStateHeader,
    PullRecordsHeader,
    ScheduleRowsHeader,
    WindowReadyHeader,
)
from latermq.protocol.remoting.rows import decode_rows
from latermq.server.admin_ground import Handler, WhenDone, Work, answer, do_at_once, refuse
from latermq.server.connection import Connection
from latermq.server.pending_service import Flushing


class PipelineService:
    """All handlers of the pipeline's requests, by request code."""

    def __init__(
        self,
        broker: Broker,
        flushing: Flushing,
        *,
        beside: Callable[[list[Work], WhenDone], None] = do_at_once,
        timeline: str = "",
    ) -> None:
        """`beside` does work that blocks, in order, off the loop; `timeline` is the folder that this broker reads."""
        self._timeline = timeline
        self._broker = broker
        self._flushing = flushing
        self._beside = beside
        self._ingest = broker.ingest
        # A quarter of a frame is more than the largest header and one record of more than was asked for.
        self._pulls = RecordPulls(broker.store, broker.topics, max_bytes=broker.config.server.max_frame * 3 // 4)
        self._rows = RowSchedule(broker)
        self.handlers: dict[int, Handler] = {
            Request.PIPELINE_STATE: self._state,
            Request.BEGIN_PIPELINE: self._begin,
            Request.PULL_RECORDS: self._pull,
            Request.COMMIT_INGEST: self._commit,
            Request.WINDOW_READY: self._window_ready,
            Request.SCHEDULE_ROWS: self._schedule,
        }

    def _state(self, connection: Connection, command: Command) -> bytes | None:
        def reply() -> bytes:
            return encode_response(command, body=encode_body(self.state()))

        if not command.header(PipelineStateHeader).flush:
            return reply()
        self._flushing.when_flushed(lambda: answer(connection, command, reply()))
        return None

    def _begin(self, connection: Connection, command: Command) -> None:
        epoch = self._ingest.begin()

        def reply() -> bytes:
            # Others may have begun meanwhile: who asked is told the epoch that is its own.
            state = self.state()
            state.epoch = epoch
            return encode_response(command, body=encode_body(state))

        self._answer_when_saved(connection, command, reply)

    def _commit(self, connection: Connection, command: Command) -> None:
        header = command.header(CommitIngestHeader)
        offset = self._ingest.commit(header.offset, header.epoch, self._flushed_entry())
        self._answer_when_saved(
            connection, command, lambda: encode_response(command, fields={"ingestOffset": str(offset)})
        )

    def _answer_when_saved(self, connection: Connection, command: Command, reply: Callable[[], bytes]) -> None:
        """What a driver was told is there after a crash."""

        def when_done(error: LaterMQError | None) -> None:
            if error is None:
                answer(connection, command, reply())
            else:
                refuse(connection, command, error)

        self._beside([self._ingest.save], when_done)

    def _pull(self, connection: Connection, command: Command) -> bytes:
        header = command.header(PullRecordsHeader)
        if header.epoch is not None:
            self._ingest.check(header.epoch)
        pulled = self._pulls.pull(header.topic, header.queueId, header.offset, header.maxBytes, header.untilOffset)
        fields = {
            "nextOffset": str(pulled.next_offset),
            "minOffset": str(pulled.min_offset),
            "flushedOffset": str(pulled.flushed_offset),
        }
        return encode_response(command, fields=fields, body=pulled.records)

    def _window_ready(self, connection: Connection, command: Command) -> bytes:
        header = command.header(WindowReadyHeader)
        self._broker.far.ready(header.number, header.attempt)
        return encode_response(command)

    def _schedule(self, connection: Connection, command: Command) -> bytes | None:
        command.header(ScheduleRowsHeader)
        self._flushing.check_unflushed()
        done = self._rows.schedule(decode_rows(command.body), connection.peer_host)
        fields = {"scheduled": str(done.scheduled), "known": str(done.known)}
        # Rows that are known may have come a moment ago: they are told when they are as safe as new ones.
        return self._flushing.reply_when_flushed(connection, command, encode_response(command, fields=fields))

    def state(self) -> PipelineState:
        """What a driver needs to know of this broker.

        What is done is told as the last checkpoint has it: who removes by it removes nothing that a crash brings back.
        """
        broker, store = self._broker, self._broker.store
        queue = store.find_queue(TIMER_TOPIC, 0)
        marks = store.saved_timer_marks
        offset = self._ingest.offset
        return PipelineState(
            store_id=store.store_id,
            broker_name=broker.config.broker.name,
            epoch=self._ingest.epoch,
            ingest_offset=offset,
            min_entry=queue.min_offset if queue else 0,
            flushed_entry=self._flushed_entry(),
            now_ms=broker.clock.now_ms(),
            done_upto=marks.done_upto if marks else 0,
            done_wake_ms=marks.done_wake_ms if marks else 0,
            done=store.safely_delivered.get(0, []),
            cuts=[
                CutState(cut.number, cut.entry, cut.frontier_ms, cut.handback_ms)
                for cut in broker.far.frontier.cuts_from(offset)
            ],
            windows=[
                WindowState(window.number, window.cut_entry, window.from_ms, window.until_ms, window.attempt)
                for window in broker.far.states()
                if not window.is_skipped  # nobody waits for it
            ],
            timeline=self._timeline,
        )

    def _flushed_entry(self) -> int:
        queue = self._broker.store.find_queue(TIMER_TOPIC, 0)
        return self._broker.store.flushed_end(queue) if queue else 0
