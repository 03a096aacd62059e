"""CPU time of pops with their acknowledgements in the broker without sockets, and of pulls of the same messages."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from latermq.group.pop.handles import encode_bit_set
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import FrameReader, encode_frame
from tests.bench.path import GROUP, PULL_BATCH, TOPIC, Figures, SocketlessBroker, measure_pull, measure_send
from tests.bench.pop_floor import LeastPops

POP, ACK = f"pop of {PULL_BATCH} (µs/message)", "ack (µs/message)"
_Acks = Callable[[str, list[tuple[int, int]], int], bytes]  # frames for a group, queue ids and offsets, and a pop time


class PopPath:
    """Pops all messages of a broker in batches, and acknowledges them after each pop, in one turn."""

    def __init__(self, path: SocketlessBroker, soon: list[Callable[[], None]]) -> None:
        self._path = path
        self._soon = soon
        self._opaque = 0

    def _turn(self, data: bytes) -> int:
        """Serve one read and the callbacks after it, and return the nanoseconds."""
        started_ns = time.thread_time_ns()
        self._path.connection.data_received(data)
        while self._soon:
            self._soon.pop()()
        return time.thread_time_ns() - started_ns

    def measure(self, group: str, acks: _Acks) -> Figures:
        journal = self._path.broker.pop_journal
        bytes_before, messages, popped_ns, acked_ns = journal.bytes, 0, 0, 0
        fields = {
            "consumerGroup": group, "topic": TOPIC, "queueId": "-1", "maxMsgNums": str(PULL_BATCH),
            "invisibleTime": "60000", "pollTime": "0", "bornTime": "0", "initMode": "0", "expType": "TAG", "exp": "*",
            "order": "false",
        }  # fmt: skip
        while True:
            self._path.upkeep()
            self._opaque += 1
            popped_ns += self._turn(encode_frame(Request.POP_MESSAGE, self._opaque, fields=fields))
            (reply,) = FrameReader().feed(bytes(self._path.transport.last))
            if reply.code:
                break
            places = _places(reply.text_fields())
            messages += len(places)
            acked_ns += self._turn(acks(group, places, int(reply.text_fields()["popTime"])))
        assert messages, "nothing was popped"
        assert not self._path.broker.in_flight.held, "an acknowledgement did nothing"
        return {
            POP: popped_ns / 1000 / messages,
            ACK: acked_ns / 1000 / messages,
            "journal (bytes/message)": (journal.bytes - bytes_before) / messages,
        }


def _one_by_one(group: str, places: list[tuple[int, int]], pop_ms: int) -> bytes:
    frames, starts = [], dict(reversed(places))
    for queue_id, offset in places:
        handle = f"{starts[queue_id]} {pop_ms} 60000 0 0 broker-a {queue_id} {offset}"
        fields = {
            "consumerGroup": group, "topic": TOPIC, "queueId": str(queue_id), "offset": str(offset),
            "extraInfo": handle,
        }  # fmt: skip
        frames.append(encode_frame(Request.ACK_MESSAGE, offset, fields=fields))
    return b"".join(frames)


def _in_a_batch(group: str, places: list[tuple[int, int]], pop_ms: int) -> bytes:
    acks = []
    for queue_id in sorted({queue_id for queue_id, _ in places}):
        offsets = [offset for own, offset in places if own == queue_id]
        bits = encode_bit_set(offset - offsets[0] for offset in offsets)
        acks.append(
            {
                "c": group,
                "t": TOPIC,
                "r": "0",
                "so": offsets[0],
                "q": queue_id,
                "rq": 0,
                "pt": pop_ms,
                "it": 60_000,
                "b": bits,
            }
        )
    body = json.dumps({"brokerName": "broker-a", "acks": acks}).encode()
    return encode_frame(Request.BATCH_ACK_MESSAGE, 1, fields={}, body=body)


def _by_the_proxy(group: str, places: list[tuple[int, int]], pop_ms: int) -> bytes:
    body = json.dumps([[group, TOPIC, queue_id, offset, pop_ms] for queue_id, offset in places]).encode()
    return encode_frame(Request.ACK_POPPED, 1, fields={}, body=body)


_WAYS: dict[str, _Acks] = {
    "one by one": _one_by_one, "in a batch": _in_a_batch, "by the proxy": _by_the_proxy,
}  # fmt: skip


def _places(fields: dict[str, str]) -> list[tuple[int, int]]:
    """Return queue id and offset of each message of a reply."""
    items = (item.split(" ") for item in fields["msgOffsetInfo"].split(";"))
    return [(int(queue_id), int(offset)) for _, queue_id, offsets in items for offset in offsets.split(",")]


def measure_pop_path(folder: Path, count: int, body_bytes: int) -> Figures:
    """All figures of one repeat, on a new store."""
    soon: list[Callable[[], None]] = []
    path = SocketlessBroker(folder, body_bytes, later=soon.append)
    try:
        measure_send(path, count)
        figures = measure_pull(path)
        pull_us = figures["pull (µs/message)"]
        for number, (name, acks) in enumerate(_WAYS.items()):
            own = PopPath(path, soon).measure(f"{GROUP}-{number}", acks)
            own["both, pull = 1"] = (own[POP] + own[ACK]) / pull_us
            figures |= {f"acknowledged {name}: {figure}": value for figure, value in own.items()}
        least = LeastPops(path, soon.append)
        own = PopPath(path, soon).measure(GROUP, _in_a_batch)
        assert not least.held, "an acknowledgement did nothing"
        figures["least work, in a batch: both, pull = 1"] = (own[POP] + own[ACK]) / pull_us
        return figures
    finally:
        path.close()
