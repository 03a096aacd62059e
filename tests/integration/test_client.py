"""The SDK against a running cluster: LaterMQ, or Apache RocketMQ when LATERMQ_INTEROP_TARGET=apache."""

import asyncio
import itertools
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest

from latermq.client import Admin, Message, OutgoingMessage, Producer, PullConsumer, PushConsumer, Sql, blocking
from latermq.errors import FilterError, QueryNotFound, TopicNotFound
from tests.integration.client_cluster import client_cluster
from tests.interop.peer import apache_peer
from tests.interop.target import IS_APACHE
from tests.interop.waiting import wait_until
from tests.support.serving import serving

_numbers = itertools.count()


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with client_cluster(tmp_path_factory.mktemp("client")) as address:
        yield address


@pytest.fixture
def topic(namesrv: str) -> str:
    """A topic of this test alone, with four queues."""
    name = f"t{next(_numbers)}"
    with blocking.Admin(namesrv) as admin:
        admin.create_topic(name, queues=4)
    return name


@pytest.fixture
def group() -> str:
    return f"g{next(_numbers)}"


def run(scenario: Coroutine[None, None, None], timeout_s: float = 90.0) -> None:
    asyncio.run(asyncio.wait_for(scenario, timeout_s))


async def eventually(condition: Callable[[], object], description: str, timeout_s: float = 30.0) -> None:
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline_s, f"not within {timeout_s:g} s: {description}"
        await asyncio.sleep(0.02)


async def send_numbers(producer: Producer, topic: str, count: int, **properties: str) -> None:
    futures = []
    for number in range(count):
        message = OutgoingMessage(
            topic, b"%d" % number, tag="odd" if number % 2 else "even", keys=f"k{number}",
            properties={"number": str(number), **properties},
        )  # fmt: skip
        futures.append(producer.submit(message))
    await asyncio.gather(*futures)


def numbers(messages: list[Message]) -> list[int]:
    return sorted(int(message.body) for message in messages)


@pytest.mark.parametrize("encoding", ["json", "rocketmq"])
def test_everything_about_a_message_arrives(namesrv: str, topic: str, encoding: str) -> None:
    async def scenario() -> None:
        async with (
            Producer(namesrv, encoding=encoding) as producer,
            PullConsumer(namesrv, encoding=encoding) as consumer,
        ):
            queue = (await consumer.queues(topic))[2]
            large = bytes(range(256)) * 100
            sent = [
                await producer.send(
                    OutgoingMessage(topic, b"small", tag="red", keys=["a", "b"], properties={"p": "ü \"'\\"}, flag=7),
                    queue=queue,
                ),
                await producer.send(OutgoingMessage(topic, large), queue=queue),
                await producer.send(OutgoingMessage(topic, b"\0"), queue=queue),
            ]
            result = await consumer.pull(queue, 0)
            assert (result.status, result.next_offset, result.max_offset) == ("FOUND", 3, 3)
            first, second, third = result.messages
            assert (first.topic, first.body, first.flag, first.queue_id) == (topic, b"small", 7, 2)
            assert first.properties | {"TAGS": "red", "KEYS": "a b", "p": "ü \"'\\"} == first.properties
            assert (second.body, third.body) == (large, b"\0")
            assert [message.properties["UNIQ_KEY"] for message in result.messages] == [one.message_id for one in sent]
            assert [message.message_id for message in result.messages] == [one.offset_message_id for one in sent]
            assert [one.queue_offset for one in sent] == [0, 1, 2]
            assert all(one.queue == queue and one.status == "SEND_OK" for one in sent)

    run(scenario())


def test_a_topic_is_created_by_the_first_send(namesrv: str) -> None:
    async def scenario() -> None:
        name = f"auto_created_{next(_numbers)}"
        async with Producer(namesrv) as producer, Admin(namesrv) as admin:
            await producer.send(OutgoingMessage(name, b"first"))
            deadline_s = time.monotonic() + 10
            while name not in await admin.topics():
                assert time.monotonic() < deadline_s, "the name server does not know the topic"
                await asyncio.sleep(0.05)
            assert [queue.writeQueueNums for queue in (await admin.route(name)).queueDatas] == [4]

    run(scenario())


