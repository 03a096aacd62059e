"""Bodies of pending timers: from their own record, or pulled from the log of their broker."""

import zlib
from collections.abc import Iterator
from typing import ClassVar

import pyarrow as pa
import pytest

from latermq.message.ids import pack_host
from latermq.message.record_fields import SYSFLAG_COMPRESSED
from latermq.message.record_writer import encode_record
from latermq.pipeline.driver.link import QueueRange
from latermq.pipeline.query import bodies

HOST = pack_host("10.0.0.1", 40_000)
FIRST, END = 100, 2_000


def record(entry: int, body: bytes, sysflag: int = 0) -> bytes:
    return encode_record(
        b"rmq_sys_wheel_timer", body, b"UNIQ_KEY\x01u\x02", queue_id=0, queue_offset=entry, physical_offset=0,
        born_timestamp_ms=1, born_host=HOST, store_timestamp_ms=1, store_host=HOST, sysflag=sysflag,
    )  # fmt: skip


class Link:
    """A broker whose entries have their number as body, every tenth compressed."""

    pulled: ClassVar[list[tuple[int, int]]] = []

    def __init__(self, address: str) -> None:
        assert address == "h:1"

    def __enter__(self) -> "Link":
        return self

    def __exit__(self, *failure: object) -> None:
        pass

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        return FIRST, END

    def pull_all(self, range_: QueueRange) -> Iterator[bytes]:
        self.pulled.append((range_.start, range_.end))
        for start in range(range_.start, range_.end, 7):
            numbers = range(start, min(start + 7, range_.end))
            yield b"".join(record(n, *self._body(n)) for n in numbers)

    def _body(self, number: int) -> tuple[bytes, int]:
        body = b"body %d" % number
        return (zlib.compress(body), SYSFLAG_COMPRESSED) if number % 10 == 0 else (body, 0)


def test_near_and_far_timers_have_bodies_as_consumers_receive_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BrokerLink", Link)
    monkeypatch.setattr(Link, "pulled", [])
    far = record(1, zlib.compress(b"far"), SYSFLAG_COMPRESSED)
    entries = [1_500, 1, 120, 50, 101, 1_501, 130, 130, 3_000]
    batch = pa.RecordBatch.from_pydict(
        {
            "store_id": ["s"] * 8 + ["gone"],
            "entry_offset": pa.array(entries),
            "keys": [str(entry) for entry in entries],
            "record": pa.array([None, far, *[None] * 7], pa.binary()),
        }
    )
    found = bodies.add_bodies(batch, {"s": "h:1", "other": "h:2"})
    assert found.schema.names == ["store_id", "entry_offset", "keys", "body", "body_text"]
    texts = ["body 1500", "far", "body 120", None, "body 101", "body 1501", "body 130", "body 130", None]
    assert found.column("body_text").to_pylist() == texts
    assert found.column("body").to_pylist() == [text.encode() if text else None for text in texts]
    assert Link.pulled == [(101, 131), (1_500, 1_502)]  # what lies close together comes together
