"""Administration requests that only a connected consumer can answer. The broker forwards request and answer."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import msgspec

from latermq.broker.messages.reader import MessageReader
from latermq.broker.messages.reply_budget import OVERHEAD_BYTES
from latermq.config import Config
from latermq.errors import Busy, ConsumerOffline, ConsumerTimedOut, LaterMQError
from latermq.group.members import Member, Members
from latermq.message.ids import parse_offset_message_id
from latermq.protocol.remoting.clients import ClientHeader, ConsumerStatus, ConsumerStatusHeader
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.json_body import encode_body, raw_fields
from latermq.server.handlers.async_replies import answer, refuse
from latermq.server.remoting.access import GET, SUB, on_group, on_topic, on_topics
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import Endpoint
from latermq.server.remoting.sliced_requests import Reply, Slices
from latermq.timer.steps import Steps

# Tools wait 15 s for an answer; a client needs some of that to dump its threads.
CLIENT_TIMEOUT_S = 10.0
STATUS_TIMEOUT_S = 4.0  # tools wait 5 s for this one


@runtime_checkable
class ClientChannel(Protocol):
    """A connection over which the broker can send requests to a client."""

    @property
    def is_paused(self) -> bool: ...

    def call(
        self, code: int, *, fields: Mapping[str, str] | None = None, body: bytes = b"", timeout_s: float
    ) -> "asyncio.Future[Command]": ...


class ClientRequests:
    """Requests for state that only the consumer has."""

    def __init__(self, reader: MessageReader, members: Members, config: Config) -> None:
        self._reader = reader
        self._members = members
        self._config = config
        self._max_calls = config.broker.max_client_calls
        self._pending_calls = 0  # requests that clients have not answered yet

    @property
    def endpoints(self) -> list[Endpoint]:
        consume = (on_group("consumerGroup", SUB), on_topics(self._topics_consumed, SUB))
        status = (on_topic("topic", GET), on_group("group", GET))
        code = Request
        return [
            Endpoint(
                code.GET_CONSUMER_RUNNING_INFO, self._running_info, (on_group("consumerGroup", GET),), ClientHeader
            ),
            Endpoint(code.CONSUME_MESSAGE_DIRECTLY, self._consume_directly, consume, ClientHeader),
            Endpoint(
                code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
                self._status,
                status,
                ConsumerStatusHeader,
                slices=Slices.ALL,
            ),
        ]

    def _topics_consumed(self, _: Command, header: ClientHeader) -> list[str]:
        """Return the topic of the stored message, regardless of the header."""
        return self._reader.topics_at(parse_offset_message_id(header.msgId)[2])

    def _running_info(self, connection: Connection, command: Command, header: ClientHeader) -> None:
        self._forward(connection, command, header, command.text_fields(), command.body)

    def _consume_directly(self, connection: Connection, command: Command, header: ClientHeader) -> None:
        """Make one client consume one message, whether or not it has consumed it before."""
        _, _, physical_offset = parse_offset_message_id(header.msgId)
        record = self._reader.read_record(physical_offset)
        fields = {**command.text_fields(), "brokerName": self._config.broker.name}
        self._forward(connection, command, header, fields, record)

    def _forward(
        self, connection: Connection, command: Command, header: ClientHeader, fields: Mapping[str, str], body: bytes
    ) -> None:
        member = self._member(header.consumerGroup, header.clientId)

        def forward_answer(response: Command) -> None:
            reply = encode_response(
                command, response.code, fields=response.text_fields(), remark=response.remark, body=response.body
            )
            answer(connection, command, reply)

        def fail(error: LaterMQError) -> None:
            refuse(connection, command, error)

        self._reserve_calls(1)
        self._call(member, command.code, fields, body, CLIENT_TIMEOUT_S, forward_answer, fail)

    def _member(self, group: str, client_id: str) -> Member:
        connected = self._members.consumer_group(group)
        member = connected.members.get(client_id) if connected else None
        if member is None:
            raise LaterMQError(
                f"consumer {client_id!r} of group {group!r} is not online",
                hint="List the online clients with consumerConnection -g",
            )
        return member

    def _status(self, connection: Connection, command: Command, header: ConsumerStatusHeader) -> Steps[Reply]:
        """Ask every member of a group, or one, for its offsets in a topic. Omit members that do not answer."""
        group = self._members.consumer_group(header.group)
        members = list(group.members.values()) if group else []
        if header.clientAddr:
            members = [member for member in members if member.client_id == header.clientAddr]
        if not members:
            raise LaterMQError(
                f"no consumer of group {header.group!r} is online", hint="Start a consumer, or specify another group"
            )
        self._reserve_calls(len(members))
        status = ConsumerStatus()
        pending = {member.client_id for member in members}
        room_bytes = int(self._config.server.max_frame) - OVERHEAD_BYTES

        def finish(client_id: str) -> None:
            pending.discard(client_id)
            if pending:
                return
            if room_bytes < 0:
                error = LaterMQError(
                    "the replies of all members do not fit into one frame", hint="Query a single client"
                )
                refuse(connection, command, error)
            else:
                answer(connection, command, encode_response(command, body=encode_body(status)))

        def call(member: Member) -> None:
            def add_offsets(response: Command) -> None:
                nonlocal room_bytes
                offsets = raw_fields(response.body).get("messageQueueTable")
                if response.code == Response.SUCCESS and offsets is not None:
                    room_bytes -= len(offsets) + len(member.client_id) + len('"":,')
                    if room_bytes < 0:
                        status.consumerTable.clear()
                    else:
                        status.consumerTable[member.client_id] = msgspec.Raw(bytes(offsets))
                finish(member.client_id)

            fields = {"group": header.group, "topic": header.topic}
            code = Request.GET_CONSUMER_STATUS_FROM_CLIENT
            self._call(member, code, fields, b"", STATUS_TIMEOUT_S, add_offsets, lambda error: finish(member.client_id))

        for member in members:
            call(member)
            yield
        return None

    def _reserve_calls(self, count: int) -> None:
        """Reserve this many client requests, or refuse if there are too many."""
        if self._pending_calls + count > self._max_calls:
            raise Busy(
                f"{self._pending_calls} queries wait for clients; the limit is {self._max_calls} "
                "(broker.max_client_calls)",
                hint="Ask again in a moment",
            )
        self._pending_calls += count

    def _call(
        self,
        member: Member,
        code: int,
        fields: Mapping[str, str],
        body: bytes,
        timeout_s: float,
        on_answer: Callable[[Command], None],
        on_failure: Callable[[LaterMQError], None],
    ) -> None:
        """Send a request, already reserved, to a client. Exactly one of the two callbacks is called, now or later."""
        channel = member.channel
        try:
            if not isinstance(channel, ClientChannel):
                raise LaterMQError(f"client {member.client_id!r} cannot be queried over its protocol")
            if channel.is_paused:
                raise Busy(
                    f"client {member.client_id!r} has unread data pending", hint="Try again when the client has read it"
                )
            future = channel.call(code, fields=fields, body=body, timeout_s=timeout_s)
        except LaterMQError as error:
            self._pending_calls -= 1
            on_failure(error)
            return

        def done(finished: "asyncio.Future[Command]") -> None:
            self._pending_calls -= 1
            if finished.cancelled():
                return  # the loop is stopping
            error = finished.exception()
            if error is None:
                try:
                    on_answer(finished.result())
                except LaterMQError as unreadable:
                    on_failure(unreadable)
            elif isinstance(error, TimeoutError):
                on_failure(ConsumerTimedOut(f"client {member.client_id!r} did not answer within {timeout_s:g} s"))
            else:
                on_failure(ConsumerOffline(f"client {member.client_id!r} has gone"))

        future.add_done_callback(done)

    def statistics(self) -> dict[str, int]:
        """How many requests clients have not answered yet."""
        return {"client_calls": self._pending_calls}