def test_a_batch_is_stored_as_single_messages_in_one_queue(namesrv: str, topic: str) -> None:
    async def scenario() -> None:
        async with Producer(namesrv) as producer, PullConsumer(namesrv) as consumer:
            messages = [OutgoingMessage(topic, b"%d" % number, tag="x") for number in range(20)]
            result = await producer.send_batch(messages, shard="one")
            pulled = await consumer.pull(result.queue, 0)
            assert numbers(pulled.messages) == list(range(20))
            assert [m.properties["UNIQ_KEY"] for m in pulled.messages] == result.message_id.split(",")

    run(scenario())


def test_one_way_messages_arrive(namesrv: str, topic: str) -> None:
    async def scenario() -> None:
        async with Producer(namesrv) as producer, Admin(namesrv) as admin:
            for _ in range(10):
                await producer.send_oneway(OutgoingMessage(topic, b"x"))
            # A message with a response, after them on the same connection.
            await producer.send(OutgoingMessage(topic, b"last"))

            async def stored() -> int:
                return sum(queue.maxOffset for queue in (await admin.topic_stats(topic)).values())

            deadline_s = time.monotonic() + 10
            while await stored() < 11:
                assert time.monotonic() < deadline_s, "one-way messages did not arrive"
                await asyncio.sleep(0.05)

    run(scenario())


def test_a_shard_keeps_its_queue_and_its_order(namesrv: str, topic: str, group: str) -> None:
    seen: defaultdict[str, list[int]] = defaultdict(list)

    def handler(message: Message) -> None:
        seen[message.properties["shard"]].append(int(message.body))

    async def scenario() -> None:
        async with (
            Producer(namesrv) as producer,
            PushConsumer(namesrv, group, handler, orderly=True, consume_from="first") as consumer,
        ):
            await consumer.subscribe(topic)

            async def send_shard(shard: str) -> None:
                # Sequentially: a broker may process the requests of one connection concurrently.
                queues = set()
                for number in range(100):
                    message = OutgoingMessage(topic, b"%d" % number, properties={"shard": shard})
                    queues.add((await producer.send(message, shard=shard)).queue)
                assert len(queues) == 1

            await asyncio.gather(*map(send_shard, "abc"))
            await eventually(lambda: sum(map(len, seen.values())) >= 300, "all messages are handled")
            assert all(handled == list(range(100)) for handled in seen.values())

    run(scenario())


def test_two_members_share_the_messages_and_one_takes_over(namesrv: str, topic: str, group: str) -> None:
    first_seen: list[Message] = []
    second_seen: list[Message] = []

    async def scenario() -> None:
        async with (
            Producer(namesrv) as producer,
            PushConsumer(namesrv, group, first_seen.append, consume_from="first") as first,
        ):
            await first.subscribe(topic)
            async with PushConsumer(namesrv, group, second_seen.append, consume_from="first") as second:
                await second.subscribe(topic)

                def shared() -> bool:
                    return {first.statistics()["queues"], second.statistics()["queues"]} == {2, 3}

                await eventually(shared, "the four queues and the retry queue are distributed")
                await send_numbers(producer, topic, 100)
                await eventually(lambda: len(first_seen) + len(second_seen) >= 100, "all are handled")
                assert numbers(first_seen + second_seen) == list(range(100))
                assert len(first_seen) == len(second_seen) == 50
            await eventually(lambda: first.statistics()["queues"] == 5, "the first member has all queues again")
            await send_numbers(producer, topic, 100)
            await eventually(lambda: len(first_seen) >= 150, "the first member handles everything")
            assert len(first_seen) + len(second_seen) == 200, "no message is handled twice when a member leaves cleanly"

    run(scenario())


