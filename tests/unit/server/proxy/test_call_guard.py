"""The access check of gRPC calls: every method, the age of signatures, changes of users, and failed attempts."""

import asyncio
import dataclasses
from collections.abc import Iterable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from latermq.access.policies import Acl, parse_entry
from latermq.access.signatures import grpc_header
from latermq.access.users import INNER_USER, NO_USERS, AccessState, User
from latermq.clock import SimulatedClock, SystemClock
from latermq.config import Config
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.server.access.users import MAX_FAILURES, NotAuthenticated
from latermq.server.http2.calls import Call, ServerStream, Unary
from latermq.server.proxy.access.call_guard import CallGuard
from latermq.server.proxy.calls.call_table import SERVICE, CallEndpoint, CallTable, Exchange
from latermq.server.proxy.composition import ProxyParts
from latermq.server.proxy.statuses import OK
from latermq.server.remoting.access import PUB, SUB, Access, Kind
from tests.support.proxy_calls import FakeCall

SECRETS = {"alice": "s3cret", "nobody": "n0body", INNER_USER: "inner"}
ORDERS = Access(Kind.TOPIC, "orders", (PUB,))
REFUSED_REMARK = "User:nobody has no permission to access "
OLD = "20200101T000000Z"


class KnownUsers:
    """The users of a test, which it may replace."""

    def __init__(self) -> None:
        users = {name: User(name=name, secret=SECRETS[name]) for name in ("alice", "nobody")}
        entries = [parse_entry(f"{kind}:*", ["All"], [], "Allow") for kind in ("Topic", "Group")]
        self.state = AccessState(users, {"alice": Acl(entries, ())}, "1")
        self.trouble = ""


