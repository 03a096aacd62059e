"""Timers scheduled with the SDK, against real brokers: their handles, their names, and what is refused."""

import asyncio
import datetime
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from latermq import Admin, ClientClosed, LaterMQError, Producer, ScheduledTimer, Verdict
from latermq.client import blocking
from latermq.errors import IllegalMessage, IllegalOperation
from tests.integration.client_cluster import client_cluster
from tests.interop.ports import free_port
from tests.interop.waiting import wait_until
from tests.support.serving import another_broker, serving

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with client_cluster(tmp_path_factory.mktemp("schedule")) as address:
        yield address


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 90))


def test_a_timer_is_looked_up_moved_and_cancelled(namesrv: str) -> None:
    async def scenario() -> None:
        async with Producer(namesrv) as producer, Admin(namesrv) as admin:
            began_ms = time.time() * 1000
            timer = await producer.schedule("pay", b"?", delay="15m", key=["a", "b"], tag="red", properties={"eu": "1"})
            assert 890_000 <= timer.due_ms - began_ms <= 960_000
            status = await timer.status()
            assert (status.verdict, status.due_ms, timer.is_known) == (Verdict.PENDING, timer.due_ms, False)
            [listed] = await admin.pending_timers("pay", key="b")
            assert (listed.unique_key, listed.tags, listed.keys) == (timer.unique_key, "red", "a b")

            at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=2, microseconds=1)
            assert (await timer.move(at=at)).verdict == Verdict.MOVED
            assert timer.due_ms == -(-(at - datetime.datetime.fromtimestamp(0, datetime.UTC)) // _ms(1))
            assert (await timer.move(delay=datetime.timedelta(hours=1))).verdict == Verdict.MOVED

            assert [(await timer.cancel()).verdict for _ in range(2)] == [Verdict.CANCELLED] * 2
            assert (await timer.move(delay="1m")).verdict == Verdict.CANCELLED
            assert await admin.count_timers("pay") == 0

    run(scenario)


def _ms(count: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=count)


def test_a_handle_is_a_text_from_which_the_timer_is_made_again(namesrv: str) -> None:
    with blocking.Producer(namesrv) as producer:
        timer = producer.schedule("texts", b"x", delay="1h")
        text = str(timer)
        assert text.isascii()
        assert repr(timer) == f"ScheduledTimer({text!r})"
    with blocking.Producer(namesrv) as another:
        again = another.timer(text)
        assert (again, hash(again)) == (timer, hash(timer))
        assert again != another.schedule("texts", b"x", delay="1h")
        assert again.move(delay="2h").verdict == Verdict.MOVED
        # The handle of a timer stays valid after a move.
        assert another.timer(text).status().due_ms == again.due_ms > timer.due_ms
        assert another.timer(text).cancel().verdict == Verdict.CANCELLED
        assert (again.topic, again.unique_key) == ("texts", timer.unique_key)


def test_a_handle_of_a_send_is_one_too(namesrv: str) -> None:
    from latermq import OutgoingMessage

    with blocking.Producer(namesrv) as producer:
        sent = producer.send(OutgoingMessage("sends", b"x", delay_ms=HOUR_MS))
        assert producer.timer(sent.recall_handle).cancel().verdict == Verdict.CANCELLED


@pytest.mark.parametrize("handle", ["", "x", "not base64!", "djEgdCBiIHggVQ=="])
def test_a_damaged_handle_is_refused(namesrv: str, handle: str) -> None:
    with blocking.Producer(namesrv) as producer, pytest.raises(IllegalOperation):
        producer.timer(handle)


@pytest.mark.parametrize("is_delay", [True, False])
def test_a_time_in_the_past_means_now(namesrv: str, is_delay: bool) -> None:
    with blocking.Producer(namesrv) as producer:
        if is_delay:
            timer = producer.schedule("past", b"x", delay="0s")
        else:
            timer = producer.schedule("past", b"x", at=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
        wait_until(lambda: timer.status().verdict == Verdict.DELIVERED, 20, "its delivery")
        assert timer.cancel().verdict == Verdict.DELIVERED


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "either `at` or `delay`"),
        ({"at": datetime.datetime.now(datetime.UTC), "delay": "1m"}, "either `at` or `delay`"),
        ({"at": datetime.datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001
        ({"at": datetime.datetime(1960, 1, 1, tzinfo=datetime.UTC)}, "negative"),
        ({"delay": datetime.timedelta(seconds=-1)}, "negative"),
        ({"delay": 900}, "has no unit"),
        ({"delay": "soon"}, "not a valid duration"),
        ({"delay": "9999d"}, "timer.max_delay|ahead|too far"),
        ({"delay": "1m", "body": b""}, "body is empty"),
        ({"delay": "1m", "key": "a\x01b"}, "key contains"),
        ({"delay": "1m", "properties": {"a": "b\x02"}}, "property contains"),
        ({"delay": "1m", "properties": {"KEYS": "b"}}, "reserved"),
        ({"delay": "1m", "properties": {"a": "b" * 40_000}}, "limit is"),
        ({"delay": "1m", "topic": "a b"}, "topic"),
        ({"delay": "1m", "topic": "rmq_sys_wheel_timer"}, "topic"),
    ],
)
def test_what_cannot_be_scheduled_is_refused(namesrv: str, wrong: dict[str, Any], message: str) -> None:
    with blocking.Producer(namesrv) as producer:
        with pytest.raises(LaterMQError, match=message):
            producer.schedule(**{"topic": "wrong", "body": b"x", **wrong})
        assert producer.schedule("wrong", b"x", delay="1m").cancel().verdict == Verdict.CANCELLED


def test_an_idempotency_key_schedules_one_timer(namesrv: str) -> None:
    async def scenario() -> None:
        async with Producer(namesrv) as producer, Producer(namesrv) as another, Admin(namesrv) as admin:
            calls = [
                one.schedule("once", b"x", delay=f"{minutes}m", idempotency_key="order 1, ü")
                for minutes in range(1, 21)
                for one in (producer, another)
            ]
            timers = await asyncio.gather(*calls)
            assert len(set(timers)) == 1
            assert await admin.count_timers("once") == 1
            assert sum(not timer.is_known for timer in timers) == 1
            due_ms = (await timers[0].status()).due_ms
            assert {timer.due_ms for timer in timers} == {due_ms}
            # In another topic it is another name.
            assert not (await producer.schedule("twice", b"x", delay="1m", idempotency_key="order 1, ü")).is_known
            await timers[0].cancel()
            again = await producer.schedule("once", b"x", delay="1m", idempotency_key="order 1, ü")
            assert (again.is_known, (await again.status()).verdict) == (True, Verdict.CANCELLED)

    run(scenario)


def test_each_of_many_calls_at_the_same_time_gets_its_own_result(namesrv: str) -> None:
    async def scenario() -> None:
        async with Producer(namesrv) as producer, Admin(namesrv) as admin:
            delays = ["9999d" if number % 2 else "1h" for number in range(300)]
            results = await asyncio.gather(
                *(producer.schedule("many", b"x", delay=delay) for delay in delays), return_exceptions=True
            )
            for delay, result in zip(delays, results, strict=True):
                assert isinstance(result, ScheduledTimer if delay == "1h" else IllegalMessage), result
            assert await admin.count_timers("many") == 150
            assert producer.statistics()["scheduled"] == 150

    run(scenario)


def test_an_idempotency_key_is_known_after_the_topic_has_moved_to_more_brokers(tmp_path: Path) -> None:
    with serving(tmp_path / "a", "--set", "broker.register_every=200ms") as server:
        with blocking.Admin(server.namesrv) as admin, blocking.Producer(server.namesrv) as producer:
            wait_until(admin.brokers, 30, "the broker is registered")
            admin.create_topic("grown", queues=2)
            first = [producer.schedule("grown", b"x", delay="1h", idempotency_key=f"{n}") for n in range(8)]
        with (
            another_broker(server, tmp_path / "b", free_port()),
            blocking.Admin(server.namesrv) as admin,
            blocking.Producer(server.namesrv) as producer,
        ):
            wait_until(lambda: len(admin.brokers()) == 2, 30, "both brokers are registered")
            admin.create_topic("grown", queues=2)
            again = [producer.schedule("grown", b"x", delay="2h", idempotency_key=f"{n}") for n in range(8)]
            assert [timer.handle for timer in again] == [timer.handle for timer in first]
            assert admin.count_timers("grown") == 8
            others = {producer.schedule("grown", b"x", delay="1h") for _ in range(20)}
            assert {timer.cancel().verdict for timer in others} == {Verdict.CANCELLED}
        # The name server still knows the broker that has gone: it may have what no other broker has.
        with blocking.Producer(server.namesrv) as producer, pytest.raises(LaterMQError):
            producer.schedule("grown", b"x", delay="1h", idempotency_key="unknown")


def test_a_producer_that_was_closed_or_never_started_says_so(namesrv: str) -> None:
    async def scenario() -> None:
        producer = Producer(namesrv)
        with pytest.raises(ClientClosed, match="was not started"):
            await producer.schedule("closed", b"x", delay="1m")
        async with producer:
            calls = [asyncio.create_task(producer.schedule("closed", b"x", delay="1m")) for _ in range(2000)]
            await asyncio.sleep(0)
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(result) for result in results} <= {ScheduledTimer, ClientClosed}
        with pytest.raises(ClientClosed, match="is closed"):
            await producer.schedule("closed", b"x", delay="1m")

    run(scenario)
