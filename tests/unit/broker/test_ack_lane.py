"""The lane for acknowledgements: the same replies and the same journal as without it."""

from collections.abc import Callable, Iterator
from operator import itemgetter

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import Config, PopConfig
from latermq.errors import NoPermission
from latermq.message.names import POP_TOPIC
from latermq.message.record import decode_record
from latermq.model.topic import Topic
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import FLAG_ONEWAY, FrameReader, encode_frame
from latermq.server.broker.composition import broker_service
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import Endpoint
from latermq.server.remoting.listener import Listener
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import STORE, send
from tests.support.collecting_transport import CollectingTransport
from tests.support.pop_parts import GROUP, Held, pop


class Scene:
    """A broker with 40 messages in two queues, popped by a group, and a connection to it."""

    def __init__(self, *, with_lane: bool, max_unjournalled: int = 100_000) -> None:
        config = Config(store=STORE, pop=PopConfig(max_unjournalled=max_unjournalled))
        self.clock = SimulatedClock()
        self.broker = Broker(config, MemoryDisk(), self.clock, host="127.0.0.1", port=10911, new_store_id="s" * 32)
        self.broker.topics.put(Topic(name="orders", read_queues=2, write_queues=2))
        for number in range(40):
            send(self.broker, b"%d" % number, queue_id=number % 2)
        self.held = sorted(
            [*pop(self.broker), *pop(self.broker)], key=lambda one: (one.place.queue_id, one.place.offset)
        )
        assert len(self.held) == 40
        self.soon: list[Callable[[], None]] = []
        self.turns = 0
        self.service = broker_service(self.broker, later=self.soon.append, between_requests=self._note_turn)
        self.transport = CollectingTransport(("127.0.0.1", 40_000))
        self.connection = Connection(self.service, Listener(self.service, config.server, self.clock))
        self.connection.connection_made(self.transport)
        if not with_lane:
            self.connection.lanes = {}
        self._opaque = 0

    def _note_turn(self) -> None:
        self.turns += 1

    def frame(self, held: Held, *, flag: int = 0, **changes: str) -> bytes:
        place = held.place
        fields = {
            "consumerGroup": GROUP, "topic": place.topic, "queueId": str(place.queue_id), "offset": str(place.offset),
            "extraInfo": f"0 {place.pop_ms} 60000 0 0 broker-a {place.queue_id} {place.offset}",
        }  # fmt: skip
        self._opaque += 1
        return encode_frame(Request.ACK_MESSAGE, self._opaque, flag=flag, fields=fields | changes)

    def receive(self, frames: list[bytes]) -> list[tuple[int, int, dict[str, str]]]:
        """Receive requests in one read, and return opaque, code and fields of the replies."""
        self.connection.data_received(b"".join(frames))
        while self.soon:
            self.soon.pop()()
        replies = FrameReader().feed(self.transport.written)
        return sorted([(reply.opaque, reply.code, reply.text_fields()) for reply in replies], key=itemgetter(0))

    def journal(self) -> Iterator[bytes]:
        store = self.broker.store
        queue = store.queues.find(POP_TOPIC, 0)
        assert queue is not None
        for offset in range(queue.next_offset):
            at, size, _ = queue.entry(offset) or (0, 0, 0)
            yield decode_record(store.log.read(at, size)).body


def requests_of(scene: Scene) -> list[bytes]:
    """Acknowledgements that are done, repeated, unknown, stale, malformed, oneway and of a missing topic."""
    held = scene.held
    times = f"0 {held[9].place.pop_ms} 60000 0 0 broker-a 0"
    return [
        *[scene.frame(one) for one in held[:9]],
        scene.frame(held[0]),
        scene.frame(held[9], offset="900"),
        scene.frame(held[9], extraInfo="0 1 60000 0 0 broker-a 0 9"),
        scene.frame(held[9], extraInfo=times),
        scene.frame(held[9], extraInfo="x y"),
        scene.frame(held[9], extraInfo=""),
        scene.frame(held[9], extraInfo=f"{times} "),
        scene.frame(held[10], flag=FLAG_ONEWAY),
        scene.frame(held[11], topic="missing"),
        scene.frame(held[11], queueId="7"),
        scene.frame(held[11], consumerGroup="others"),
        *[scene.frame(one) for one in held[11:35]],
    ]


def test_replies_and_journal_are_those_without_the_lane() -> None:
    lane, plain = Scene(with_lane=True), Scene(with_lane=False)
    replies = lane.receive(requests_of(lane))
    assert replies == plain.receive(requests_of(plain))
    assert list(lane.journal()) == list(plain.journal())
    assert lane.broker.in_flight.held == plain.broker.in_flight.held == 5
    assert lane.broker.acknowledgements.statistics() == plain.broker.acknowledgements.statistics()
    assert lane.turns < plain.turns


@pytest.mark.parametrize("handle", ["", "x", " x"])
def test_a_first_handle_that_is_malformed_is_refused(handle: str) -> None:
    lane, plain = Scene(with_lane=True), Scene(with_lane=False)
    replies = lane.receive([lane.frame(lane.held[0], extraInfo=handle)])
    assert replies == plain.receive([plain.frame(plain.held[0], extraInfo=handle)])
    assert replies[0][1] == Response.SYSTEM_ERROR


def test_a_first_request_without_names_needs_a_permission_too() -> None:
    scene = Scene(with_lane=True)

    def refuse(_: Connection, endpoint: Endpoint, command: object, content: object) -> None:
        raise NoPermission("nobody")

    scene.service.table.authorize = refuse
    assert scene.receive([scene.frame(scene.held[0], topic="", consumerGroup="")])[0][1] == Response.NO_PERMISSION


def test_the_replies_wait_for_the_journal() -> None:
    scene = Scene(with_lane=True)
    records = len(list(scene.journal()))
    scene.connection.data_received(b"".join([scene.frame(one) for one in scene.held]))
    assert not scene.transport.written
    (settle,) = scene.soon
    settle()
    assert len(FrameReader().feed(scene.transport.written)) == len(scene.held)
    assert len(list(scene.journal())) == records + 1


def test_a_run_beyond_the_limit_of_waiting_replies_is_refused() -> None:
    scene = Scene(with_lane=True, max_unjournalled=5)
    codes = [code for _, code, _ in scene.receive([scene.frame(one) for one in scene.held[:7]])]
    assert codes == [Response.SUCCESS] * 5 + [Response.SYSTEM_BUSY] * 2
    assert scene.broker.in_flight.held == 35


def test_each_group_and_topic_of_a_run_is_authorized() -> None:
    scene = Scene(with_lane=True)
    asked: list[str] = []

    def authorize(_: Connection, endpoint: Endpoint, command: object, content: object) -> None:
        group = content.consumerGroup  # type: ignore[attr-defined]
        asked.append(group)
        if group == "others":
            raise NoPermission("not this group")

    scene.service.table.authorize = authorize
    frames = [scene.frame(one) for one in scene.held[:3]]
    frames.insert(2, scene.frame(scene.held[5], consumerGroup="others"))
    codes = [code for _, code, _ in scene.receive(frames)]
    assert codes == [0, 0, 0, Response.NO_PERMISSION]  # the third of the run, made last
    assert asked == [GROUP, "others", "others", GROUP]
    assert scene.broker.in_flight.held == 37


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_lane_serves_all_clients(address: str) -> None:
    scene = Scene(with_lane=True)
    connection = Connection(scene.service, Listener(scene.service, Config().server, scene.clock))
    connection.connection_made(CollectingTransport((address, 1)))
    assert any(type(lane).__name__ == "AckLane" for lane in connection.lanes.values())
