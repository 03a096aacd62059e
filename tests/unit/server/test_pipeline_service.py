"""Requests of the pipeline, sent as frames: what the broker replies, when, and what it replies if the disk fails."""

import re
from collections.abc import Callable
from typing import cast

import pytest

from latermq.clock import SimulatedClock
from latermq.config import PipelineConfig
from latermq.errors import IllegalOperation, InvalidParameter, LaterMQError, StoreError
from latermq.message.names import TIMER_TOPIC
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline_secret import Recipient, sign
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import FLAG_ONEWAY, Command, FrameReader, encode_frame, encode_response
from latermq.protocol.remoting.pipeline import decode_state
from latermq.protocol.remoting.rows import decode_receiver, encode_rows, no_rows
from latermq.server.broker.composition import pipeline_requests
from latermq.server.broker.pipeline_folder import OnToken
from latermq.server.handlers.pipeline import PipelineRequests
from latermq.server.remoting.connection import Connection
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import HOST, open_broker, pass_time
from tests.support.request_tables import table_of
from tests.support.rows import Row, batch_of

Work = Callable[[], None]
SECRET = b"s" * 32
INSTANCE = "i"


class Scene:
    """A service over a broker in memory, whose off-loop work runs when the test calls `work`."""

    peer_host = peer_name = HOST

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.clock = SimulatedClock()
        self.broker = open_broker(self.disk, self.clock, pipeline=PipelineConfig(enabled=True))
        self.service = self.serve()
        self.root_uri = "/its/folder"
        self.token: str | LaterMQError = "mine"  # what a driver left there
        self.sent: list[bytes] = []
        self.watchers: list[Work] = []
        self._works: list[tuple[list[Work], Callable[[LaterMQError | None], None]]] = []

    def serve(self) -> PipelineRequests:
        return pipeline_requests(
            self.broker, self, run_off_loop=self._run_off_loop, tokens=self, instance=INSTANCE, secret=SECRET
        )

    def read(self, on_token: OnToken) -> None:
        on_token(self.token)

    def check_room(self) -> None: ...

    def reply_when_flushed(self, connection: Connection, command: Command, reply: bytes) -> bytes | None:
        return reply

    def when_flushed(self, then: Callable[[], None]) -> None:
        self.watchers.append(then)

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)

    def refuse(self, command: Command, error: LaterMQError) -> bytes:
        return encode_response(command, error.code, remark=error.remark)

    def _run_off_loop(self, works: list[Work], when_done: Callable[[LaterMQError | None], None]) -> None:
        self._works.append((works, when_done))

    def work(self) -> None:
        """Run the pending off-loop work."""
        works, self._works = self._works, []
        for some, when_done in works:
            try:
                for one in some:
                    one()
            except LaterMQError as error:
                when_done(error)
            else:
                when_done(None)

    def ask(self, code: int, body: bytes = b"", *, flag: int = 0, **fields: object) -> Command | None:
        """Return the answer, or None if it comes later."""
        frame = encode_frame(code, 1, flag=flag, fields={name: str(value) for name, value in fields.items()}, body=body)
        [command] = FrameReader().feed(frame)
        reply = table_of(self.service).serve(cast(Connection, self), command)
        return FrameReader().feed(reply)[0] if reply is not None else None

    def ask_signed(self, code: int, *, flag: int = 0, **fields: object) -> Command | None:
        recipient = Recipient(self.broker.store.store_id, INSTANCE)
        return self.ask(code, b"", flag=flag, **fields, signature=sign(SECRET, code, recipient, fields))

    def begin(self, *, token: str = "mine", table_end: int = 0, flag: int = 0) -> None:
        epoch = self.broker.ingest.epoch
        self.ask_signed(Request.BEGIN_PIPELINE, flag=flag, token=token, tableEnd=table_end, afterEpoch=epoch)

    def later(self) -> Command:
        """The answer that came later."""
        [command] = FrameReader().feed(self.sent.pop(0))
        return command


def test_an_epoch_is_reported_when_it_is_on_disk() -> None:
    scene = Scene()
    scene.begin()
    assert scene.sent == []
    scene.work()
    assert decode_state(scene.later().body).epoch == 1


def test_a_driver_that_uses_the_same_folder_is_given_an_epoch() -> None:
    scene = Scene()
    scene.begin()
    scene.work()
    state = decode_state(scene.later().body)
    assert (state.epoch, state.instance) == (1, "i")


@pytest.mark.parametrize("found", ["", "another's", StoreError("the folder does not answer")])
def test_a_driver_that_uses_another_folder_ends_no_other(found: str | LaterMQError) -> None:
    scene = Scene()
    scene.begin()
    scene.work()
    assert decode_state(scene.later().body).epoch == 1
    scene.token = found
    for _ in range(5):
        scene.begin()
        scene.work()
        reply = scene.later()
        assert reply.code != Response.SUCCESS
        assert re.search("the folder does not answer|/its/folder: the driver uses another", reply.remark or "")
    assert scene.broker.ingest.epoch == 1
    assert scene.ask_signed(Request.COMMIT_INGEST, offset=0, epoch=1) is None  # the first one goes on


