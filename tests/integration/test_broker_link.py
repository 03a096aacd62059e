"""The proxy's connections to brokers, with a scripted name server and broker."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from latermq.client.session.failures import ConnectFailed, ConnectionLost, NoBroker, RequestTimedOut
from latermq.config import load_config
from latermq.errors import Busy, LaterMQError
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.server.proxy.brokers.broker_link import BrokerLink
from tests.support.scripted_server import DISCONNECT, ScriptedServer, eventually, scripted_server

BROKER = "broker-a"
Answer = Command | LaterMQError


class Linked:
    """A link to a scripted server, which is name server and broker."""

    def __init__(self, server: ScriptedServer, *settings: str) -> None:
        self.server = server
        self.link = BrokerLink(server.address, load_config(settings=settings, environment={}).proxy)
        self.answers: list[Answer] = []

    def request(self, broker: str = BROKER, **options: Any) -> None:
        self.link.request(broker, Request.GET_TOPIC_CONFIG, {"topic": "t"}, self.answers.append, **options)

    async def answer(self, **options: Any) -> Answer:
        self.answers.clear()
        self.request(**options)
        await eventually(lambda: self.answers, "an answer")
        return self.answers[0]


class Script:
    """What the server answers."""

    def __init__(self) -> None:
        self.server: ScriptedServer | None = None
        self.registered: dict[str, str] | None = None  # brokers at the name server; None: this server
        self.topic_answer: Callable[[Command], bytes | None] = encode_response

    def __call__(self, request: Command) -> bytes | None:
        if request.code == Request.GET_BROKER_CLUSTER_INFO:
            assert self.server is not None
            brokers = {BROKER: self.server.address} if self.registered is None else self.registered
            table = {
                name: {"cluster": "c", "brokerName": name, "brokerAddrs": {"0": address}}
                for name, address in brokers.items()
            }
            return encode_response(request, body=json.dumps({"brokerAddrTable": table}).encode())
        return self.topic_answer(request)


def run(scenario: Callable[[Linked, Script], Any], *settings: str) -> None:
    async def begin() -> None:
        script = Script()
        async with scripted_server(script) as server:
            script.server = server
            linked = Linked(server, *settings)
            try:
                await linked.link.start(10.0)
                await scenario(linked, script)
            finally:
                await linked.link.close()

    asyncio.run(begin())


def test_responses_of_any_code_are_passed_on() -> None:
    async def scenario(linked: Linked, script: Script) -> None:
        script.topic_answer = lambda request: encode_response(request, 17, remark="no such topic")
        answer = await linked.answer()
        assert isinstance(answer, Command)
        assert (answer.code, answer.remark) == (17, "no such topic")
        assert linked.link.brokers == [BROKER]

    run(scenario)


def test_a_broker_that_does_not_exist_is_an_error_at_once() -> None:
    async def scenario(linked: Linked, script: Script) -> None:
        linked.request(broker="other")
        assert isinstance(linked.answers[0], NoBroker)
        assert not linked.link.is_known("other")

    run(scenario)


def test_a_lost_connection_fails_requests_at_once_and_is_opened_again() -> None:
    async def scenario(linked: Linked, script: Script) -> None:
        script.topic_answer = lambda request: DISCONNECT

        def again(answer: Answer) -> None:
            linked.answers.append(answer)
            linked.request()

        linked.link.request(BROKER, Request.GET_TOPIC_CONFIG, {"topic": "t"}, again)
        await eventually(lambda: linked.answers, "the loss of the connection")
        lost, refused = linked.answers  # the second without waiting for the next connection
        assert isinstance(lost, ConnectionLost)
        assert isinstance(refused, ConnectFailed)
        assert refused.retriable
        script.topic_answer = encode_response
        await eventually(lambda: linked.link.is_open(BROKER), "the next connection")
        assert isinstance(await linked.answer(), Command)

    run(scenario)


def test_a_broker_that_is_not_registered_for_a_moment_is_not_forgotten() -> None:
    async def scenario(linked: Linked, script: Script) -> None:
        script.registered = {}
        script.topic_answer = lambda request: DISCONNECT
        await linked.answer()
        await eventually(lambda: linked.link.is_open(BROKER), "a connection to the known address")

    run(scenario, "proxy.route_refresh=100ms")


def test_a_new_broker_is_connected_when_it_is_first_named() -> None:
    async def scenario(linked: Linked, script: Script) -> None:
        async with scripted_server(encode_response) as joined:
            script.registered = {BROKER: linked.server.address, "broker-b": joined.address}
            await eventually(lambda: linked.link.is_known("broker-b") and linked.link.is_open("broker-b"), "the broker")
            answer = await linked.answer(broker="broker-b")
            assert isinstance(answer, Command)

    run(scenario, "proxy.route_refresh=1h")


def test_names_of_no_broker_cost_one_look_up_per_second() -> None:
    async def scenario(linked: Linked, script: Script) -> None:
        before = linked.server.count(Request.GET_BROKER_CLUSTER_INFO)
        for number in range(250):
            assert not linked.link.is_known(f"nowhere-{number}")
            await asyncio.sleep(0.01)
        assert 1 <= linked.server.count(Request.GET_BROKER_CLUSTER_INFO) - before <= 4

    run(scenario, "proxy.route_refresh=1h")


def test_a_broker_at_a_new_address_is_connected_there() -> None:
    async def scenario(linked: Linked, script: Script) -> None:
        async with scripted_server(encode_response) as moved:
            script.registered = {BROKER: moved.address}
            await eventually(lambda: moved.connections, "a connection to the new address")
            await eventually(lambda: linked.link.is_open(BROKER), "its use")
            assert isinstance(await linked.answer(), Command)
            assert moved.count(Request.GET_TOPIC_CONFIG) == 1

    run(scenario, "proxy.route_refresh=100ms")


def test_a_broker_that_does_not_answer_is_a_timeout() -> None:
    async def scenario(linked: Linked, script: Script) -> None:
        script.topic_answer = lambda request: None
        assert isinstance(await linked.answer(timeout_s=0.2), RequestTimedOut)

    run(scenario)


def test_unanswered_requests_are_bounded() -> None:
    async def scenario(linked: Linked, script: Script) -> None:
        script.topic_answer = lambda request: None
        for _ in range(4):
            linked.request()
        assert [type(answer) for answer in linked.answers] == [Busy]
        assert linked.link.statistics()["broker_requests"] == 3

    run(scenario, "proxy.max_broker_requests=3")


def test_requests_of_a_broker_reach_their_handlers_and_others_are_refused() -> None:
    async def scenario(linked: Linked, script: Script) -> None:
        received: list[tuple[str, dict[str, str]]] = []

        def check(broker: str, command: Command) -> None:
            received.append((broker, command.text_fields()))

        linked.link.handlers[Request.CHECK_TRANSACTION_STATE] = check
        linked.server.send_request(Request.CHECK_TRANSACTION_STATE, {"transactionId": "x"})
        linked.server.send_request(Request.GET_CONSUMER_RUNNING_INFO, {})
        await eventually(lambda: received, "the check")
        assert received == [(BROKER, {"transactionId": "x"})]
        await eventually(lambda: linked.server.responses, "the refusal")
        assert linked.server.responses[0].code == 3

    run(scenario)


def test_a_callback_that_fails_does_not_close_the_connection() -> None:
    async def scenario(linked: Linked, script: Script) -> None:
        def fail(answer: Answer) -> None:
            raise ValueError("a defect")

        linked.link.request(BROKER, Request.GET_TOPIC_CONFIG, {"topic": "t"}, fail)
        assert isinstance(await linked.answer(), Command)
        assert len(linked.server.connections) == 1 or linked.link.is_open(BROKER)

    run(scenario)


def test_a_link_that_closes_waits_for_the_answers_of_brokers() -> None:
    async def scenario(linked: Linked, script: Script) -> None:
        held: list[Command] = []
        script.topic_answer = held.append
        linked.request()
        await eventually(lambda: held, "the request")
        closing = asyncio.create_task(linked.link.close())
        await asyncio.sleep(0.1)
        assert not closing.done()
        for transport in linked.server.connections:
            transport.write(encode_response(held[0]))
        await closing
        assert [type(answer) for answer in linked.answers] == [Command]

    run(scenario)
