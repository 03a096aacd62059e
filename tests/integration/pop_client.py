"""A client that pops over remoting, and checks replies as Apache's Java client does."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from latermq.group.pop.handles import ReceiptHandle, decode_handle, pop_retry_topic, topic_mark
from latermq.message.properties import POP_HANDLE
from latermq.message.record import Message, decode_records
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command
from tests.integration.raw_client import RawClient


@dataclass
class Popped:
    """A popped message with its handle."""

    message: Message
    handle: ReceiptHandle
    group: str
    topic: str

    @property
    def real_topic(self) -> str:
        return self.handle.real_topic(self.group, self.topic)

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def fields(self) -> dict[str, str]:
        """The fields of a request with this handle."""
        return {
            "consumerGroup": self.group,
            "topic": self.real_topic,
            "queueId": str(self.handle.queue_id),
            "extraInfo": self.handle.encode(),
            "offset": str(self.handle.offset),
        }


def pop_fields(topic: str, group: str = "readers", **changes: str) -> dict[str, str]:
    fields = {
        "consumerGroup": group, "topic": topic, "queueId": "-1", "maxMsgNums": "32", "invisibleTime": "60000",
        "pollTime": "0", "bornTime": "0", "initMode": "0", "expType": "TAG", "exp": "*", "order": "false",
    }  # fmt: skip
    return fields | changes


def read_reply(reply: Command, topic: str, group: str) -> list[Popped]:
    """Return the popped messages of a reply, with handles built from its infos as Apache's client builds them."""
    fields: Mapping[str, str] = reply.text_fields()
    if reply.code != Response.SUCCESS:
        return []
    starts = {tuple(item.split(" ")[:2]): int(item.split(" ")[2]) for item in fields["startOffsetInfo"].split(";")}
    offsets = {
        tuple(item.split(" ")[:2]): [int(one) for one in item.split(" ")[2].split(",")]
        for item in fields["msgOffsetInfo"].split(";")
    }
    found = []
    for message in decode_records(reply.body):
        given = message.properties.get(POP_HANDLE)
        if given is not None:
            assert message.topic == topic
            handle = decode_handle(given)
        else:
            mark = topic_mark(message.topic)
            key = (mark, str(message.queue_id))
            assert message.queue_offset in offsets[key]
            handle = ReceiptHandle(
                starts[key], int(fields["popTime"]), int(fields["invisibleTime"]), int(fields["reviveQid"]), mark,
                "broker-a", message.queue_id, message.queue_offset,
            )  # fmt: skip
            assert message.topic == handle.real_topic(group, topic)
        found.append(Popped(message, handle, group, topic))
    assert len(found) == sum(map(len, offsets.values()))
    return found


@dataclass
class PopClient:
    """Pops and acknowledges for one group."""

    client: RawClient
    group: str = "readers"
    extra: dict[str, str] = field(default_factory=dict)

    async def pop(self, topic: str, **changes: str) -> list[Popped]:
        reply = await self.pop_reply(topic, **changes)
        assert reply.code in (Response.SUCCESS, Response.POLLING_TIMEOUT), reply
        return read_reply(reply, topic, self.group)

    async def pop_reply(self, topic: str, **changes: str) -> Command:
        return await self.client.call(Request.POP_MESSAGE, pop_fields(topic, self.group, **(self.extra | changes)))

    async def ack(self, popped: Popped) -> str:
        reply = await self.client.call(Request.ACK_MESSAGE, popped.fields)
        assert reply.code == Response.SUCCESS, reply
        return reply.text_fields()["outcome"]

    async def change(self, popped: Popped, invisible_ms: int, **more: str) -> Command:
        fields = popped.fields | {"invisibleTime": str(invisible_ms)} | more
        return await self.client.call(Request.CHANGE_MESSAGE_INVISIBLETIME, fields)

    async def ack_all(self, popped: list[Popped]) -> list[str]:
        """Acknowledge as LaterMQ's proxy does."""
        body = [
            [one.group, one.real_topic, one.handle.queue_id, one.handle.offset, one.handle.pop_ms] for one in popped
        ]
        reply = await self.client.call(Request.ACK_POPPED, {}, json.dumps(body).encode())
        assert reply.code == Response.SUCCESS, reply
        outcomes: list[str] = json.loads(reply.body)
        return outcomes


def retry_of(popped: Popped) -> str:
    return pop_retry_topic(popped.group, popped.topic)