def test_tags_and_sql_select_messages(namesrv: str, topic: str, group: str) -> None:
    by_tag: list[Message] = []
    by_sql: list[Message] = []

    async def scenario() -> None:
        async with (
            Producer(namesrv) as producer,
            PushConsumer(namesrv, group, by_tag.append, consume_from="first") as tagged,
            PushConsumer(namesrv, f"{group}_sql", by_sql.append, consume_from="first") as conditional,
        ):
            await tagged.subscribe(topic, "odd || none")
            await conditional.subscribe(topic, Sql("number BETWEEN 10 AND 19"))
            await send_numbers(producer, topic, 40)
            await eventually(lambda: len(by_tag) >= 20 and len(by_sql) >= 10, "the selected messages are handled")
            assert numbers(by_tag) == list(range(1, 40, 2))
            assert numbers(by_sql) == list(range(10, 20))
            with pytest.raises(FilterError):
                await conditional.subscribe(topic, Sql("number >>> 3"))

    run(scenario())


def test_a_failed_message_is_redelivered(namesrv: str, topic: str, group: str) -> None:
    seen: list[Message] = []

    def handler(message: Message) -> None:
        seen.append(message)
        if message.reconsume_times == 0:
            raise RuntimeError("fails the first time")

    async def scenario() -> None:
        async with (
            Producer(namesrv) as producer,
            PushConsumer(namesrv, group, handler, consume_from="first") as consumer,
        ):
            await consumer.subscribe(topic)
            await producer.send(OutgoingMessage(topic, b"again", tag="t", properties={"mine": "yes"}))
            await eventually(lambda: len(seen) == 2, "the failed message is redelivered", 40)
            again = seen[1]
            assert (again.topic, again.body, again.reconsume_times) == (topic, b"again", 1)
            assert again.properties["mine"] == "yes"
            assert consumer.statistics()["sent_back"] == 1

    run(scenario())


def test_a_message_without_retries_goes_to_the_dead_letters(namesrv: str, topic: str, group: str) -> None:
    def handler(message: Message) -> None:
        raise RuntimeError("never")

    async def scenario() -> None:
        async with (
            Producer(namesrv) as producer,
            Admin(namesrv) as admin,
            PullConsumer(namesrv) as reader,
            PushConsumer(namesrv, group, handler, consume_from="first", max_reconsume_times=0) as consumer,
        ):
            await consumer.subscribe(topic)
            await producer.send(OutgoingMessage(topic, b"doomed"))
            await eventually(lambda: consumer.statistics()["sent_back"] == 1, "the message is sent back")
            # Brokers make dead letters unreadable, so that they are not consumed by accident.
            dead = f"%DLQ%{group}"
            deadline_s = time.monotonic() + 20
            while dead not in await admin.topics():
                assert time.monotonic() < deadline_s, f"no topic {dead}"
                await asyncio.sleep(0.1)
            assert [queue.maxOffset for queue in (await admin.topic_stats(dead)).values()] == [1]
            assert await reader.queues(topic)

    run(scenario())


def test_every_member_of_a_broadcast_gets_all_messages_and_resumes_at_its_offset(
    namesrv: str, topic: str, group: str, tmp_path: Path
) -> None:
    async def consume(producer: Producer, seen: list[Message], instance: str, expected: int) -> None:
        async with PushConsumer(
            namesrv, group, seen.append, model="broadcasting", consume_from="first", instance=instance,
            offsets_folder=tmp_path,
        ) as consumer:  # fmt: skip
            await consumer.subscribe(topic)
            await eventually(lambda: len(seen) >= expected, "all messages are handled")

    async def scenario() -> None:
        first: list[Message] = []
        second: list[Message] = []
        async with Producer(namesrv) as producer:
            await send_numbers(producer, topic, 20)
            await asyncio.gather(consume(producer, first, "one", 20), consume(producer, second, "two", 20))
            assert numbers(first) == numbers(second) == list(range(20))
            await send_numbers(producer, topic, 10)
            again: list[Message] = []
            await consume(producer, again, "one", 10)
            assert numbers(again) == list(range(10))

    run(scenario())
    assert len(list(tmp_path.iterdir())) == 2