def test_a_broker_of_which_nothing_is_sparks_does_not_mind_the_folder() -> None:
    scene = Scene()
    scene.broker = open_broker(MemoryDisk(), scene.clock)
    scene.service = scene.serve()
    scene.begin()
    scene.work()
    assert decode_state(scene.later().body).epoch == 1


def test_a_driver_whose_table_does_not_fit_the_log_ends_no_other() -> None:
    scene = Scene()
    scene.begin(table_end=5)
    reply = scene.later()
    assert reply.code == InvalidParameter.code
    assert "ends at entry 5, but the timer topic is flushed up to 0" in (reply.remark or "")
    assert scene.broker.ingest.epoch == 0


def test_an_attempt_of_a_driver_that_another_followed_is_refused() -> None:
    scene = Scene()
    for _ in range(2):
        scene.begin()
        scene.work()
    with pytest.raises(IllegalOperation, match="epoch 1 is over"):
        scene.ask_signed(Request.WINDOW_READY, number=1, attempt="spark-1-x", epoch=1)


def test_two_drivers_that_begin_at_once_get_different_epochs() -> None:
    scene = Scene()
    scene.begin()
    scene.begin()
    scene.work()
    assert [decode_state(scene.later().body).epoch for _ in range(2)] == [1, 2]


def test_a_disk_that_fails_is_reported_and_no_epoch() -> None:
    scene = Scene()

    def fail(operation: str, path: str) -> None:
        raise StoreError("no disk space for it")

    scene.disk.before_step = fail
    scene.begin()
    scene.work()
    reply = scene.later()
    assert (reply.code, reply.body) == (StoreError.code, b"")
    assert reply.remark == "no disk space for it"


def test_a_request_without_rows_is_answered_with_what_rows_may_have() -> None:
    scene = Scene()
    reply = scene.ask(Request.SCHEDULE_ROWS, encode_rows(no_rows()), job="j")
    assert reply is not None
    limits = decode_receiver(reply).limits
    settings = scene.broker.config
    assert limits.max_body_bytes == settings.broker.max_message
    assert limits.max_delay_ms == settings.timer.max_delay
    assert limits.creates_topics == settings.broker.auto_create_topics


def test_the_state_is_reported_once_what_was_stored_before_is_flushed_if_that_is_asked_for() -> None:
    scene = Scene()
    now_ms = scene.clock.now_ms()
    scene.ask(Request.SCHEDULE_ROWS, encode_rows(batch_of([Row("a", now_ms + 60_000)])), job="j")
    reply = scene.ask(Request.PIPELINE_STATE)
    assert reply is not None
    assert decode_state(reply.body).flushed_entry == 0
    assert scene.ask(Request.PIPELINE_STATE, flush="true") is None
    assert scene.sent == []
    scene.broker.store.flush()
    scene.watchers.pop()()
    assert decode_state(scene.later().body).flushed_entry == 1


def test_who_wants_no_answer_gets_none() -> None:
    scene = Scene()
    scene.begin(flag=FLAG_ONEWAY)
    scene.work()
    assert scene.sent == []


def test_the_state_tells_what_is_done_as_the_last_checkpoint_has_it() -> None:
    scene = Scene()

    def state() -> PipelineState:
        reply = scene.ask(Request.PIPELINE_STATE)
        assert reply is not None
        return decode_state(reply.body)

    now_ms = scene.clock.now_ms()
    rows = [Row("soon", now_ms + 1_000), Row("later", now_ms + 86_400_000), Row("soon too", now_ms + 2_000)]
    scene.ask(Request.SCHEDULE_ROWS, encode_rows(batch_of(rows)), job="tests")
    scene.broker.store.flush()
    before = state()
    assert (before.min_entry, before.flushed_entry, before.done) == (0, 3, [])
    pass_time(scene.broker, scene.clock, 5_000)
    assert state().done_wake_ms == before.done_wake_ms
    scene.broker.store.save(scene.broker.store.plan_checkpoint())
    after = state()
    assert after.done_upto == 3
    assert now_ms + 2_000 < after.done_wake_ms <= scene.clock.now_ms() == after.now_ms
    assert after.store_id == "s" * 32


def test_what_is_not_flushed_is_neither_reported_nor_committed() -> None:
    scene = Scene()
    scene.begin()
    scene.work()
    scene.ask(Request.SCHEDULE_ROWS, encode_rows(batch_of([Row("K", scene.clock.now_ms() + 1_000)])), job="tests")
    pulled = scene.ask(Request.PULL_RECORDS, topic=TIMER_TOPIC, queueId=0, offset=0, epoch=1)
    assert pulled is not None
    assert (pulled.code, pulled.body) == (Response.SUCCESS, b"")
    assert pulled.text_fields() == {"nextOffset": "0", "minOffset": "0", "flushedOffset": "0"}
    scene.broker.store.flush()
    pulled = scene.ask(Request.PULL_RECORDS, topic=TIMER_TOPIC, queueId=0, offset=0, epoch=1)
    assert pulled is not None
    assert pulled.body
    assert scene.ask_signed(Request.COMMIT_INGEST, offset=1, epoch=1) is None
    assert scene.broker.ingest.offset == 0
    scene.work()
    assert scene.broker.ingest.offset == 1
