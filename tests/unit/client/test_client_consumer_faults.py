"""The push consumer when its broker fails or sends requests: no message is lost, and every request gets a response."""

import asyncio
import errno
import json
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from latermq.client import Message, PushConsumer
from latermq.message.ids import pack_host
from latermq.message.record_writer import encode_record
from latermq.protocol.remoting.clients import HeartbeatData, LockBatchRequest, LockBatchResponse
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.json_body import decode_body, encode_body, encode_keyed_map
from latermq.protocol.remoting.offsets import UpdateOffsetHeader
from latermq.protocol.remoting.pull import PullHeader
from latermq.protocol.remoting.queues import MessageQueue
from latermq.protocol.remoting.send import SendBackHeader
from tests.support.scripted_server import Answer, ScriptedServer, eventually, scripted_server

GROUP = "g"
TOPIC = "t"


def record(body: bytes, offset: int) -> bytes:
    return encode_record(
        TOPIC.encode(),
        body,
        b"",
        queue_id=0,
        queue_offset=offset,
        physical_offset=offset * 1000,
        born_timestamp_ms=0,
        born_host=pack_host("127.0.0.1", 1),
        store_timestamp_ms=0,
        store_host=pack_host("127.0.0.1", 2),
    )


class OneQueueBroker:
    """A broker with one topic of one queue, which contains `bodies`. A pull beyond them gets no response."""

    def __init__(self, *bodies: bytes) -> None:
        self.bodies = list(bodies)
        self.server: ScriptedServer | None = None
        self.committed: dict[tuple[str, int], int] = {}
        self.sent_back: list[SendBackHeader] = []
        self.answers: dict[int, Callable[[Command], Answer]] = {}
        self.locked_by: str | None = None
        self.unlocked = 0

    def __call__(self, request: Command) -> Answer:
        if request.code in self.answers and (answer := self.answers[request.code](request)) is not None:
            return answer
        if request.code == Request.GET_CONSUMER_LIST_BY_GROUP:
            return encode_response(request, body=encode_body({"consumerIdList": self.members()}))
        if request.code == Request.QUERY_CONSUMER_OFFSET:
            return encode_response(request, Response.QUERY_NOT_FOUND, fields={})
        if request.code in (Request.GET_MIN_OFFSET, Request.GET_MAX_OFFSET):
            return encode_response(request, fields={"offset": "0"})
        if request.code == Request.PULL_MESSAGE:
            return self.pull(request)
        if request.code == Request.UPDATE_CONSUMER_OFFSET:
            header = request.header(UpdateOffsetHeader)
            self.committed[header.topic, header.queueId] = header.commitOffset
        if request.code == Request.CONSUMER_SEND_MSG_BACK:
            self.sent_back.append(request.header(SendBackHeader))
        if request.code == Request.LOCK_BATCH_MQ:
            lock_request = decode_body(request.body, LockBatchRequest)
            granted = lock_request.mqSet if self.locked_by in (None, lock_request.clientId) else []
            return encode_response(request, body=encode_body(LockBatchResponse(lockOKMQSet=granted)))
        if request.code == Request.UNLOCK_BATCH_MQ:
            self.unlocked += 1
        return encode_response(request, fields={})

    def members(self) -> list[str]:
        assert self.server is not None
        heartbeats = [request.body for request in self.server.requests if request.code == Request.HEART_BEAT]
        return sorted({decode_body(body, HeartbeatData).clientID for body in heartbeats})

    def pull(self, request: Command) -> Answer:
        header = request.header(PullHeader)
        if header.topic != TOPIC or header.queueOffset >= len(self.bodies):
            return None
        at = header.queueOffset
        fields = {"nextBeginOffset": str(at + 1), "minOffset": "0", "maxOffset": str(len(self.bodies))}
        return encode_response(request, fields=fields, body=record(self.bodies[at], at))


def run(
    broker: OneQueueBroker,
    handler: Callable[[Message], None],
    scenario: Callable[[ScriptedServer, PushConsumer], Coroutine[None, None, None]],
    **settings: Any,
) -> None:
    async def main() -> None:
        async with scripted_server(broker) as server:
            server.queues = 1
            broker.server = server
            consumer = PushConsumer(
                server.address, GROUP, handler, consume_from="first", commit_every_s=0.05,
                shutdown_wait_s=1.0, lock_every_s=0.1, **settings,
            )  # fmt: skip
            async with consumer:
                await consumer.subscribe(TOPIC)
                await scenario(server, consumer)

    asyncio.run(asyncio.wait_for(main(), 60))