def test_a_group_resumes_at_its_offsets_and_they_can_be_reset(namesrv: str, topic: str, group: str) -> None:
    seen: list[Message] = []

    async def consume(expected: int) -> None:
        seen.clear()
        async with PushConsumer(namesrv, group, seen.append, consume_from="first") as consumer:
            await consumer.subscribe(topic)
            await eventually(lambda: len(seen) >= expected, "all messages are handled")

    async def scenario() -> None:
        async with Producer(namesrv) as producer, Admin(namesrv) as admin:
            await send_numbers(producer, topic, 20)
            await consume(20)
            stats = await admin.consume_stats(group, topic)
            assert sum(entry.brokerOffset - entry.consumerOffset for entry in stats.values()) == 0
            await send_numbers(producer, topic, 4)
            await consume(4)
            assert len(seen) == 4
            offsets = await admin.reset_offsets(group, topic, "first")
            assert set(offsets.values()) == {0}
            await consume(24)
            await admin.reset_offsets(group, topic, "last")
            await send_numbers(producer, topic, 1)
            await consume(1)
            assert len(seen) == 1

    run(scenario())


def test_offsets_of_a_connected_group_are_reset_at_once(namesrv: str, topic: str, group: str) -> None:
    seen: list[Message] = []

    async def scenario() -> None:
        async with (
            Producer(namesrv) as producer,
            Admin(namesrv) as admin,
            PushConsumer(namesrv, group, seen.append, consume_from="first", commit_every_s=0.1) as consumer,
        ):
            await consumer.subscribe(topic)
            await send_numbers(producer, topic, 20)
            await eventually(lambda: len(seen) == 20, "all messages are handled")

            deadline_s = time.monotonic() + 10
            while any(e.brokerOffset > e.consumerOffset for e in (await admin.consume_stats(group, topic)).values()):
                assert time.monotonic() < deadline_s, "the offsets are not committed"
                await asyncio.sleep(0.05)
            await admin.reset_offsets(group, topic, "first")
            await eventually(lambda: len(seen) == 40, "all messages are handled again")

    run(scenario())


def test_a_pull_waits_for_a_message_and_offsets_are_found(namesrv: str, topic: str, group: str) -> None:
    async def scenario() -> None:
        async with Producer(namesrv) as producer, PullConsumer(namesrv, group=group) as consumer:
            queue = (await consumer.queues(topic))[0]
            assert (await consumer.pull(queue, 0)).status in ("NO_NEW", "OFFSET_MOVED")
            pull_task = asyncio.create_task(consumer.pull(queue, 0, wait_s=10))
            await asyncio.sleep(0.2)
            assert not pull_task.done()
            await producer.send(OutgoingMessage(topic, b"0", tag="x"), queue=queue)
            result = await pull_task
            assert [message.body for message in result.messages] == [b"0"]
            assert (await consumer.pull(queue, 0, expression="y")).status == "NO_MATCH"
            assert (await consumer.pull(queue, 99)).status == "OFFSET_MOVED"
            await consumer.commit(queue, 1)
            assert await consumer.committed(queue) == 1
            assert (await consumer.min_offset(queue), await consumer.max_offset(queue)) == (0, 1)
            assert await consumer.search_offset(queue, 0) == 0
            with pytest.raises(TopicNotFound):
                await consumer.queues("no_such_topic")

    run(scenario())


def test_messages_are_found_by_id_and_by_key(namesrv: str, topic: str) -> None:
    async def scenario() -> None:
        async with Producer(namesrv) as producer, Admin(namesrv) as admin:
            result = await producer.send(OutgoingMessage(topic, b"expected" * 2000, keys=["order-1", "customer-7"]))
            await producer.send(OutgoingMessage(topic, b"other", keys="order-2"))
            assert (await admin.view_message(result.offset_message_id)).body == b"expected" * 2000
            deadline_s = time.monotonic() + 10
            while not await admin.query_by_key(topic, "customer-7"):
                assert time.monotonic() < deadline_s, "the key is not indexed"
                await asyncio.sleep(0.05)
            (found,) = await admin.query_by_key(topic, "order-1")
            assert found.message_id == result.offset_message_id
            (found,) = await admin.query_by_unique_key(topic, result.message_id)
            assert found.message_id == result.offset_message_id
            assert await admin.query_by_key(topic, "order-3") == []
            with pytest.raises(QueryNotFound):
                await admin.view_message("nonsense")

    run(scenario())


