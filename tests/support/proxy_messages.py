"""Requests about messages, as 5.x clients send them."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from latermq.protocol.messaging import messaging_pb2 as pb
from tests.support.grpc_client import GrpcClient

BROKER = "broker-a"
_ids = count(1)


def new_message(topic: str, body: bytes = b"hello", **system: Any) -> pb.Message:
    """A message with an id of its own."""
    fields = {"message_id": f"01{next(_ids):032X}", "born_host": "tests"} | system
    return pb.Message(topic=pb.Resource(name=topic), body=body, system_properties=pb.SystemProperties(**fields))


def send(client: GrpcClient, *messages: pb.Message) -> pb.SendMessageResponse:
    return client.call("SendMessage", pb.SendMessageRequest(messages=messages), pb.SendMessageResponse)


def receive_request(topic: str, group: str, poll_s: float | None = 2.0, **fields: Any) -> pb.ReceiveMessageRequest:
    """A request for up to 32 messages, invisible for 30 s."""
    request = pb.ReceiveMessageRequest(
        group=pb.Resource(name=group),
        message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), id=-1, broker=pb.Broker(name=BROKER)),
        batch_size=32,
    )
    request.invisible_duration.FromSeconds(30)
    if poll_s is not None:
        request.long_polling_timeout.FromMilliseconds(int(poll_s * 1000))
    request.MergeFrom(pb.ReceiveMessageRequest(**fields))
    return request


def answers_to(
    client: GrpcClient, request: pb.ReceiveMessageRequest, timeout_s: float | None = 20.0
) -> list[pb.ReceiveMessageResponse]:
    """All answers to one receive."""
    return list(client.stream("ReceiveMessage", request, pb.ReceiveMessageResponse, timeout_s))  # type: ignore[arg-type]


def receive(client: GrpcClient, topic: str, group: str, poll_s: float = 2.0, **fields: Any) -> list[pb.Message]:
    """The messages of one receive."""
    answers = answers_to(client, receive_request(topic, group, poll_s, **fields))
    assert answers[0].status.code in (pb.OK, pb.MESSAGE_NOT_FOUND), answers[0]
    assert answers[-1].HasField("delivery_timestamp")
    return [answer.message for answer in answers[1:-1]]


def ack(client: GrpcClient, topic: str, group: str, handles: Sequence[str]) -> pb.AckMessageResponse:
    entries = [pb.AckMessageEntry(message_id="any", receipt_handle=handle) for handle in handles]
    request = pb.AckMessageRequest(group=pb.Resource(name=group), topic=pb.Resource(name=topic), entries=entries)
    return client.call("AckMessage", request, pb.AckMessageResponse)


def handle_of(message: pb.Message) -> str:
    return message.system_properties.receipt_handle
