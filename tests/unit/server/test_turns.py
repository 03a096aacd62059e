"""Turns on the loop: how much is served before others are, in which order, and what is held meanwhile."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from latermq.addresses import network_of
from latermq.clock import SimulatedClock
from latermq.config import Duration, ServerConfig, Size
from latermq.protocol.remoting.codes import Response
from latermq.protocol.remoting.frames import FLAG_ONEWAY, Command, FrameReader, encode_frame, encode_response
from latermq.server.remoting.connection import MAX_SLICED_REQUESTS, Connection
from latermq.server.remoting.listener import Listener

TURN_MS = 5
REQUEST_MS = 1
ASK, BEGIN = 1, 2


class Socket(asyncio.Transport):
    """A transport without a peer: what is written is read at once, unless it `keeps` it."""

    def __init__(self, host: str = "10.1.2.3") -> None:
        super().__init__({"peername": (host, 40_000)})
        self.written: list[Command] = []
        self._reads = True
        self.keeps = False
        self.kept_bytes = 0
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written += FrameReader().feed(bytes(data))
        if self.keeps:
            self.kept_bytes += len(data)

    def get_write_buffer_size(self) -> int:
        return self.kept_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def is_reading(self) -> bool:
        return self._reads

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True


class Process:
    """A listener whose loop is turned by hand; each request takes a millisecond of its clock."""

    def __init__(self, **settings: Any) -> None:
        self.clock = SimulatedClock()
        self.config = ServerConfig(turn=Duration(TURN_MS), **settings)
        self.listener = Listener(self, self.config, self.clock)
        self.called: list[Callable[[], None]] = []
        self.listener.turns.start(TURN_MS / 1000, lambda work: self.called.append(work))
        self.served: list[tuple[str, int]] = []
        self.turn_ends: list[int] = []
        self.disconnects: list[str] = []

    def connect(self, name: str, host: str = "10.1.2.3") -> tuple[Connection, Socket]:
        transport = Socket(host)
        connection = Connection(self, self.listener)
        connection.attachment = name
        connection.connection_made(transport)
        return connection, transport

    def on_connect(self, connection: Connection) -> None: ...

    def serve(self, connection: Connection, command: Command) -> bytes | None:
        self.served.append((str(connection.attachment), command.opaque))
        self.clock.advance(REQUEST_MS)
        if command.code == BEGIN:
            connection.begin_work()
            return None
        return encode_response(command)

    def on_turn_end(self) -> None:
        self.turn_ends.append(len(self.served))

    def on_drained(self, connection: Connection) -> None: ...

    def on_disconnect(self, connection: Connection) -> None:
        self.disconnects.append(str(connection.attachment))

    def turn(self) -> list[tuple[str, int]]:
        """One round of the loop; what was served in it."""
        before = len(self.served)
        called, self.called[:] = list(self.called), []
        for work in called:
            work()
        return self.served[before:]


def requests(count: int, *, first: int = 1, code: int = ASK, flag: int = 0, body: bytes = b"") -> bytes:
    return b"".join(encode_frame(code, opaque, flag=flag, body=body) for opaque in range(first, first + count))


def test_one_read_holds_the_loop_for_one_turn_and_its_requests_stay_in_order() -> None:
    process = Process()
    connection, transport = process.connect("a")
    connection.data_received(requests(1_000))
    assert len(process.served) == TURN_MS // REQUEST_MS
    assert not transport.is_reading(), "what is read meanwhile would only be held"
    while process.called:
        assert len(process.turn()) <= TURN_MS // REQUEST_MS
    assert [opaque for _, opaque in process.served] == list(range(1, 1_001))
    assert [reply.opaque for reply in transport.written] == list(range(1, 1_001))
    assert transport.is_reading()
    assert process.turn_ends == list(range(5, 1_001, 5)), "each turn is committed as a group"


def test_a_plain_request_is_served_before_the_next_turn_of_those_who_used_up_theirs() -> None:
    process = Process()
    attackers = [process.connect(f"attacker {number}")[0] for number in range(100)]
    for attacker in attackers:
        attacker.data_received(requests(200))
    assert len(process.served) == TURN_MS // REQUEST_MS, "all that came together share a turn"
    while process.listener.turns.statistics()["in_line"] > 90 and len(process.served) < 1_000:
        process.turn()
    plain, transport = process.connect("plain")
    for opaque in range(20):
        plain.data_received(requests(1, first=opaque))
        between = process.turn() if not transport.written else []
        assert ("plain", opaque) in process.served, between
        assert len(between) <= 3 * TURN_MS // REQUEST_MS
        transport.written.clear()
        process.turn()


def test_a_plain_request_waits_for_a_small_part_of_the_turns_of_those_who_came_with_it() -> None:
    process = Process()
    for number in range(100):
        process.connect(f"attacker {number}")[0].data_received(requests(200))
    plain, transport = process.connect("plain")
    plain.data_received(requests(1))
    before = len(process.served)
    while not transport.written:
        process.turn()
    # One request of each of them, and one long turn each time that the loop looked for more in between.
    assert len(process.served) - before <= 100 + 20 * TURN_MS


def test_frames_that_wait_are_not_decoded_before_their_turn() -> None:
    process = Process()
    connection, _ = process.connect("a")
    data = requests(5_000)
    connection.data_received(data)
    held_bytes = process.listener.statistics()["held_bytes"]
    assert held_bytes < len(data) + 64 * 1_000, "5,000 decoded requests would take some 3 MB"


def test_what_was_read_before_the_peer_closed_is_served_to_the_end() -> None:
    process = Process()
    connection, transport = process.connect("a")
    connection.data_received(requests(12, flag=FLAG_ONEWAY))
    transport.is_closed = True
    connection.connection_lost(None)
    assert process.disconnects == []
    while process.called:
        process.turn()
    assert len(process.served) == 12
    assert process.disconnects == ["a"]
    assert process.listener.statistics()["connections"] == 0
    assert process.listener.statistics()["held_bytes"] == 0


def test_a_client_with_many_requests_in_slices_waits_for_them_and_others_do_not() -> None:
    process = Process()
    connection, transport = process.connect("a")
    connection.data_received(requests(MAX_SLICED_REQUESTS + 3, code=BEGIN))
    for _ in range(3):
        process.turn()
    assert len(process.served) == MAX_SLICED_REQUESTS
    assert not transport.is_reading()
    other, answered = process.connect("b")
    other.data_received(requests(1))
    assert len(answered.written) == 1
    for done in range(1, 4):
        connection.end_work()
        process.turn()
        assert len(process.served) == MAX_SLICED_REQUESTS + 1 + done
    connection.end_work()
    process.turn()
    assert transport.is_reading()


def test_a_blocked_connection_serves_nothing_and_reads_nothing() -> None:
    process = Process()
    connection, transport = process.connect("a")
    connection.set_blocked(True)
    connection.data_received(requests(2))
    process.turn()
    assert process.served == []
    assert not transport.is_reading()
    connection.set_blocked(False)
    process.turn()
    assert len(process.served) == 2
    assert transport.is_reading()


# What all connections hold together


def frame_begun(size: int, opaque: int = 7) -> bytes:
    """All of a request but its last byte."""
    return encode_frame(ASK, opaque, body=bytes(size))[:-1]


def held(process: Process) -> dict[str, int]:
    return process.listener.statistics()


SMALL: dict[str, Any] = {"max_frame": Size(100_000), "max_held": Size(1_000_000)}


def test_unfinished_frames_of_all_connections_stay_within_the_bound() -> None:
    process = Process(**SMALL)
    crowd = [process.connect(f"{number}") for number in range(40)]
    for connection, _ in crowd:
        connection.data_received(frame_begun(90_000))
        assert held(process)["held_bytes"] <= 1_000_000
    refused = [transport for _, transport in crowd if transport.written]
    assert refused
    for transport in refused:
        [reply] = transport.written
        assert (reply.opaque, reply.code) == (7, Response.SYSTEM_BUSY)
        assert "Try again later" in str(reply.remark)
        assert not transport.is_closed
    assert held(process)["let_go"] == len(refused)


def test_a_refused_request_is_passed_over_and_the_next_is_served() -> None:
    process = Process(**SMALL)
    connection, transport = process.connect("a")
    connection.data_received(frame_begun(50_000))
    connection.release()
    assert [reply.code for reply in transport.written] == [Response.SYSTEM_BUSY]
    connection.data_received(b"\0" + requests(1, first=9))
    assert [opaque for _, opaque in process.served] == [9]


def test_who_holds_little_is_not_refused_for_those_who_hold_much() -> None:
    process = Process(**SMALL)
    modest, transport = process.connect("modest")
    whole = encode_frame(ASK, 3, body=bytes(500))
    modest.data_received(whole[:300])
    for number in range(40):
        process.connect(f"{number}")[0].data_received(frame_begun(90_000))
    modest.data_received(whole[300:])
    assert [reply.code for reply in transport.written] == [Response.SUCCESS]


def test_a_header_that_never_ends_costs_its_connection() -> None:
    process = Process(**SMALL)
    connection, transport = process.connect("a")
    connection.data_received(frame_begun(50_000)[:20])
    assert connection.release() == "the server closed the connection"
    assert transport.is_closed
    assert held(process)["held_bytes"] == 0


def test_replies_that_are_not_read_count_and_their_peers_are_cut_off() -> None:
    process = Process(**SMALL)
    lazy = [process.connect(f"{number}") for number in range(15)]
    for connection, transport in lazy:
        transport.keeps = True
        connection.send(encode_frame(0, 1, body=bytes(80_000)))
    assert held(process)["held_bytes"] <= 1_000_000
    assert any(transport.is_closed for _, transport in lazy)
    reader, transport = process.connect("reads")
    reader.send(encode_frame(0, 1, body=bytes(80_000)))
    assert not transport.is_closed


@pytest.mark.parametrize("bound", [0, 3])
def test_connections_from_one_address_are_bounded(bound: int) -> None:
    process = Process(max_connections_per_address=bound)
    crowd = [process.connect(f"{number}", host="10.0.0.1") for number in range(5)]
    assert sum(not transport.is_closed for _, transport in crowd) == (bound or 5)
    assert not process.connect("elsewhere", host="10.0.0.2")[1].is_closed
    assert held(process)["refused_by_address"] == (5 - bound if bound else 0)
    crowd[0][1].is_closed = True
    crowd[0][0].connection_lost(None)
    assert not process.connect("after", host="10.0.0.1")[1].is_closed


def test_half_an_ipv6_address_counts_as_one() -> None:
    assert network_of("2001:db8:1:2:3:4:5:6") == network_of("2001:db8:1:2::1")
    assert network_of("2001:db8:1:3::1") != network_of("2001:db8:1:2::1")
    assert network_of("10.0.0.1") == "10.0.0.1"