def test_clusters_topics_and_groups_are_listed_created_and_deleted(namesrv: str, topic: str, group: str) -> None:
    async def scenario() -> None:
        async with Admin(namesrv) as admin:
            assert await admin.clusters() == {"DefaultCluster": ["broker-a"]}
            (broker,) = await admin.brokers()
            address = broker.brokerAddrs[0]
            assert "brokerVersionDesc" in await admin.broker_runtime_info(address)
            assert (await admin.broker_config(address))["brokerName"] == "broker-a"
            assert topic in await admin.topics()
            assert len(await admin.topic_stats(topic)) == 4
            await admin.create_topic(topic, 6)
            assert [queue.readQueueNums for queue in (await admin.route(topic)).queueDatas] == [6]
            await admin.create_group(group, retry_max_times=3)
            assert [listed.max_retries for listed in await admin.groups() if listed.name == group] == [3]
            async with PushConsumer(namesrv, group, lambda message: None) as consumer:
                await consumer.subscribe(topic, "a || b")
                connections = await admin.consumer_connections(group)
                assert [entry.clientId for entry in connections.connectionSet] == [consumer.client_id]
                assert connections.connectionSet[0].language == "PYTHON"
                assert connections.subscriptionTable[topic].subString == "a || b"
            await admin.delete_group(group)
            assert group not in [listed.name for listed in await admin.groups()]
            await admin.delete_topic(topic)
            with pytest.raises(TopicNotFound):
                await admin.route(topic)

    run(scenario())


def test_blocking_clients_do_the_same(namesrv: str, topic: str, group: str) -> None:
    seen: list[Message] = []
    threads: set[str] = set()

    def handler(message: Message) -> None:
        threads.add(threading.current_thread().name)
        seen.append(message)

    with (
        blocking.Producer(namesrv, max_in_flight=10) as producer,
        blocking.PushConsumer(namesrv, group, handler, concurrency=3, consume_from="first") as consumer,
    ):
        consumer.subscribe(topic)
        result = producer.send(OutgoingMessage(topic, b"0"))
        futures = [producer.submit(OutgoingMessage(topic, b"%d" % number)) for number in range(1, 50)]
        assert all(future.result(10).status == "SEND_OK" for future in futures)
        producer.send_batch([OutgoingMessage(topic, b"50"), OutgoingMessage(topic, b"51")])
        producer.send_oneway(OutgoingMessage(topic, b"52"))
        wait_until(lambda: len(seen) >= 53, 30, "all messages are handled")
        assert numbers(seen) == list(range(53))
        assert threads <= {f"latermq-{group}_{number}" for number in range(3)}
        with blocking.PullConsumer(namesrv, group=group) as reader:
            assert result.queue in reader.queues(topic)
            assert reader.pull(result.queue, result.queue_offset, 1).messages[0].body == b"0"
            assert reader.max_offset(result.queue) > reader.min_offset(result.queue) == 0
    assert "latermq" not in [thread.name for thread in threading.enumerate()], (
        "the loop's thread ends with the last client"
    )


def test_clients_resume_after_the_broker_is_killed(tmp_path: Path, group: str) -> None:
    seen: list[Message] = []

    async def scenario(namesrv: str, restart: Callable[[], None]) -> None:
        async with (
            Admin(namesrv) as admin,
            Producer(namesrv, send_timeout_s=60, retries=5) as producer,
            PushConsumer(namesrv, group, seen.append, consume_from="first") as consumer,
        ):
            await admin.create_topic("survivor", 4)
            await consumer.subscribe("survivor")
            await send_numbers(producer, "survivor", 50)
            await eventually(lambda: len(seen) >= 50, "the messages before the restart")
            await asyncio.to_thread(restart)
            await send_numbers(producer, "survivor", 50, after="yes")
            await eventually(
                lambda: len({m.body for m in seen if "after" in m.properties}) == 50,
                "the messages after the restart",
                60,
            )

    if IS_APACHE:
        with apache_peer(tmp_path, heap="1g") as peer:

            def restart_apache() -> None:
                peer.kill()
                peer.start_broker()

            run(scenario(peer.namesrv, restart_apache), 180)
    else:
        with serving(tmp_path) as server:
            # The supervisor restarts the broker.
            run(scenario(server.namesrv, lambda: os.kill(server.broker_pid(), signal.SIGKILL)), 180)
