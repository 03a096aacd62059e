"""The first message of a topic waits for the topic to be saved, and nobody else does."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from latermq.errors import StoreError
from latermq.message.properties import encode_properties
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import BINARY, FLAG_ONEWAY, JSON, encode_frame
from latermq.server.broker.process import BrokerProcess
from latermq.server.handlers import topic_save_queue
from tests.integration.brokers import pull, run_with_broker, send, send_fields
from tests.integration.raw_client import connect, eventually

TOPICS = "config/topics.json"


@contextmanager
def no_room_for_topics(process: BrokerProcess) -> Iterator[None]:
    """The disk is full whenever topics.json is to be written."""
    replace = process._disk.replace

    def fail(path: str, data: bytes) -> None:
        if path == TOPICS:
            raise StoreError("cannot write config/topics.json: No space left on device", hint="Free disk space")
        replace(path, data)

    process._disk.replace = fail  # type: ignore[method-assign]
    try:
        yield
    finally:
        process._disk.replace = replace  # type: ignore[method-assign]


@contextmanager
def slow_disk(process: BrokerProcess, go: threading.Event) -> Iterator[None]:
    """Writing the table of topics takes until `go` is set."""
    replace = process._disk.replace

    def wait(path: str, data: bytes) -> None:
        if path == TOPICS:
            assert go.wait(30)
        replace(path, data)

    process._disk.replace = wait  # type: ignore[method-assign]
    try:
        yield
    finally:
        go.set()
        process._disk.replace = replace  # type: ignore[method-assign]


def waiting(process: BrokerProcess) -> int:
    """How many requests wait for their topics to be saved."""
    return process.service.statistics()["unsaved_requests"]


def test_others_are_served_while_a_new_topic_is_saved(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        go = threading.Event()
        async with connect(process.listener.port) as first, connect(process.listener.port) as other:
            assert (await send(other, "old")).code == Response.SUCCESS
            with slow_disk(process, go):
                for number in range(3):
                    await first.send_only(Request.SEND_MESSAGE_V2, send_fields("new"), b"%d" % number)
                assert (await send(other, "old")).code == Response.SUCCESS
                answer = asyncio.create_task(first.receive())
                await asyncio.sleep(0.1)
                assert not answer.done()
                assert "new" not in msgspec.json.decode((tmp_path / TOPICS).read_bytes())["topicConfigTable"]
                go.set()
                replies = [await answer, await first.receive(), await first.receive()]
            assert [reply.code for reply in replies] == [Response.SUCCESS] * 3
            assert "new" in msgspec.json.decode((tmp_path / TOPICS).read_bytes())["topicConfigTable"]
            _, messages = await pull(first, "new")
            assert [message.body for message in messages] == [b"0", b"1", b"2"]

    run_with_broker(tmp_path, scenario)


def test_a_message_is_refused_for_as_long_as_its_topic_cannot_be_saved(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            with no_room_for_topics(process):
                for _ in range(3):
                    reply = await send(client, "new")
                    assert reply.code != Response.SUCCESS
                    assert "topics.json" in (reply.remark or "")
            assert (await send(client, "new")).code == Response.SUCCESS

    run_with_broker(tmp_path, scenario)


def test_a_one_way_message_makes_its_topic_though_its_sender_has_gone(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        go = threading.Event()
        with slow_disk(process, go):
            async with connect(process.listener.port) as client:
                frame = encode_frame(Request.SEND_MESSAGE_V2, 7, flag=FLAG_ONEWAY, fields=send_fields("new"), body=b"x")
                await client.send(frame)
                await eventually(lambda: waiting(process) or None, "the request waits for its topic")
            await asyncio.sleep(0.1)
            go.set()
            await eventually(lambda: process.broker.store.queues.find("new", 0), "the message is stored")

    run_with_broker(tmp_path, scenario)


def test_a_later_message_of_a_client_does_not_overtake_one_that_waits_for_its_topic(tmp_path: Path) -> None:
    """The file is written by another thread: a message may come between that and the news of it."""

    async def scenario(process: BrokerProcess) -> None:
        go, done = threading.Event(), threading.Event()
        savers = process.broker.tables.savers

        def wait() -> None:
            assert done.wait(10)

        def late_news(*, with_offsets: bool = True) -> list[Callable[[], None]]:
            return [*savers(with_offsets=with_offsets), wait]

        async with connect(process.listener.port) as client:
            with slow_disk(process, go):
                process.broker.tables.savers = late_news  # type: ignore[method-assign]
                await client.send_only(Request.SEND_MESSAGE_V2, send_fields("new"), b"first")
                await eventually(lambda: waiting(process) or None, "the request waits for its topic")
                go.set()
                await eventually(lambda: process.broker.topics.is_saved("new") or None, "the topic is saved")
                await client.send_only(Request.SEND_MESSAGE_V2, send_fields("new"), b"second")
                await asyncio.sleep(0.1)
                done.set()
                assert [(await client.receive()).code for _ in range(2)] == [Response.SUCCESS] * 2
            _, messages = await pull(client, "new")
            assert [message.body for message in messages] == [b"first", b"second"]

    run_with_broker(tmp_path, scenario)


def test_a_plain_message_that_is_taken_the_short_way_does_not_overtake_either(tmp_path: Path) -> None:
    """Another client's message opens the topic between its saving and the news of that."""

    async def scenario(process: BrokerProcess) -> None:
        go, done = threading.Event(), threading.Event()
        savers = process.broker.tables.savers

        def wait() -> None:
            assert done.wait(10)

        def late_news(*, with_offsets: bool = True) -> list[Callable[[], None]]:
            return [*savers(with_offsets=with_offsets), wait]

        async with connect(process.listener.port) as client, connect(process.listener.port) as other:
            with slow_disk(process, go):
                process.broker.tables.savers = late_news  # type: ignore[method-assign]
                await client.send_only(Request.SEND_MESSAGE_V2, send_fields("new"), b"first")
                await eventually(lambda: waiting(process) or None, "the request waits for its topic")
                go.set()
                await eventually(lambda: process.broker.topics.is_saved("new") or None, "the topic is saved")
                assert (await send(other, "new", body=b"other")).code == Response.SUCCESS
                await client.send_only(Request.SEND_MESSAGE_V2, send_fields("new"), b"second")
                await asyncio.sleep(0.1)
                done.set()
                assert [(await client.receive()).code for _ in range(2)] == [Response.SUCCESS] * 2
            _, messages = await pull(client, "new")
            assert [message.body for message in messages] == [b"other", b"first", b"second"]

    run_with_broker(tmp_path, scenario)