def handler_that_fails_once(
    failure: type[BaseException] = RuntimeError,
) -> tuple[list[Message], Callable[[Message], None]]:
    seen: list[Message] = []

    def handler(message: Message) -> None:
        seen.append(message)
        if len(seen) == 1:
            raise failure("the first one fails")

    return seen, handler


def refuse(request: Command) -> Answer:
    return encode_response(request, Response.SYSTEM_ERROR, fields={}, remark="cannot accept it")


# A task that a handler waits for may be cancelled. This must not cancel the consumer.
@pytest.mark.parametrize("failure", [RuntimeError, asyncio.CancelledError])
def test_a_failed_message_is_sent_back_and_its_queue_continues(failure: type[BaseException]) -> None:
    broker = OneQueueBroker(b"bad", b"good")
    seen, handler = handler_that_fails_once(failure)

    async def scenario(server: ScriptedServer, consumer: PushConsumer) -> None:
        await eventually(lambda: broker.committed.get((TOPIC, 0)) == 2, "both offsets are committed")
        (back,) = broker.sent_back
        assert (back.offset, back.group, back.delayLevel, back.originTopic) == (0, GROUP, 0, TOPIC)
        assert back.maxReconsumeTimes is None  # the group decides
        assert [message.body for message in seen] == [b"bad", b"good"]

    run(broker, handler, scenario)


def test_a_message_that_cannot_be_sent_back_is_retried_locally_and_blocks_the_commit() -> None:
    broker = OneQueueBroker(b"bad", b"good")
    broker.answers[Request.CONSUMER_SEND_MSG_BACK] = refuse
    seen, handler = handler_that_fails_once()

    async def scenario(server: ScriptedServer, consumer: PushConsumer) -> None:
        await eventually(lambda: len(seen) == 2, "the second message is handled meanwhile")
        assert broker.committed.get((TOPIC, 0), 0) == 0
        await eventually(lambda: len(seen) == 3, "the first message is handled again")
        assert (seen[2].body, seen[2].reconsume_times) == (b"bad", 1)
        await eventually(lambda: broker.committed.get((TOPIC, 0)) == 2, "both offsets are committed")

    run(broker, handler, scenario)


@pytest.mark.parametrize("failure", [RuntimeError, asyncio.CancelledError])
def test_orderly_a_failed_message_blocks_its_queue(failure: type[BaseException]) -> None:
    broker = OneQueueBroker(b"one", b"two")
    seen, handler = handler_that_fails_once(failure)

    async def scenario(server: ScriptedServer, consumer: PushConsumer) -> None:
        await eventually(lambda: len(seen) == 3, "all are handled")
        assert [message.body for message in seen] == [b"one", b"one", b"two"]
        assert broker.sent_back == []

    run(broker, handler, scenario, orderly=True)
    assert broker.unlocked >= 1, "a member that leaves releases its locks"
    assert broker.committed[TOPIC, 0] == 2


def test_orderly_no_message_is_handled_while_another_member_holds_the_lock() -> None:
    broker = OneQueueBroker(b"one")
    broker.locked_by = "another member"
    seen: list[Message] = []

    async def scenario(server: ScriptedServer, consumer: PushConsumer) -> None:
        assert consumer.statistics()["queues"] == 0
        broker.locked_by = None
        await eventually(lambda: seen, "the queue is acquired once it is free")

    run(broker, seen.append, scenario, orderly=True)


