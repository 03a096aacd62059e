"""EndTransaction: all brokers of a topic are asked, because any may hold the half message, and one of them commits."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from latermq.client.session.failures import ConnectFailed, NoBroker, RequestTimedOut
from latermq.errors import LaterMQError
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.remoting.codes import Request, Response
from latermq.server.proxy.brokers.broker_link import BrokerLink
from latermq.server.proxy.brokers.topics import Topics
from latermq.server.proxy.calls.transaction_calls import TransactionCalls
from tests.support.proxy_calls import BrokerRequest, FakeCall, FakeLink, FakeProxy


class Producer:
    """A proxy that knows one topic on these brokers."""

    def __init__(self, *brokers: str, error: LaterMQError | None = None) -> None:
        self.link = FakeLink(*brokers)
        info = SimpleNamespace(route=SimpleNamespace(addresses=dict.fromkeys(brokers, "")))

        def get(topic: str, then: Callable[[Any], None]) -> None:
            then(error or info)

        topics = cast(Topics, SimpleNamespace(get=get))
        self._proxy = FakeProxy(TransactionCalls(cast(BrokerLink, self.link), topics).endpoints)

    def end(
        self, resolution: pb.TransactionResolution = pb.COMMIT, **more: Any
    ) -> tuple[FakeCall, list[BrokerRequest]]:
        fields: dict[str, Any] = {"topic": pb.Resource(name="orders"), "message_id": "m", "transaction_id": "t"} | more
        call = self._proxy.call("EndTransaction", pb.EndTransactionRequest(resolution=resolution, **fields))
        return call, self.link.take()


def code_of(call: FakeCall) -> int:
    [answer] = call.read(pb.EndTransactionResponse)
    return answer.status.code


@pytest.mark.parametrize(("resolution", "expected"), [(pb.COMMIT, "8"), (pb.ROLLBACK, "12")])
def test_the_broker_finds_the_half_by_its_key(resolution: pb.TransactionResolution, expected: str) -> None:
    call, [request] = Producer("a").end(resolution, source=pb.SOURCE_SERVER_CHECK)
    assert request.code == Request.END_TRANSACTION
    assert request.fields == {
        "topic": "orders", "producerGroup": "orders", "commitOrRollback": expected, "fromTransactionCheck": "true",
        "msgId": "m", "transactionId": "t",
    }  # fmt: skip
    request.answer()
    assert code_of(call) == pb.OK


def answer_states(requests: list[BrokerRequest], *states: str) -> None:
    """Let brokers say how the transaction stands. An empty text is one that does not know it."""
    for request, state in zip(requests, states, strict=True):
        assert (request.code, request.fields["commitOrRollback"]) == (Request.END_TRANSACTION, "0")
        request.answer(fields={"state": state})


def decisions(requests: list[BrokerRequest]) -> list[tuple[str, str]]:
    return [(request.broker, request.fields["commitOrRollback"]) for request in requests]


@pytest.mark.parametrize("states", [("open", ""), ("", "open")])
def test_the_broker_that_has_the_half_commits_it(states: tuple[str, str]) -> None:
    producer = Producer("a", "b")
    call, requests = producer.end()
    answer_states(requests, *states)
    [commit] = producer.link.take()
    assert decisions([commit]) == [("a" if states[0] else "b", "8")]
    assert call.is_open
    commit.answer()
    assert code_of(call) == pb.OK
    assert not producer.link.take()


def test_of_several_brokers_with_the_same_half_the_first_commits_before_the_others_roll_back() -> None:
    producer = Producer("c", "b", "a")
    call, requests = producer.end()
    answer_states(requests, "open", "open", "open")
    [commit] = producer.link.take()
    assert decisions([commit]) == [("a", "8")]
    commit.answer()
    assert code_of(call) == pb.OK
    assert decisions(producer.link.take()) == [("b", "12"), ("c", "12")]


def test_a_half_that_another_broker_has_committed_is_rolled_back() -> None:
    producer = Producer("a", "b")
    call, requests = producer.end(source=pb.SOURCE_SERVER_CHECK)
    answer_states(requests, "open", "committed")
    assert code_of(call) == pb.OK
    assert decisions(producer.link.take()) == [("a", "12")]


@pytest.mark.parametrize("states", [("committed", "rolled back"), ("committed", ""), ("", "committed")])
def test_a_repeated_commit_succeeds(states: tuple[str, str]) -> None:
    producer = Producer("a", "b")
    call, requests = producer.end()
    answer_states(requests, *states)
    assert code_of(call) == pb.OK
    assert not producer.link.take()


@pytest.mark.parametrize("ending", ["rolled back", "given up"])
def test_a_commit_of_a_transaction_that_has_ended_otherwise_is_refused(ending: str) -> None:
    call, requests = Producer("a", "b").end()
    answer_states(requests, "", ending)
    [answer] = call.read(pb.EndTransactionResponse)
    assert answer.status.code == pb.INVALID_TRANSACTION_ID
    assert ending in answer.status.message


def test_after_a_commit_without_an_answer_no_other_broker_commits() -> None:
    producer = Producer("a", "b")
    call, requests = producer.end()
    answer_states(requests, "open", "open")
    [commit] = producer.link.take()
    commit.fail(RequestTimedOut("late"))
    assert code_of(call) == pb.PROXY_TIMEOUT
    assert not producer.link.take()


def test_a_rollback_goes_to_all_brokers_and_fails_if_one_has_committed() -> None:
    call, requests = Producer("a", "b").end(pb.ROLLBACK)
    assert decisions(requests) == [("a", "12"), ("b", "12")]
    requests[0].answer()
    assert call.is_open
    requests[1].answer(Response.ILLEGAL_OPERATION, remark="it was committed")
    assert code_of(call) == pb.INVALID_TRANSACTION_ID
    call, requests = Producer("a", "b").end(pb.ROLLBACK)
    requests[0].answer(Response.SYSTEM_ERROR)
    requests[1].answer()
    assert code_of(call) == pb.OK


def test_a_check_asks_brokers_outside_of_the_route_too() -> None:
    producer = Producer("b", "c")
    producer.link.brokers.append("a")
    call, requests = producer.end(source=pb.SOURCE_SERVER_CHECK)
    assert [request.broker for request in requests] == ["a", "b", "c"]
    answer_states(requests, "committed", "open", "")
    assert code_of(call) == pb.OK
    assert decisions(producer.link.take()) == [("b", "12")]


def test_the_answer_says_why_a_transaction_did_not_end() -> None:
    call, [request] = Producer("a").end()
    request.answer(Response.SYSTEM_ERROR, remark="no half")
    assert code_of(call) == pb.INVALID_TRANSACTION_ID
    call, [request] = Producer("a").end()
    request.answer(Response.ILLEGAL_OPERATION, remark="it was rolled back")
    [answer] = call.read(pb.EndTransactionResponse)
    assert (answer.status.code, answer.status.message) == (pb.INVALID_TRANSACTION_ID, "it was rolled back")
    call, [request] = Producer("a").end()
    request.answer(Response.SYSTEM_BUSY)
    assert code_of(call) == pb.TOO_MANY_REQUESTS


@pytest.mark.parametrize("state", ["", "rolled back"])
@pytest.mark.parametrize("first", [0, 1])
def test_while_a_broker_is_away_the_transaction_may_be_there(first: int, state: str) -> None:
    call, requests = Producer("a", "b").end()
    requests[first].fail(ConnectFailed("down"))
    requests[1 - first].answer(fields={"state": state})
    assert code_of(call) == pb.INTERNAL_SERVER_ERROR  # which clients try again


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"transaction_id": ""}, pb.INVALID_TRANSACTION_ID),
        ({"transaction_id": "  "}, pb.INVALID_TRANSACTION_ID),
        ({"transaction_id": "t" * 1001}, pb.INVALID_TRANSACTION_ID),
        ({"topic": pb.Resource(name="")}, pb.ILLEGAL_TOPIC),
    ],
)
def test_requests_are_checked(more: dict[str, Any], code: int) -> None:
    call, requests = Producer("a").end(**more)
    assert (code_of(call), requests) == (code, [])


def test_a_resolution_must_be_given() -> None:
    call, requests = Producer("a").end(pb.TRANSACTION_RESOLUTION_UNSPECIFIED)
    assert (code_of(call), requests) == (pb.BAD_REQUEST, [])


def test_a_topic_without_brokers_is_an_error() -> None:
    assert code_of(Producer().end()[0]) == pb.INTERNAL_SERVER_ERROR
    assert code_of(Producer(error=NoBroker("none")).end()[0]) == pb.INTERNAL_SERVER_ERROR


@pytest.mark.parametrize(
    ("error", "code"), [(None, pb.OK), (ConnectFailed("it is down", hint=""), pb.INTERNAL_SERVER_ERROR)]
)
def test_a_broker_that_has_left_the_route_is_asked_when_no_other_knows_the_transaction(
    error: LaterMQError | None, code: int
) -> None:
    producer = Producer("a", "b")
    producer.link.brokers.append("restarting")
    call, requests = producer.end()
    answer_states(requests, "", "")
    [last] = producer.link.take()
    assert (last.broker, last.fields) == ("restarting", requests[0].fields)
    if error is None:
        answer_states([last], "open")
        [commit] = producer.link.take()
        assert decisions([commit]) == [("restarting", "8")]
        commit.answer()
    else:
        last.fail(error)
    assert code_of(call) == code


def test_other_brokers_are_not_asked_while_one_of_the_route_may_know_the_transaction() -> None:
    producer = Producer("a")
    producer.link.brokers.append("b")
    call, [request] = producer.end()
    request.answer(Response.SYSTEM_BUSY)
    assert not producer.link.take()
    assert code_of(call) != pb.OK
