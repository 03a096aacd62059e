"""The proxy's calls without a network: brokers whose answers a test gives, and calls whose answers it reads."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, TypeVar

from google.protobuf.message import Message

from latermq.errors import LaterMQError
from latermq.protocol.http2.grpc.status import StatusCode
from latermq.protocol.remoting.frames import Command, FrameReader, encode_frame
from latermq.server.proxy.calls.call_table import SERVICE, CallEndpoint, CallTable

M = TypeVar("M", bound=Message)
OnResponse = Callable[[Command | LaterMQError], None]


class BrokerRequest:
    """A request of the proxy to a broker."""

    def __init__(self, broker: str, command: Command, on_response: OnResponse, timeout_s: float) -> None:
        self.broker = broker
        self.code = command.code
        self.fields = command.text_fields()
        self.body = command.body
        self.timeout_s = timeout_s
        self._on_response = on_response

    def answer(
        self, code: int = 0, fields: Mapping[str, str] | None = None, body: bytes = b"", remark: str = ""
    ) -> None:
        frame = encode_frame(code, 1, flag=1, fields=fields or {}, body=body, remark=remark or None)
        [response] = FrameReader().feed(frame)
        self._on_response(response)

    def fail(self, error: LaterMQError) -> None:
        self._on_response(error)


class FakeLink:
    """Brokers that answer when a test says so."""

    credentials = None

    def __init__(self, *brokers: str) -> None:
        self.brokers = list(brokers)
        self.connections = SimpleNamespace(credentials=None)
        self.requests: list[BrokerRequest] = []
        self._opaque = 0

    @property
    def known_brokers(self) -> list[str]:
        return self.brokers

    def is_known(self, broker: str) -> bool:
        return broker in self.brokers

    is_open = is_known

    def next_opaque(self) -> int:
        self._opaque += 1
        return self._opaque

    def request(
        self, broker: str, code: int, fields: Mapping[str, str], on_response: OnResponse, *, body: bytes = b"",
        timeout_s: float = 0.0,
    ) -> int:  # fmt: skip
        opaque = self.next_opaque()
        self.send(broker, opaque, encode_frame(code, opaque, fields=fields, body=body), on_response, timeout_s)
        return opaque

    def send(self, broker: str, opaque: int, frame: bytes, on_response: OnResponse, timeout_s: float = 0.0) -> None:
        [command] = FrameReader().feed(frame)
        self.requests.append(BrokerRequest(broker, command, on_response, timeout_s))

    def take(self) -> list[BrokerRequest]:
        """All requests since the last time."""
        requests, self.requests = self.requests, []
        return requests


class FakeCall:
    """A call whose client reads `room` answers, and then no more until `drain`."""

    def __init__(self, timeout_s: float | None = None, room: int = 1_000_000) -> None:
        self.field = {b"x-mq-client-id": b"client-1"}.get
        self.deadline_s = timeout_s
        self.read_notices: list[Callable[[bool], None]] = []
        self.when_read = self.read_notices.append
        self.connection = SimpleNamespace(peer=("10.9.8.7", 1), now_s=lambda: 0.0)
        self.on_cancel: Callable[[], None] | None = None
        self.answers: list[bytes] = []
        self.is_open = True
        self.room = room
        self._waiting: Callable[[], None] | None = None

    @property
    def is_writable(self) -> bool:
        return len(self.answers) < self.room

    def send(self, message: bytes) -> bool:
        return self.send_all([message])

    def send_all(self, messages: list[bytes]) -> bool:
        if self.is_open:
            self.answers += messages
        return self.is_writable

    def reply(self, message: bytes) -> None:
        self.send(message)
        self.end()

    def end(self, status: StatusCode = StatusCode.OK, message: str = "") -> None:
        assert status is StatusCode.OK, message
        self.is_open, self.on_cancel = False, None

    def when_writable(self, then: Callable[[], None]) -> None:
        self._waiting = then

    def drain(self) -> None:
        """Read everything that was sent so far, and room for more."""
        self.room = len(self.answers) + 1
        then, self._waiting = self._waiting, None
        if then is not None:
            then()

    def cancel(self) -> None:
        """The client goes away."""
        on_cancel, self.on_cancel, self.is_open = self.on_cancel, None, False
        if on_cancel is not None:
            on_cancel()

    def read(self, type_: type[M]) -> list[M]:
        return [type_.FromString(answer) for answer in self.answers]


class FakeProxy:
    """A table of calls."""

    def __init__(self, endpoints: list[CallEndpoint]) -> None:
        self.table = CallTable()
        self.table.add(endpoints)

    def call(self, method: str, request: Message, call: FakeCall | None = None) -> Any:
        """Make a call, and return it. It may be answered later."""
        call = call or FakeCall()
        served: Any = self.table.methods[f"/{SERVICE}/{method}".encode()]
        answer = served.serve(call, request.SerializeToString())
        if answer is not None:
            call.reply(answer)
        return call