def test_orderly_a_lost_lock_stops_its_queue_at_once() -> None:
    broker = OneQueueBroker(b"one")
    seen: list[Message] = []

    async def scenario(server: ScriptedServer, consumer: PushConsumer) -> None:
        await eventually(lambda: len(seen) == 1, "the first is handled")
        broker.locked_by = "another member"
        before = server.count(Request.LOCK_BATCH_MQ)
        await eventually(lambda: server.count(Request.LOCK_BATCH_MQ) >= before + 2, "the locks are requested again")
        broker.bodies.append(b"two")
        # The script does not answer the pull that it holds. A reset makes the consumer pull again.
        table = encode_keyed_map([(MessageQueue(TOPIC, "broker-a", 0), 1)])
        fields = {"topic": TOPIC, "group": GROUP, "timestamp": "0"}
        server.send_request(Request.RESET_CONSUMER_CLIENT_OFFSET, fields, encode_body({"offsetTable": table}))
        await eventually(lambda: consumer.statistics()["cached_messages"] == 1, "the second is pulled")
        await asyncio.sleep(0.3)
        assert len(seen) == 1
        broker.locked_by = None
        await eventually(lambda: len(seen) == 2, "the second is handled once the lock is granted again")

    run(broker, seen.append, scenario, orderly=True)


def test_a_broker_that_forgot_the_subscription_gets_a_heartbeat() -> None:
    broker = OneQueueBroker(b"one")
    refusals = [1]

    def reject_once(request: Command) -> Answer:
        if request.header(PullHeader).topic == TOPIC and refusals and refusals.pop():
            return encode_response(request, Response.SUBSCRIPTION_NOT_EXIST, fields={}, remark="unknown subscription")
        return None

    broker.answers[Request.PULL_MESSAGE] = reject_once
    seen: list[Message] = []

    async def scenario(server: ScriptedServer, consumer: PushConsumer) -> None:
        before = server.count(Request.HEART_BEAT)
        await eventually(lambda: seen, "the message is delivered")
        await eventually(lambda: server.count(Request.HEART_BEAT) > before, "an additional heartbeat")

    run(broker, seen.append, scenario)


def test_an_offset_out_of_range_is_corrected() -> None:
    broker = OneQueueBroker(b"old", b"new")

    def report_moved_offset(request: Command) -> Answer:
        header = request.header(PullHeader)
        if header.topic == TOPIC and header.queueOffset == 0:
            fields = {"nextBeginOffset": "1", "minOffset": "1", "maxOffset": "2"}
            return encode_response(request, Response.PULL_OFFSET_MOVED, fields=fields)
        return None

    broker.answers[Request.PULL_MESSAGE] = report_moved_offset
    seen: list[Message] = []

    async def scenario(server: ScriptedServer, consumer: PushConsumer) -> None:
        await eventually(lambda: broker.committed.get((TOPIC, 0)) == 2, "the corrected offset is committed")
        assert [message.body for message in seen] == [b"new"]

    run(broker, seen.append, scenario)


def test_offsets_are_reset_on_request_and_the_queue_is_read_again() -> None:
    broker = OneQueueBroker(b"one", b"two")
    seen: list[Message] = []

    async def scenario(server: ScriptedServer, consumer: PushConsumer) -> None:
        await eventually(lambda: len(seen) == 2, "both are handled")
        table = encode_keyed_map([(MessageQueue(TOPIC, "broker-a", 0), 1)])
        fields = {"topic": TOPIC, "group": GROUP, "timestamp": "0", "isForce": "true"}
        server.send_request(Request.RESET_CONSUMER_CLIENT_OFFSET, fields, encode_body({"offsetTable": table}))
        await eventually(lambda: len(seen) == 3, "the second is handled again")
        assert seen[2].body == b"two"

    run(broker, seen.append, scenario)


