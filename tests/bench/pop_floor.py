"""The least that a pop and a batch acknowledgement could cost: handlers without any rules, behind the real connection.

They read the messages, note them in a dict, append a record to a journal per turn, and answer as the broker does. They
check nothing, bound nothing, wait for nothing, and let nothing become visible again. What the broker needs beyond them
is the cost of its rules.
"""

import time
from collections.abc import Callable
from struct import Struct

from latermq.group.pop.handles import decode_bit_set, offset_infos
from latermq.message.names import POP_TOPIC
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.pop import BatchAckBody, PopHeader, encode_batch_ack_reply, encode_pop_reply
from latermq.server.remoting.access import OPEN
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import Endpoint, RequestTable
from tests.bench.path import QUEUES, SocketlessBroker

_POP = Struct(">BIqIqq")
_ACK = Struct(">BIqI")
_MAX_BYTES = 256 * 1024
_HOST = bytes(8)


class LeastPops:
    """Replaces all requests of a broker by pops of all queues and batch acknowledgements."""

    def __init__(self, path: SocketlessBroker, later: Callable[[Callable[[], None]], None]) -> None:
        store = path.broker.store
        self._queues, self._reader, self._writer = store.queues.by_key, store.reader, store.writer
        self._send = path.connection.send
        self._later = later
        self._next_queues: dict[tuple[str, str], int] = {}
        self._next: dict[tuple[str, str, int], int] = {}
        self.held: dict[tuple[tuple[str, str, int], int], int] = {}  # masks by queue and first offset
        self._pieces: list[bytes] = []
        self._replies: list[bytes] = []
        table = RequestTable(1 << 20)
        table.add(
            [
                Endpoint(Request.POP_MESSAGE, self._pop, OPEN, PopHeader),
                Endpoint(Request.BATCH_ACK_MESSAGE, self._ack, OPEN, body=BatchAckBody),
            ]
        )
        path.service.table = table

    def _pop(self, connection: Connection, command: Command, header: PopHeader) -> bytes | None:
        group, topic = header.consumerGroup, header.topic
        pair = group, topic
        start = self._next_queues.get(pair, 0)
        for number in range(start, start + QUEUES):
            key = group, topic, number % QUEUES
            queue, first = self._queues[topic, key[2]], self._next.get(key, 0)
            if first < queue.next_offset:
                break
        else:
            return encode_response(command, Response.POLLING_TIMEOUT)
        self._next_queues[pair] = key[2] + 1
        pieces, count, end, _, _ = self._reader.fetch(queue, first, max_count=header.maxMsgNums, max_bytes=_MAX_BYTES)
        now_ms = time.time_ns() // 1_000_000
        self._next[key] = end
        self.held[key, first] = mask = (1 << count) - 1
        self._pieces.append(_POP.pack(2, 1, first, mask, now_ms, now_ms + header.invisibleTime))
        starts, offsets = offset_infos([("0", key[2], range(first, end))])
        self._replies.append(
            encode_pop_reply(
                command.opaque, pop_ms=now_ms, invisible_ms=header.invisibleTime, revive_queue_id=0, rest=0,
                starts=starts, offsets=offsets, order_counts=None, body=b"".join(pieces),
            )
        )  # fmt: skip
        self._later(self._settle)
        return None

    def _ack(self, connection: Connection, command: Command, body: BatchAckBody) -> None:
        done = 0
        for ack in body.acks:
            count, windows = decode_bit_set(ack.b)
            key, (_, mask) = ((ack.c, ack.t, ack.q), ack.so), windows[0]
            left = self.held[key] & ~mask
            if left:
                self.held[key] = left
            else:
                del self.held[key]
            self._pieces.append(_ACK.pack(5, 1, ack.so, mask))
            done += count
        self._replies.append(encode_batch_ack_reply(command, done))
        self._later(self._settle)

    def _settle(self) -> None:
        pieces, self._pieces = self._pieces, []
        self._writer.append(POP_TOPIC, 0, b"".join(pieces), b"", 1, _HOST)
        replies, self._replies = self._replies, []
        self._send(b"".join(replies))
