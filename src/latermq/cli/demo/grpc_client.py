"""A client that knows nothing but gRPC, the 5.x protocol: `python -m latermq.cli.demo.grpc_client PROXY TOPIC GROUP`.

It needs the package grpcio, which `make setup` installs. LaterMQ's servers do not use it.
"""

import sys
import time
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from latermq.protocol.messaging import messaging_pb2 as pb

SERVICE = "/apache.rocketmq.v2.MessagingService/"
METADATA = (("x-mq-client-id", "latermq-demo"), ("x-mq-language", "PYTHON"), ("x-mq-client-version", "5.1.2"))
TIMEOUT_S = 10.0
BODY = b"by gRPC"
AHEAD_MS = 1_500
INVISIBLE_S = 30
RETRY_PAUSE_S = 0.2
LONGEST_OUTAGE_S = 60.0


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


def main() -> None:
    """Schedule a message, receive it when it is due, wait until the proxy was killed, and acknowledge the message.

    Prints how late it arrived, then waits for a line on standard input.
    """
    proxy, topic, group = sys.argv[1:4]
    client = GrpcClient(proxy, topic, group)
    due_ms = int(time.time() * 1000) + AHEAD_MS
    sent = client.send("01" + "0" * 32, BODY, due_ms)
    if sent.status.code != pb.OK:
        sys.exit(f"the send was refused: {sent.status.message}")
    received: list[Any] = []
    deadline_s = time.monotonic() + LONGEST_OUTAGE_S
    while not received and time.monotonic() < deadline_s:
        received = client.receive()
    arrived_ms = int(time.time() * 1000)
    if [message.body for message in received] != [BODY]:
        sys.exit(f"{len(received)} messages arrived instead of one")
    print(arrived_ms - due_ms, flush=True)
    sys.stdin.readline()
    code = client.ack(received[0])
    if code != pb.OK:
        sys.exit(f"the acknowledgement was answered with {code}")
    client.close()


if __name__ == "__main__":
    main()