def test_the_consumer_reports_its_positions_and_its_state() -> None:
    broker = OneQueueBroker(b"one")
    seen: list[Message] = []

    async def scenario(server: ScriptedServer, consumer: PushConsumer) -> None:
        await eventually(lambda: broker.committed.get((TOPIC, 0)) == 1, "the message is handled")
        server.send_request(Request.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": TOPIC, "group": GROUP})
        await eventually(lambda: server.responses, "a response")
        assert server.responses.pop().body == (
            b'{"messageQueueTable":{{"topic":"t","brokerName":"broker-a","queueId":0}:1},"consumerTable":{}}'
        )
        server.send_request(Request.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": GROUP, "clientId": consumer.client_id})
        await eventually(lambda: server.responses, "a response")
        body = server.responses.pop().body
        assert b'"PROP_CONSUMEORDERLY":"false"' in body
        assert b'"commitOffset":1' in body
        server.send_request(
            Request.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "other", "clientId": consumer.client_id}
        )
        await eventually(lambda: server.responses, "a response")
        assert server.responses.pop().code == Response.SYSTEM_ERROR

    run(broker, seen.append, scenario)


def test_a_message_is_handled_directly_on_request() -> None:
    _, handler = handler_that_fails_once()

    async def scenario(server: ScriptedServer, consumer: PushConsumer) -> None:
        results = []
        for _ in range(2):
            server.send_request(Request.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": GROUP}, record(b"now", 9))
            await eventually(lambda: server.responses, "a response")
            results.append(json.loads(server.responses.pop().body))
        assert [result["consumeResult"] for result in results] == ["CR_THROW_EXCEPTION", "CR_SUCCESS"]
        assert "the first one fails" in results[0]["remark"]

    run(OneQueueBroker(), handler, scenario)


def test_an_unknown_request_gets_an_error_response() -> None:
    async def scenario(server: ScriptedServer, consumer: PushConsumer) -> None:
        server.send_request(9999, {})
        await eventually(lambda: server.responses, "a response")
        assert server.responses.pop().code == Response.REQUEST_CODE_NOT_SUPPORTED

    run(OneQueueBroker(), lambda message: None, scenario)


def test_prefetched_messages_are_bounded() -> None:
    broker = OneQueueBroker(*(b"%d" % number for number in range(50)))

    async def main() -> None:
        release = asyncio.Event()

        async def handler(message: Message) -> None:
            await release.wait()

        async with scripted_server(broker) as server:
            server.queues = 1
            broker.server = server
            consumer = PushConsumer(
                server.address, GROUP, handler, consume_from="first", max_cached_messages=5, concurrency=2
            )
            async with consumer:
                await consumer.subscribe(TOPIC)
                await eventually(lambda: consumer.statistics()["cached_messages"] == 5, "the cache is full")
                await asyncio.sleep(0.1)
                assert consumer.statistics()["cached_messages"] == 5
                assert consumer.statistics()["running_handlers"] == 2
                release.set()
                await eventually(lambda: consumer.statistics()["handled"] == 50, "all are handled")

    asyncio.run(asyncio.wait_for(main(), 60))


def test_broadcasting_resumes_when_its_offsets_can_be_stored_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "latermq.client")
    broker = OneQueueBroker(b"one", b"two")
    folder = tmp_path / "offsets"
    folder.touch()  # a file instead of a folder, so that reads fail
    offsets_file = folder / f"{GROUP}_default.json"
    seen: list[bytes] = []
    disk_full = [True]
    sync = os.fsync

    def fail_while_disk_is_full(file: int) -> None:
        if disk_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(file)

    monkeypatch.setattr(os, "fsync", fail_while_disk_is_full)

    async def scenario(server: ScriptedServer, consumer: PushConsumer) -> None:
        assert seen == []
        folder.unlink()
        await eventually(lambda: seen == [b"one", b"two"], "both are handled")
        await eventually(lambda: caplog.text.count("cannot store offsets") >= 2, "two failed commits")
        assert not offsets_file.exists()
        disk_full.clear()
        await eventually(
            lambda: offsets_file.exists() and b'"offset":2' in offsets_file.read_bytes(), "the offset is stored"
        )

    run(broker, lambda message: seen.append(message.body), scenario, model="broadcasting", offsets_folder=folder)


def test_close_waits_for_running_handlers_and_commits_their_messages() -> None:
    broker = OneQueueBroker(b"slow", b"never handled")

    async def main() -> None:
        started, release = asyncio.Event(), asyncio.Event()

        async def handler(message: Message) -> None:
            started.set()
            await release.wait()

        async with scripted_server(broker) as server:
            server.queues = 1
            broker.server = server
            consumer = PushConsumer(server.address, GROUP, handler, consume_from="first", concurrency=1)
            await consumer.start()
            await consumer.subscribe(TOPIC)
            await started.wait()
            close_task = asyncio.create_task(consumer.close())
            await asyncio.sleep(0.05)
            assert not close_task.done()
            release.set()
            await close_task
            assert broker.committed[TOPIC, 0] == 1
            assert server.count(Request.UNREGISTER_CLIENT) == 1

    asyncio.run(asyncio.wait_for(main(), 60))
