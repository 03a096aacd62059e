"""Random and damaged frames, seeded: nothing raises, and memory stays within its bounds."""

from random import Random

import pytest

from latermq.protocol.http2.frames import (
    DATA,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS_ACK,
    ErrorCode,
    frame,
    reset_frame,
    settings_frame,
    window_update,
)
from latermq.protocol.http2.hpack.encoder import encode_fields
from latermq.protocol.http2.limits import Limits
from latermq.protocol.http2.outbox import Block
from tests.support.needs import LONG
from tests.unit.protocol.http2.raw_peer import GET, OK_BLOCK, POST, RawPeer

LIMITS = Limits(max_streams=20, max_held_bytes=100_000, stream_window_bytes=70_000, max_remembered_resets=10)
HEAD = Block(OK_BLOCK, end_stream=False)
TAIL = Block(encode_fields([(b"grpc-status", b"0")]), end_stream=True)


def random_frame(dice: Random, next_id: list[int]) -> bytes:
    """Mostly a frame that may occur, sometimes any frame at all."""
    known_id = dice.randrange(1, max(2, next_id[0]), 2)
    kind = dice.randrange(40)
    if kind < 12:
        fields = dice.choice([GET, POST, [*POST, (b"content-length", b"%d" % dice.randrange(99))], [(b"a", b"b")]])
        next_id[0] += 2
        data = frame(HEADERS, dice.choice([4, 5]), next_id[0] - 2, encode_fields(fields))
    elif kind < 30:
        size = dice.choice([0, 1, dice.randrange(60), dice.randrange(16_384)])
        data = frame(DATA, dice.choice([0, 0, 1]), known_id, dice.randbytes(size))
    elif kind < 33:
        name, value = dice.randrange(1, 8), dice.choice([0, 1, 16_384, 70_000])
        data = dice.choice([SETTINGS_ACK, settings_frame({name: value})])
    elif kind < 36:
        data = window_update(dice.choice([0, known_id]), dice.choice([1, 1000, 100_000]))
    elif kind < 39:
        data = dice.choice([reset_frame(known_id, 8), frame(PING, 0, 0, b"12345678"), frame(99, 1, known_id, b"?")])
    else:
        payload = dice.randbytes(dice.choice([0, 4, 5, 6, 8, dice.randrange(17_000)]))
        data = frame(
            dice.randrange(12), dice.randrange(256), dice.choice([0, known_id, dice.randrange(1 << 32)]), payload
        )
    if dice.random() < 0.02:
        at = dice.randrange(len(data))
        data = data[:at] + dice.randbytes(1) + data[at + 1 :]
    return data


@pytest.mark.parametrize("seed", range(20 if LONG else 4))
def test_no_frames_make_a_connection_raise(seed: int) -> None:
    dice = Random(seed)
    answered = faults = resets = 0
    for _ in range(300):
        peer = RawPeer(LIMITS)
        connection = peer.connection
        next_id = [1]
        for _ in range(dice.randrange(1, 60)):
            data = b"".join(random_frame(dice, next_id) for _ in range(dice.randrange(1, 4)))
            if dice.random() < 0.02:
                data = dice.randbytes(40)
            peer.now_s += dice.random()
            for stream in peer.send(data):
                data = stream.take_data()
                if stream.reset is not None:
                    resets += 1
                elif stream.is_ended:
                    connection.outbox.respond(stream, HEAD, b"", b"x" * dice.randrange(20_000), TAIL)
                    answered += 1
                elif dice.random() < 0.05:
                    connection.reset(stream, dice.choice([ErrorCode.NO_ERROR, ErrorCode.CANCEL]))
                elif dice.random() < 0.5:
                    connection.release(stream, len(data))
                    connection.grant(stream, len(data))
            assert connection.held_bytes == sum(stream.held_bytes for stream in connection.streams.values())
            assert 0 <= connection.held_bytes <= LIMITS.max_held_bytes
            assert connection.outbox.queued_bytes == sum(stream.unsent_bytes for stream in connection.streams.values())
            assert len(connection.streams) <= LIMITS.max_streams
            assert len(connection._reset_ids) <= LIMITS.max_remembered_resets
            assert len(connection._rest) <= LIMITS.max_frame_bytes + 9
            if connection.is_ended:
                faults += 1
                break
            peer.read()
    assert answered > 100
    assert faults > 100
    assert resets > 100


def test_random_bytes_after_the_preface_are_a_protocol_error() -> None:
    dice = Random(7)
    for _ in range(2000):
        peer = RawPeer(greet=False)
        peer.send(PREFACE)
        for _ in range(5):
            peer.send(dice.randbytes(dice.randrange(100)))
        peer.connection.outbox.take()
        assert peer.connection.is_ended or len(peer.connection._rest) < 500
