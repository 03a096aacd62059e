"""Replies that wait for the disk, with `store.flush = sync`: bounded by their bytes too, and nothing is lost by it."""

import pytest
from msgspec.structs import replace

from latermq.message.batch import BatchMember, encode_batch
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import encode_frame
from latermq.server.handlers import flush_queue
from tests.support.brokers_in_memory import STORE
from tests.unit.broker.test_send_lane import Way, send_frame


def batch_frame(opaque: int) -> bytes:
    fields = {
        "a": "senders", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
        "i": "", "j": "0", "k": "false", "m": "true", "n": "broker-a",
    }  # fmt: skip
    body = encode_batch([BatchMember(0, b"", b"")] * 100)
    return encode_frame(Request.SEND_BATCH_MESSAGE, opaque, fields=fields, body=body)


def answers(way: Way) -> list[tuple[int, int]]:
    return [(reply.opaque, reply.code) for reply in way.replies()]


def test_replies_that_wait_for_the_disk_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush_queue, "MAX_UNFLUSHED_BYTES", 5_000)
    way = Way(store=replace(STORE, flush="sync"))
    store = way.broker.store
    way.receive(batch_frame(1), batch_frame(2))  # the ids of 100 messages take 3,300 bytes
    assert way.transport.written == b""
    assert way.service.statistics()["unflushed_bytes"] > 5_000
    end = store.log.end
    way.receive(batch_frame(3), send_frame(4))
    assert [(reply.opaque, reply.code) for reply in way.replies()] == [
        (3, Response.SYSTEM_BUSY),
        (4, Response.SYSTEM_BUSY),
    ]
    assert store.log.end == end, "what is refused is not stored"
    way.service.flush_queue.on_flushed(store.log.flush())
    assert way.service.statistics()["unflushed_bytes"] == 0
    way.receive(batch_frame(5))
    way.service.flush_queue.on_flushed(store.log.flush())
    assert answers(way)[2:] == [(1, 0), (2, 0), (5, 0)]