class Connection(SimpleNamespace):
    """The part of a connection that the check uses. Answers that wait are collected."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, Any, tuple[Any, ...]]] = []
        loop = SimpleNamespace(call_later=lambda pause_s, then, *args: self.waiting.append((pause_s, then, args)))
        super().__init__(
            peer=("10.0.0.7", 1), peer_name="10.0.0.7:1", certificate_user="", verdicts=None, failed_attempts=0,
            loop=loop, has_left=False, now_s=lambda: 0.0,
        )  # fmt: skip

    def leave(self) -> None:
        self.has_left = True

    def pass_time(self) -> None:
        waiting, self.waiting = self.waiting, []
        for _, then, args in waiting:
            then(*args)


def call_of(
    user: str = "", secret: str = "", date_time: str = OLD, connection: Connection | None = None, method: str = "Try"
) -> Any:
    call = FakeCall()
    metadata = {b"x-mq-client-id": b"client-1"}
    if user:
        header = grpc_header(user, secret or SECRETS[user], date_time)
        metadata |= {b"authorization": header.encode(), b"x-mq-date-time": date_time.encode()}
    found = cast(Any, call)
    found.metadata = metadata
    found.field = metadata.get
    found.path = f"/{SERVICE}/{method}".encode()
    found.connection = connection or Connection()
    return found


def guard_of(users: KnownUsers, clock: SimulatedClock | None = None, **settings: Any) -> CallGuard:
    inner = User(name=INNER_USER, secret=SECRETS[INNER_USER], is_super=True)
    return CallGuard(users, inner, "DefaultCluster", clock or SimulatedClock(), **{"is_enforced": True, **settings})


def remark(guard: CallGuard, call: Call, accesses: Iterable[Access] = (ORDERS,)) -> str:
    """The remark of a refusal; empty if the call is permitted."""
    try:
        guard.authenticate(call)
        guard.authorize(call, accesses)
    except Exception as error:
        return cast(Any, error).message  # type: ignore[no-any-return]
    return ""


def sample_of(type_: type[Message]) -> Message:
    """A request about topic `orders` and group `readers`, as far as it has such fields."""
    request = type_()
    for field in type_.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.name == "Resource":
            getattr(request, field.name).name = "orders" if field.name == "topic" else "readers"
    if isinstance(request, pb.SendMessageRequest):
        request.messages.add().topic.name = "orders"
    if isinstance(request, pb.ReceiveMessageRequest):
        request.message_queue.topic.name = "orders"
    return request


async def proxy_endpoints() -> list[CallEndpoint]:
    return ProxyParts(Config(), "127.0.0.1:1", SystemClock()).table.endpoints


def harmless(endpoint: CallEndpoint) -> CallEndpoint:
    """The same row with a handler that only answers."""

    def serve(exchange: Exchange, _: Message) -> Message | None:
        answer = endpoint.reply(status=OK)
        if endpoint.failure is None:
            return answer
        exchange.call.send(answer.SerializeToString())
        exchange.call.end()
        return None

    return dataclasses.replace(endpoint, serve=serve, shortcut=None)


def status_of(table: CallTable, endpoint: CallEndpoint, call: Any) -> pb.Status:
    """The status of the first answer, however long it waits."""
    method = table.methods[f"/{SERVICE}/{endpoint.name}".encode()]
    assert isinstance(method, Unary | ServerStream)
    answer = method.serve(call, sample_of(endpoint.request).SerializeToString())
    if answer is not None:
        call.reply(answer)
    call.connection.pass_time()
    [first, *_] = call.read(endpoint.reply)
    found: pb.Status = first.status
    return found


def test_every_method_needs_a_user_its_signature_and_a_right() -> None:
    endpoints = asyncio.run(proxy_endpoints())
    assert len(endpoints) == 11
    guard = guard_of(KnownUsers())
    table = CallTable()
    table.add(map(harmless, endpoints))
    table.authenticate, table.authorize = guard.authenticate, guard.authorize
    for endpoint in endpoints:
        accesses = list(endpoint.accesses(sample_of(endpoint.request)))
        assert accesses, f"{endpoint.name} touches nothing"
        cases = {
            "username cannot be null.": call_of(),
            "check signature failed.": call_of("alice", "guess"),
            REFUSED_REMARK: call_of("nobody"),
        }
        for start, call in cases.items():
            found = status_of(table, endpoint, call)
            assert found.code == pb.UNAUTHORIZED, (endpoint.name, start)
            assert found.message.startswith(start), (endpoint.name, found.message)
        assert status_of(table, endpoint, call_of("alice")) == OK, endpoint.name


def test_a_call_is_not_decoded_before_its_signature_is_checked() -> None:
    [endpoint, *_] = asyncio.run(proxy_endpoints())
    guard = guard_of(KnownUsers())
    table = CallTable()
    table.add([harmless(endpoint)])
    table.authenticate, table.authorize = guard.authenticate, guard.authorize
    method = table.methods[f"/{SERVICE}/{endpoint.name}".encode()]
    assert isinstance(method, Unary)
    call = call_of()
    assert method.serve(call, b"\xff\xff not a message") is None
    call.connection.pass_time()
    [answer] = call.read(endpoint.reply)
    assert answer.status.code == pb.UNAUTHORIZED


def test_a_change_counts_for_the_next_call_of_an_open_connection() -> None:
    users = KnownUsers()
    guard, connection = guard_of(users), Connection()
    for _ in range(3):
        assert remark(guard, call_of("alice", connection=connection)) == ""
    deny = parse_entry("Topic:orders", ["Pub"], [], "Deny")
    users.state = users.state.with_acl("alice", Acl([deny], ()), "2")
    assert remark(guard, call_of("alice", connection=connection)).endswith("the decision is deny.")
    users.state = users.state.with_acl("alice", Acl([parse_entry("*", ["All"], [], "Allow")], ()), "3")
    assert remark(guard, call_of("alice", connection=connection)) == ""
    users.state = users.state.with_user(User(name="alice", secret="s3cret", is_enabled=False), "4")
    assert remark(guard, call_of("alice", connection=connection)) == "User:alice is disabled."
    users.state = users.state.without_user("alice", "5")
    assert remark(guard, call_of("alice", connection=connection)) == "User:alice is not found."


def test_a_verdict_holds_for_its_user_and_resource_only() -> None:
    guard, connection = guard_of(KnownUsers()), Connection()
    assert remark(guard, call_of("alice", connection=connection)) == ""
    assert remark(guard, call_of("nobody", connection=connection)).startswith(REFUSED_REMARK)
    assert remark(guard, call_of("alice", "guess", connection=connection)) == "check signature failed."
    assert remark(guard, call_of("alice", connection=connection), [Access(Kind.CLUSTER, "", (SUB,))])
    assert remark(guard, call_of("alice", date_time="20200101T000001Z", connection=connection)) == ""


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (b"", "username cannot be null."),
        (b"Bearer x", "authentication header is incorrect."),
        (b"MQv2-HMAC-SHA1 Signature=00", "authentication header is incorrect."),
        (b"\xff\xfe", "authentication header is incorrect."),
    ],
)
def test_headers_that_name_nobody(header: bytes, text: str) -> None:
    call = call_of("alice")
    call.metadata[b"authorization"] = header
    assert remark(guard_of(KnownUsers()), call) == text
    call = call_of("alice")
    del call.metadata[b"x-mq-date-time"]
    assert remark(guard_of(KnownUsers()), call) == "datetime is null."


def test_the_age_of_a_signature_is_checked_on_request_and_in_every_time_zone() -> None:
    clock = SimulatedClock()
    assert remark(guard_of(KnownUsers(), clock), call_of("alice", date_time=OLD)) == ""
    guard = guard_of(KnownUsers(), clock, max_age_ms=60_000)

    def at(offset_s: int) -> str:
        return datetime.fromtimestamp(clock.now_ms() // 1000 + offset_s, UTC).strftime("%Y%m%dT%H%M%SZ")

    for offset_s in (0, -50, 50, 8 * 3600, -5 * 3600 - 30 * 60):
        assert remark(guard, call_of("alice", date_time=at(offset_s))) == "", offset_s
    for offset_s in (-120, 400, -3 * 24 * 3600):
        assert "too old" in remark(guard, call_of("alice", date_time=at(offset_s))), offset_s
    assert "too old" in remark(guard, call_of("alice", date_time="yesterday"))


def test_failed_attempts_wait_longer_and_longer_and_end_the_connection() -> None:
    guard, connection = guard_of(KnownUsers()), Connection()
    pauses_s = []
    for _ in range(MAX_FAILURES):
        with pytest.raises(NotAuthenticated) as caught:
            guard.authenticate(call_of("alice", "guess", connection=connection))
        pauses_s.append(caught.value.pause_s)
    assert pauses_s[:3] == [0.05, 0.1, 0.2]
    assert pauses_s[-1] == 2.0
    connection.pass_time()
    assert connection.has_left
    assert guard.statistics()["unauthenticated_requests"] == MAX_FAILURES


def test_while_refusals_are_only_logged_all_is_served() -> None:
    guard = guard_of(KnownUsers(), is_enforced=False)
    for call in (call_of(), call_of("alice", "guess"), call_of("nobody")):
        assert remark(guard, call) == ""
        assert guard.permits_still(call, [ORDERS])
    assert guard.statistics()["unauthorized_requests"] == 3


def test_without_a_copy_of_the_users_calls_are_refused_with_the_reason() -> None:
    users = KnownUsers()
    users.state, users.trouble = NO_USERS, "no broker is registered"
    guard = guard_of(users)
    assert remark(guard, call_of("alice")) == "the users are not known yet: no broker is registered"
    assert remark(guard, call_of(INNER_USER)) == ""
    assert guard.statistics()["unauthenticated_requests"] == 0


def test_a_stream_is_checked_again_without_the_age_of_its_signature() -> None:
    users, clock = KnownUsers(), SimulatedClock()
    guard = guard_of(users, clock, max_age_ms=1_000)
    call = call_of("alice", date_time=OLD)
    assert guard.permits_still(call, [ORDERS])
    users.state = users.state.with_acl("alice", Acl(), "2")
    assert not guard.permits_still(call, [ORDERS])


def test_a_client_certificate_is_enough_and_a_signature_counts_before_it() -> None:
    guard, connection = guard_of(KnownUsers()), Connection()
    connection.certificate_user = "alice"
    assert remark(guard, call_of(connection=connection)) == ""
    assert remark(guard, call_of("nobody", connection=connection)).startswith(REFUSED_REMARK)
    assert remark(guard, call_of("alice", "guess", connection=connection)) == "check signature failed."
    for name, refused in (("eve", "User:eve is not found."), (INNER_USER, "username cannot be null.")):
        connection = Connection()
        connection.certificate_user = name
        assert remark(guard, call_of(connection=connection)) == refused
