"""Requests with handles of popped messages: acknowledgements, changes of invisible times, dead letters."""

from collections.abc import Iterable

from latermq.broker.pop.acknowledgements import Acknowledgements, Place
from latermq.errors import MalformedRequest
from latermq.group.pop.handles import NORMAL, RETRY_V2, decode_bit_set, handle_times, pop_retry_topic
from latermq.group.pop.operations import Outcome
from latermq.message.names import RETRY_PREFIX, escaped
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.pop import (
    AckHeader,
    BatchAckBody,
    BuryHeader,
    ChangeInvisibleTimeHeader,
    PoppedPlace,
    encode_ack_reply,
    encode_batch_ack_reply,
)
from latermq.server.handlers.pop_replies import PopReplies
from latermq.server.remoting.access import SUB, on_group, on_groups, on_topics
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import Endpoint

MAX_REASON_CHARS = 200  # it becomes a property, so it is escaped too: a client must not add properties by it
_NAMES = {outcome: outcome.name.lower() for outcome in Outcome}


class AckRequests:
    """Serves handles. All replies wait for the journal."""

    def __init__(self, acknowledgements: Acknowledgements, replies: PopReplies, max_batch: int) -> None:
        """`max_batch` bounds the messages that one request acknowledges."""
        self._acknowledgements = acknowledgements
        self._replies = replies
        self._max_batch = max_batch

    @property
    def endpoints(self) -> list[Endpoint]:
        code = Request
        own = (on_group("consumerGroup", SUB), on_topics(lambda _, header: _topics([header.topic]), SUB))
        batch = (
            on_topics(lambda _, body: _topics(ack.t for ack in body.acks), SUB),
            on_groups(lambda _, body: {ack.c for ack in body.acks}, SUB),
        )
        places = (
            on_topics(lambda _, body: _topics(place[1] for place in body), SUB),
            on_groups(lambda _, body: {place[0] for place in body}, SUB),
        )
        bury = (on_topics(lambda _, header: _topics([header.topic]), SUB), on_group("group", SUB))
        return [
            Endpoint(code.ACK_MESSAGE, self._ack, own, AckHeader),
            Endpoint(code.BATCH_ACK_MESSAGE, self._ack_batch, batch, body=BatchAckBody),
            Endpoint(code.CHANGE_MESSAGE_INVISIBLETIME, self._change, own, ChangeInvisibleTimeHeader),
            Endpoint(code.ACK_POPPED, self._ack_places, places, body=list[PoppedPlace]),
            Endpoint(code.BURY_POPPED, self._bury, bury, BuryHeader),
        ]

    def _ack(self, connection: Connection, command: Command, header: AckHeader) -> None:
        self._replies.check_room()
        pop_ms = handle_times(header.extraInfo)[0]
        place = Place(header.consumerGroup, header.topic, header.queueId, header.offset, pop_ms)
        outcome = self._acknowledgements.ack(place)
        is_done = outcome is Outcome.DONE
        reply = encode_ack_reply(command) if is_done else self.encode_refusal(command, place, outcome)
        self._replies.hold(connection, command, reply)

    def encode_refusal(self, command: Command, place: Place, outcome: Outcome) -> bytes:
        """Encode the reply to an acknowledgement that did nothing."""
        is_known = self._acknowledgements.find(place) is not None or self._acknowledgements.is_stored(place)
        code = Response.SUCCESS if is_known else Response.NO_MESSAGE
        return encode_response(command, code, fields={"outcome": _NAMES[outcome]})

    def _ack_batch(self, connection: Connection, command: Command, body: BatchAckBody) -> None:
        self._replies.check_room()
        self._check_count(len(body.acks))  # an empty bit set is work, too
        batches = []
        left = self._max_batch
        for ack in body.acks:  # all are checked before any counts
            count, windows = decode_bit_set(ack.b, left)
            left -= count
            batches.append((ack, windows))
        done = 0
        for ack, windows in batches:
            group, topic = ack.c, ack.t
            if ack.r != NORMAL:
                topic = pop_retry_topic(group, topic, is_v2=ack.r == RETRY_V2)
            done += self._acknowledgements.ack_all((group, topic, ack.q), ack.so, ack.pt, windows)
        self._replies.hold(connection, command, encode_batch_ack_reply(command, done))

    def _change(self, connection: Connection, command: Command, header: ChangeInvisibleTimeHeader) -> None:
        self._replies.check_room()
        pop_ms, revive_queue_id = handle_times(header.extraInfo)
        place = Place(header.consumerGroup, header.topic, header.queueId, header.offset, pop_ms)
        self._acknowledgements.find(place)
        changed = self._acknowledgements.change(place, header.invisibleTime, is_suspended=bool(header.suspend))
        fields = {"outcome": _NAMES[changed.outcome]}
        if changed.outcome is not Outcome.DONE:
            reply = encode_response(command, Response.NO_MESSAGE, fields=fields, remark="the handle is not valid")
        else:
            # A message popped in order keeps its pop time, so its handle has another invisible time.
            is_same = changed.pop_ms == pop_ms
            fields["popTime"] = str(changed.pop_ms)
            fields["invisibleTime"] = str(changed.visible_ms - pop_ms if is_same else max(0, header.invisibleTime))
            fields["reviveQid"] = str(revive_queue_id)
            reply = encode_response(command, fields=fields)
        self._replies.hold(connection, command, reply)

    def _ack_places(self, connection: Connection, command: Command, body: list[PoppedPlace]) -> None:
        self._replies.check_room()
        self._check_count(len(body))
        done, found = Outcome.DONE, self._acknowledgements.ack_each(body)
        # A member of an enum takes 0.5 µs to look up.
        outcomes = ["done" if outcome is done else _NAMES[outcome] for outcome in found]
        self._replies.hold(connection, command, encode_response(command, body=encode_body(outcomes)))

    def _bury(self, connection: Connection, command: Command, header: BuryHeader) -> None:
        self._replies.check_room()
        place = Place(header.group, header.topic, header.queueId, header.offset, header.popTime)
        self._acknowledgements.find(place)
        outcome = self._acknowledgements.bury(place, escaped(header.reason or "", MAX_REASON_CHARS))
        code = Response.SUCCESS if outcome is Outcome.DONE else Response.NO_MESSAGE
        self._replies.hold(connection, command, encode_response(command, code, fields={"outcome": _NAMES[outcome]}))

    def _check_count(self, count: int) -> None:
        if count > self._max_batch:
            raise MalformedRequest(
                f"{count} messages cannot be acknowledged at once",
                hint=f"Acknowledge up to {self._max_batch} per request",
            )


def _topics(names: Iterable[str]) -> set[str]:
    """Return the topics that a request touches. Retry topics belong to the group, which is checked anyway."""
    return {name for name in names if not name.startswith(RETRY_PREFIX)}
