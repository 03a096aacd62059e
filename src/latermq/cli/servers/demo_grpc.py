"""The demo's steps with the 5.x protocol: a client that knows nothing but gRPC, and a proxy that is killed.

The client needs the package grpcio, which `make setup` installs. LaterMQ itself does not use it.
"""

import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from latermq.protocol.messaging import messaging_pb2 as pb

SERVICE = "/apache.rocketmq.v2.MessagingService/"
METADATA = (("x-mq-client-id", "latermq-demo"), ("x-mq-language", "PYTHON"), ("x-mq-client-version", "5.1.2"))
TIMEOUT_S = 10.0
INVISIBLE_S = 30
RETRY_PAUSE_S = 0.2
LONGEST_OUTAGE_S = 15.0


def has_grpc() -> bool:
    """Whether the package grpcio is installed."""
    return find_spec("grpc") is not None


class GrpcClient:
    """A client of the 5.x protocol for one topic and one group."""

    def __init__(self, proxy: str, topic: str, group: str) -> None:
        self._grpc = import_module("grpc")
        self._channel = self._grpc.insecure_channel(proxy)
        self._topic = pb.Resource(name=topic)
        self._group = pb.Resource(name=group)

    def close(self) -> None:
        self._channel.close()

    def send(self, message_id: str, body: bytes, due_ms: int) -> Any:
        """Schedule a message and return the answer."""
        properties = pb.SystemProperties(message_id=message_id, body_encoding=pb.IDENTITY, message_type=pb.DELAY)
        properties.born_timestamp.GetCurrentTime()
        properties.delivery_timestamp.FromMilliseconds(due_ms)
        message = pb.Message(topic=self._topic, body=body, system_properties=properties)
        return self._unary("SendMessage", pb.SendMessageRequest(messages=[message]), pb.SendMessageResponse)

    def receive(self) -> list[Any]:
        """Return messages, or none if there are none for a few seconds."""
        queue = pb.MessageQueue(topic=self._topic, id=-1, broker=pb.Broker(name="broker-a"))
        request = pb.ReceiveMessageRequest(group=self._group, message_queue=queue, batch_size=32)
        request.invisible_duration.FromSeconds(INVISIBLE_S)
        request.long_polling_timeout.FromSeconds(5)
        request.filter_expression.expression = "*"
        call = self._channel.unary_stream(
            SERVICE + "ReceiveMessage",
            request_serializer=pb.ReceiveMessageRequest.SerializeToString,
            response_deserializer=pb.ReceiveMessageResponse.FromString,
        )
        answers = call(request, metadata=METADATA, timeout=TIMEOUT_S)
        return [answer.message for answer in answers if answer.HasField("message")]

    def ack(self, message: Any) -> int:
        """Acknowledge a message and return the code of the answer. Waits for a proxy that is being restarted."""
        properties = message.system_properties
        entry = pb.AckMessageEntry(message_id=properties.message_id, receipt_handle=properties.receipt_handle)
        request = pb.AckMessageRequest(group=self._group, topic=self._topic, entries=[entry])
        deadline_s = time.monotonic() + LONGEST_OUTAGE_S
        while True:
            try:
                response = self._unary("AckMessage", request, pb.AckMessageResponse)
            except self._grpc.RpcError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(RETRY_PAUSE_S)
                continue
            if response.status.code == pb.OK or time.monotonic() > deadline_s:
                return int(response.status.code)
            time.sleep(RETRY_PAUSE_S)

    def _unary(self, name: str, request: Any, response_type: Any) -> Any:
        call = self._channel.unary_unary(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response_type.FromString,
        )
        return call(request, metadata=METADATA, timeout=TIMEOUT_S)


def try_proxy(proxy: str, topic: str, group: str, kill_proxy: Callable[[], int]) -> list[str]:
    """Schedule a message, receive it when it is due, kill the proxy, and acknowledge the message.

    Raises AssertionError, RpcError or TimeoutError if something else happens.
    """
    client = GrpcClient(proxy, topic, group)
    try:
        due_ms = int(time.time() * 1000) + 1_500
        sent = client.send("01" + "0" * 32, b"by gRPC", due_ms)
        assert sent.status.code == pb.OK, sent.status.message
        received: list[Any] = []
        deadline_s = time.monotonic() + LONGEST_OUTAGE_S
        while not received and time.monotonic() < deadline_s:
            received = client.receive()
        arrived_ms = int(time.time() * 1000)
        assert [message.body for message in received] == [b"by gRPC"], f"{len(received)} messages arrived"
        assert arrived_ms >= due_ms, f"it arrived {due_ms - arrived_ms} ms early"
        killed = kill_proxy()
        code = client.ack(received[0])
        assert code == pb.OK, f"the acknowledgement was answered with {code}"
    finally:
        client.close()
    return [
        f"scheduled with a recall handle, received {arrived_ms - due_ms} ms after its due time",
        f"killed proxy process {killed}; its successor accepted the acknowledgement of the same handle",
    ]
