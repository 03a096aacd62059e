"""Whole conversations with the `h2` package as the client: whatever the windows and pieces are, every body arrives."""

from random import Random

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from latermq.protocol.http2.connection import ServerConnection
from latermq.protocol.http2.header_cache import HeaderCache
from latermq.protocol.http2.hpack.encoder import encode_fields
from latermq.protocol.http2.limits import Limits
from latermq.protocol.http2.outbox import Block
from tests.support.needs import LONG

HEAD = Block(encode_fields([(b":status", b"200"), (b"content-type", b"application/grpc")]), end_stream=False)
TAIL = Block(encode_fields([(b"grpc-status", b"0")]), end_stream=True)
LIMITS = Limits(max_held_bytes=200_000, stream_window_bytes=70_000)
SETTINGS = h2.settings.SettingCodes


class Conversation:
    """A client that sends random bodies, and a server that echoes them, over a wire that cuts bytes anywhere."""

    def __init__(self, dice: Random, cache: HeaderCache) -> None:
        self.dice = dice
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        self.server = ServerConnection(LIMITS, cache, 0.0)
        self.to_send: dict[int, bytes] = {}
        self.sent: dict[int, bytes] = {}
        self.received: dict[int, bytes] = {}
        self.trailers: dict[int, list[tuple[bytes, bytes]]] = {}
        self.cancelled: set[int] = set()
        self.client.local_settings = h2.settings.Settings(
            client=True,
            initial_values={
                SETTINGS.INITIAL_WINDOW_SIZE: dice.choice([1, 100, 65_535, 1 << 20]),
                SETTINGS.ENABLE_PUSH: 0,
                SETTINGS.MAX_FRAME_SIZE: dice.choice([16_384, 1 << 20]),
            },
        )
        self.client.initiate_connection()

    def run(self, calls: int) -> None:
        opened = 0
        while opened < calls or self.to_send or self.server.streams:
            if opened < calls and self.dice.random() < 0.5:
                opened += 1
                self.open()
            for stream_id in list(self.to_send):
                self.send_some(stream_id)
            if self.dice.random() < 0.05:
                window = self.dice.choice([0, 1, 500, 65_535, 100_000])
                self.client.update_settings({SETTINGS.INITIAL_WINDOW_SIZE: window})
            if opened == calls and not self.dice.randrange(5):
                self.client.update_settings({SETTINGS.INITIAL_WINDOW_SIZE: 65_535})
            self.exchange()

    def open(self) -> None:
        stream_id = self.client.get_next_available_stream_id()
        fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/echo"), (b":authority", b"here")]
        fields += [(b"x-%d" % n, self.dice.randbytes(9).hex().encode()) for n in range(self.dice.randrange(6))]
        body = self.dice.randbytes(self.dice.choice([0, 1, 100, 5000, 90_000, 300_000]))
        if self.dice.random() < 0.5:
            fields.append((b"content-length", b"%d" % len(body)))
        self.client.send_headers(stream_id, fields, end_stream=False)
        self.sent[stream_id] = self.to_send[stream_id] = body
        self.received[stream_id] = b""

    def send_some(self, stream_id: int) -> None:
        body = self.to_send[stream_id]
        if self.dice.random() < 0.02:
            self.client.reset_stream(stream_id, 8)
            self.cancelled.add(stream_id)
            del self.to_send[stream_id]
            return
        padding = self.dice.choice([None, None, None, 0, 255])
        extra = 0 if padding is None else padding + 1
        room = self.client.local_flow_control_window(stream_id) - extra
        size = max(0, min(len(body), room, self.client.max_outbound_frame_size - extra))
        rest = body[size:]
        if size or not rest:
            is_end = not rest and self.dice.random() < 0.9
            if room >= 0:
                self.client.send_data(stream_id, body[:size], end_stream=is_end, pad_length=padding)
                self.to_send[stream_id] = rest
                if is_end:
                    del self.to_send[stream_id]
                elif not rest:
                    self.client.send_headers(stream_id, [(b"checksum", b"1")], end_stream=True)
                    del self.to_send[stream_id]

    def exchange(self) -> None:
        for piece in self.cut(self.client.data_to_send()):
            for stream in self.server.receive(piece, 0.0):
                data = stream.take_data()
                if stream.reset is not None:
                    assert stream.id in self.cancelled
                    continue
                body = stream.attachment if isinstance(stream.attachment, bytes) else b""
                stream.attachment = body + data
                if stream.is_ended:
                    self.server.outbox.respond(stream, HEAD, b"", stream.attachment, TAIL)
                else:
                    self.server.release(stream, len(data))
                    self.server.grant(stream, len(data))
                assert self.server.held_bytes <= LIMITS.max_held_bytes
            assert not self.server.is_ended, self.server.fault
        for piece in self.cut(self.server.outbox.take()):
            for event in self.client.receive_data(piece):
                self.handle(event)

    def handle(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.DataReceived):
            assert event.stream_id is not None
            assert event.data is not None
            self.received[event.stream_id] += event.data
            if event.flow_controlled_length:
                self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.TrailersReceived):
            assert event.stream_id is not None
            self.trailers[event.stream_id] = [(bytes(name), bytes(value)) for name, value in event.headers or []]
        else:
            assert not isinstance(event, h2.events.ConnectionTerminated | h2.events.StreamReset), event

    def cut(self, data: bytes) -> list[bytes]:
        pieces = []
        while data:
            size = self.dice.choice([1, 10, 1000, 100_000, len(data)])
            pieces.append(data[:size])
            data = data[size:]
        return pieces


@pytest.mark.parametrize("seed", range(400 if LONG else 40))
def test_every_body_comes_back_to_an_h2_client(seed: int) -> None:
    dice = Random(seed)
    conversation = Conversation(dice, HeaderCache())
    conversation.run(calls=dice.randrange(1, 30))
    for stream_id, body in conversation.sent.items():
        if stream_id not in conversation.cancelled:
            assert conversation.received[stream_id] == body
            assert conversation.trailers[stream_id] == [(b"grpc-status", b"0")]
    assert conversation.server.held_bytes == 0
    assert conversation.server.outbox.unsent_bytes == 0
