"""Reports about the proxy's clients to brokers, and checks of transactions from them."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from latermq.config import Config
from latermq.message.record_writer import encode_record
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command
from latermq.server.proxy.clients import client_reports
from latermq.server.proxy.clients.client_reports import ClientReports
from latermq.server.proxy.clients.client_settings import Role
from latermq.server.proxy.clients.clients import Clients
from latermq.server.proxy.clients.transaction_checks import TransactionChecks
from tests.unit.server.proxy.test_clients import HERE, FakeStream


class FakeLink:
    """Two brokers that note what they receive."""

    def __init__(self) -> None:
        self.brokers = ["a", "b"]
        self.on_connected: list[Callable[[str], None]] = []
        self.received: list[tuple[str, int, dict[str, str], Any]] = []

    def request(
        self, broker: str, code: int, fields: Mapping[str, str], on_response: Callable[..., None], body: bytes = b""
    ) -> None:
        self.received.append((broker, code, dict(fields), msgspec.json.decode(body) if body else None))
        on_response(Command(0))

    def bodies(self, broker: str, code: int) -> list[Any]:
        return [body for name, number, _, body in self.received if (name, number) == (broker, code)]


class Reported:
    """Clients, and the reports about them."""

    def __init__(self) -> None:
        self.link = FakeLink()
        self.clients = Clients(Config().proxy, asyncio.get_running_loop().time)
        self.reports = ClientReports(self.link, self.clients, "proxy-1")  # type: ignore[arg-type]

    def consumer(self, name: str, *topics: str) -> FakeStream:
        stream = FakeStream()
        self.clients.register(name, Role("g", topics, "GOLANG", 200 + 200 * len(topics)), stream)
        return stream

    def reported(self, broker: str) -> list[str]:
        return [
            client["clientId"]
            for body in self.link.bodies(broker, Request.REPORT_CLIENTS)
            for client in body["clients"]
        ]

    def topics(self, broker: str) -> list[str]:
        return [topic for body in self.link.bodies(broker, Request.REPORT_CLIENTS) for topic in body["topics"]]

    def ended_leases(self) -> list[tuple[str, dict[str, str]]]:
        return [(broker, fields) for broker, code, fields, _ in self.link.received if code == Request.END_LEASE]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20.0):
        while not condition():  # noqa: ASYNC110 - the reports have no event
            await asyncio.sleep(0.01)


def run(scenario: Callable[[Reported], Any]) -> None:
    async def begin() -> None:
        reported = Reported()
        try:
            await scenario(reported)
        finally:
            reported.reports.stop()

    asyncio.run(begin())


def test_new_consumers_are_reported_at_once_to_all_brokers() -> None:
    async def scenario(reported: Reported) -> None:
        reported.consumer("c1", "t")
        reported.consumer("c2", "t", "u")
        await until(lambda: len(reported.reported("b")) == 2)
        for broker in ("a", "b"):
            [body] = reported.link.bodies(broker, Request.REPORT_CLIENTS)
            assert all(0 <= client.pop("idleMs") < 20_000 for client in body["clients"])
            assert body == {
                "proxy": "proxy-1",
                "clients": [
                    {"clientId": "c1", "group": "g", "topics": ["t"], "language": "GOLANG"},
                    {"clientId": "c2", "group": "g", "topics": ["t", "u"], "language": "GOLANG"},
                ],
                "topics": [],
            }

    run(scenario)


def test_all_consumers_are_reported_again_and_again(monkeypatch: Any) -> None:
    monkeypatch.setattr(client_reports, "REPORT_EVERY_S", 0.1)

    async def scenario(reported: Reported) -> None:
        reported.reports.start()
        reported.consumer("c")
        await until(lambda: reported.reported("a").count("c") >= 3)

    run(scenario)


def test_reports_say_when_a_consumer_made_its_last_call_for_which_the_end_of_its_stream_does_not_count() -> None:
    async def scenario(reported: Reported) -> None:
        stream = reported.consumer("c")
        [client] = reported.clients.consumers()
        client.seen_s = client.heard_s = client.heard_s - 30.0
        reported.clients.detach(client, stream)
        reported.link.on_connected[0]("a")
        await until(lambda: bool(reported.reported("a")))
        [[found]] = [body["clients"] for body in reported.link.bodies("a", Request.REPORT_CLIENTS)]
        assert 30_000 <= found["idleMs"] < 50_000
        reported.clients.see("c", "g", HERE)
        assert client.heard_s == client.seen_s

    run(scenario)


def test_a_consumer_that_has_gone_is_not_reported_and_its_lease_ends() -> None:
    async def scenario(reported: Reported) -> None:
        reported.consumer("c")
        reported.clients.terminate("c", "g", HERE)
        await asyncio.sleep(0.1)
        assert reported.reported("a") == []
        fields = {"group": "g", "clientId": "c"}
        assert reported.ended_leases() == [(broker, fields) for broker in ("a", "b")]

    run(scenario)


def test_the_lease_of_a_lost_consumer_ends_with_the_name_of_the_proxy_because_it_may_live_elsewhere() -> None:
    async def scenario(reported: Reported) -> None:
        stream = reported.consumer("c")
        [client] = reported.clients.consumers()
        reported.clients.detach(client, stream)
        client.seen_s -= 3600
        reported.clients.expire()
        fields = {"group": "g", "clientId": "c", "proxy": "proxy-1"}
        assert reported.ended_leases() == [(broker, fields) for broker in ("a", "b")]

    run(scenario)


def test_a_broker_that_returns_gets_all_consumers_and_topics() -> None:
    async def scenario(reported: Reported) -> None:
        reported.consumer("c")
        reported.clients.register("p", Role("", ("t",), "JAVA", 300), FakeStream())
        await until(lambda: bool(reported.reported("b") and reported.topics("b")))
        reported.link.received.clear()
        reported.link.on_connected[0]("b")
        await until(lambda: bool(reported.reported("b")))
        assert reported.reported("b") == ["c"]
        assert reported.topics("b") == ["t"]

    run(scenario)


def test_many_consumers_are_reported_in_pieces_that_a_broker_accepts() -> None:
    async def scenario(reported: Reported) -> None:
        names = [f"consumer-{number}" for number in range(3000)]
        for name in names:
            reported.consumer(name, "some-topic")
        await until(lambda: len(reported.reported("a")) >= len(names))
        assert reported.reported("a") == names
        bodies = reported.link.bodies("a", Request.REPORT_CLIENTS)
        assert len(bodies) > 3
        assert max(len(msgspec.json.encode(body)) for body in bodies) < 512 * 1024

    run(scenario)


def test_all_published_topics_are_reported_in_pieces_and_those_that_nobody_publishes_any_more_are_not() -> None:
    async def scenario(reported: Reported) -> None:
        topics = tuple(f"a-topic-with-a-name-of-its-own-{number}" for number in range(20_000))
        reported.clients.register("p", Role("", topics, "JAVA", 300), FakeStream())
        reported.clients.register("q", Role("", ("left",), "JAVA", 300), FakeStream())
        reported.clients.terminate("q", "", HERE)
        await until(lambda: len(reported.topics("a")) >= len(topics))
        assert sorted(reported.topics("a")) == sorted(topics)
        bodies = reported.link.bodies("a", Request.REPORT_CLIENTS)
        assert max(len(msgspec.json.encode(body)) for body in bodies) < 512 * 1024

    run(scenario)


def checked(topic: str) -> Command:
    record = encode_record(
        topic.encode(), b"body", b"UNIQ_KEY\x01key-1\x02", queue_id=1, queue_offset=2, physical_offset=3,
        born_timestamp_ms=4, born_host=b"\x7f\0\0\1\0\0\0\1", store_timestamp_ms=5, store_host=b"\x7f\0\0\1\0\0\0\1",
    )  # fmt: skip
    fields = {"topic": "RMQ_SYS_TRANS_HALF_TOPIC", "transactionId": "key-1"}
    return Command(Request.CHECK_TRANSACTION_STATE, binary_fields=fields, body=record)


def test_a_check_of_a_transaction_goes_to_one_client_that_publishes_the_topic() -> None:
    async def scenario(reported: Reported) -> None:
        stream, other = FakeStream(), FakeStream()
        reported.clients.register("p", Role("", ("orders",), "JAVA", 300), stream)
        reported.clients.register("q", Role("", ("other",), "JAVA", 300), other)
        checks = TransactionChecks(reported.clients)
        checks.check("a", checked("orders"))
        checks.check("a", checked("nobody-publishes-it"))
        checks.check("a", Command(Request.CHECK_TRANSACTION_STATE, body=b"nonsense"))
        [command] = stream.sent
        recovery = command.recover_orphaned_transaction_command
        assert (recovery.transaction_id, recovery.message.body) == ("key-1", b"body")
        assert recovery.message.topic == pb.Resource(name="orders")
        assert not other.sent
        assert checks.statistics() == {"checks_passed": 1, "checks_dropped": 2}

    run(scenario)