def test_a_message_is_taken_though_deleting_another_topic_failed_before_its_own_was_saved(tmp_path: Path) -> None:
    """Both changes of the table were to be saved by the work that failed."""

    async def scenario(process: BrokerProcess) -> None:
        broker, replace = process.broker, process._disk.replace

        def fail(path: str, data: bytes) -> None:
            if path == "latermq.checkpoint":
                raise StoreError("cannot write latermq.checkpoint: No space left on device", hint="Free disk space")
            replace(path, data)

        async with connect(process.listener.port) as client:
            assert (await send(client, "old")).code == Response.SUCCESS
            process._disk.replace = fail  # type: ignore[method-assign]
            broker.topics.create_retry_topic("%RETRY%readers", 1)
            assert (await client.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": "old"})).code != Response.SUCCESS
            process._disk.replace = replace  # type: ignore[method-assign]
            assert (await asyncio.wait_for(send(client, "%RETRY%readers"), 5)).code == Response.SUCCESS
        saved = msgspec.json.decode((tmp_path / TOPICS).read_bytes())["topicConfigTable"]
        assert "%RETRY%readers" in saved
        assert "old" not in saved

    run_with_broker(tmp_path, scenario)


@pytest.mark.parametrize("encoding", [JSON, BINARY])
@pytest.mark.parametrize("part", ["body", "properties"])
def test_messages_that_wait_for_their_topic_are_bounded_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, encoding: int
) -> None:
    text = "x" * 1_000
    properties, body = (f"a\x01{text}", b"") if part == "properties" else ("", text.encode())
    monkeypatch.setattr(topic_save_queue, "MAX_UNSAVED_BYTES", 2_000)

    async def scenario(process: BrokerProcess) -> None:
        go = threading.Event()
        port = process.listener.port
        async with connect(port) as first, connect(port) as second, connect(port) as third:
            fields = send_fields("new", properties=properties)
            frame = encode_frame(Request.SEND_MESSAGE_V2, 1, fields=fields, body=body, encoding=encoding)
            with slow_disk(process, go):
                await first.send(frame)
                await second.send(frame)
                await eventually(lambda: waiting(process) == 2, "two messages wait")
                await third.send(frame)
                assert (await third.receive()).code == Response.SYSTEM_BUSY
                go.set()
                assert [(await client.receive()).code for client in (first, second)] == [Response.SUCCESS] * 2
            assert (await send(first, "new")).code == Response.SUCCESS

    run_with_broker(tmp_path, scenario)


def test_a_client_that_sends_on_while_its_topic_is_saved_waits_and_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_save_queue, "MAX_UNSAVED_BYTES", 4_000)

    async def scenario(process: BrokerProcess) -> None:
        go = threading.Event()
        async with connect(process.listener.port) as client, connect(process.listener.port) as other:
            assert (await send(other, "old")).code == Response.SUCCESS
            with slow_disk(process, go):
                for number in range(50):
                    await client.send_only(Request.SEND_MESSAGE_V2, send_fields("new"), b"%04d" % number * 250)
                assert (await send(other, "old")).code == Response.SUCCESS
                go.set()
                assert {(await client.receive()).code for _ in range(50)} == {Response.SUCCESS}
            _, messages = await pull(client, "new")
            assert [message.body[:4] for message in messages] == [b"%04d" % number for number in range(32)]

    run_with_broker(tmp_path, scenario)


def test_a_cancel_does_not_overtake_the_timer_that_waits_for_its_topic(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        go = threading.Event()
        async with connect(process.listener.port) as client:
            with slow_disk(process, go):
                properties = encode_properties({"UNIQ_KEY": "order-1", "TIMER_DELAY_SEC": "3600"})
                await client.send_only(Request.SEND_MESSAGE_V2, send_fields("new", properties=properties), b"timer")
                await client.send_only(Request.CANCEL_TIMER, {"topic": "new", "uniqueKey": "order-1"})
                await asyncio.sleep(0.1)
                go.set()
                replies = [await client.receive() for _ in range(2)]
            assert [reply.code for reply in replies] == [Response.SUCCESS] * 2
            assert process.broker.timers.pending["new"] == 0

    run_with_broker(tmp_path, scenario)


def test_a_topic_that_cannot_be_saved_is_no_reason_to_refuse_what_came_behind_its_message(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            assert (await send(client, "old")).code == Response.SUCCESS
            frames = [
                encode_frame(Request.SEND_MESSAGE_V2, number, fields=send_fields(topic), body=b"x")
                for number, topic in enumerate(("new", "old", "new"))
            ]
            with no_room_for_topics(process):
                await client.send(b"".join(frames))
                codes = {reply.opaque: reply.code for reply in [await client.receive() for _ in range(3)]}
            assert [codes[number] == Response.SUCCESS for number in range(3)] == [False, True, False]

    run_with_broker(tmp_path, scenario)
