"""What members of groups are told unasked: once for many changes, in slices, and only as far as they read."""

from collections.abc import Callable

import pytest

from latermq.broker.notifications import ROUND_S, SLICE_BYTES, SLICE_SENDS, Notice, Notices
from latermq.clock import SimulatedClock
from latermq.config import BrokerConfig
from latermq.errors import Busy
from latermq.group.members import Members
from latermq.protocol.remoting.clients import ConsumerData, HeartbeatData, read_heartbeat
from latermq.protocol.remoting.codes import Request
from latermq.server.handlers.notices import notify_group_changed
from tests.support.admins import FakeConnection


class Scene:
    """Members of groups, and notices whose rounds are made by `turn`."""

    def __init__(self, max_bytes: int = 1 << 20) -> None:
        self.members = Members(BrokerConfig())
        self.notices = Notices(self.members, max_bytes, self._call_later)
        self.works: list[tuple[float, Callable[[], None]]] = []

    def _call_later(self, delay_s: float, work: Callable[[], None]) -> None:
        self.works.append((delay_s, work))

    def turn(self) -> list[float]:
        """One turn of the loop; when each piece of its work had been asked to come."""
        works, self.works = self.works, []
        for _, work in works:
            work()
        return [delay_s for delay_s, _ in works]

    def join(self, client_id: str, group: str = "readers", connection: FakeConnection | None = None) -> FakeConnection:
        channel = connection or FakeConnection()
        beat = HeartbeatData(clientID=client_id, consumerDataSet=[ConsumerData(groupName=group)])
        self.members.heartbeat(channel, read_heartbeat(beat), language="JAVA", version=1, clock=SimulatedClock())
        return channel

    def held(self) -> int:
        return self.notices.statistics()["notices_held"]

    def tell(self, number: int, *about: object, size_bytes: int = 0, group: str = "readers") -> None:
        """A notice that is known by its number."""
        frame = b"%d " % number + b"x" * size_bytes
        self.notices.send(Notice(about, group, frame))


class Reader(FakeConnection):
    """Keeps frames as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []

    def send(self, frame: bytes) -> None:
        self.numbers.append(int(frame.split()[0]))


def test_many_changes_of_a_group_in_one_turn_are_one_notification() -> None:
    scene = Scene()
    members = [scene.join(f"c{number}") for number in range(3)]
    for _ in range(100):
        notify_group_changed(scene.notices, "readers")
    scene.turn()
    for member in members:
        [told] = member.sent
        assert (told.code, told.is_oneway) == (Request.NOTIFY_CONSUMER_IDS_CHANGED, True)
        assert told.text_fields() == {"consumerGroup": "readers"}


def test_the_first_change_is_told_at_once_and_the_next_ones_a_round_later() -> None:
    scene = Scene()
    member = scene.join("c1")
    notify_group_changed(scene.notices, "readers")
    assert scene.turn() == [0]
    assert len(member.sent) == 1
    notify_group_changed(scene.notices, "readers")
    notify_group_changed(scene.notices, "readers")
    assert scene.turn() == [ROUND_S]
    assert len(member.sent) == 2
    assert scene.turn() == [ROUND_S]
    assert scene.works == []  # nothing goes on while nothing changes
    notify_group_changed(scene.notices, "readers")
    assert scene.turn() == [0]
    assert len(member.sent) == 3


def test_clients_that_share_a_connection_are_told_once() -> None:
    scene = Scene()
    shared = scene.join("c1")
    scene.join("c2", connection=shared)
    notify_group_changed(scene.notices, "readers")
    scene.turn()
    assert len(shared.sent) == 1


def test_a_large_group_is_told_in_slices() -> None:
    scene = Scene()
    members = [scene.join(f"c{number}") for number in range(2 * SLICE_SENDS + 1)]
    notify_group_changed(scene.notices, "readers")
    for expected in (SLICE_SENDS, 2 * SLICE_SENDS, 2 * SLICE_SENDS + 1):
        assert scene.turn() == [0]
        assert sum(len(member.sent) for member in members) == expected


def test_a_long_notice_is_told_to_a_few_at_a_time() -> None:
    scene = Scene(max_bytes=100 << 20)
    members = [Reader() for _ in range(10)]
    for number, member in enumerate(members):
        scene.join(f"c{number}", connection=member)
    scene.tell(1, "offsets", size_bytes=SLICE_BYTES // 3)
    told = []
    while (turn := scene.turn()) == [0]:
        told.append(sum(len(member.numbers) for member in members))
    assert turn == [ROUND_S]
    assert told == [3, 6, 9, 10]


def test_who_is_behind_with_reading_is_told_the_latest_when_it_has_caught_up() -> None:
    scene = Scene()
    behind = Reader()
    scene.join("c1", connection=behind)
    behind.is_paused = True
    for number in range(1, 6):
        scene.tell(number, "offsets")
        scene.turn()
    scene.tell(6, "members")
    scene.turn()
    assert behind.numbers == []
    assert scene.held() == 2
    behind.is_paused = False
    scene.notices.on_drained(behind)
    assert behind.numbers == [5, 6]
    assert scene.held() == 0
    assert scene.notices.statistics()["notices_held_bytes"] == 0


def test_what_came_in_between_is_not_told_behind_what_replaces_it() -> None:
    scene = Scene()
    prompt, behind = Reader(), Reader()
    scene.join("c1", connection=prompt)
    scene.join("c2", connection=behind)
    behind.is_paused = True
    scene.tell(1, "all queues")
    scene.tell(2, "queue 5")
    scene.tell(3, "all queues")
    scene.turn()
    behind.is_paused = False
    scene.notices.on_drained(behind)
    assert prompt.numbers == behind.numbers == [2, 3]


def test_a_notice_is_kept_once_for_all_who_are_behind() -> None:
    scene = Scene()
    for number in range(50):
        scene.join(f"c{number}").is_paused = True
    scene.tell(1, "offsets", size_bytes=100_000)
    scene.turn()
    assert scene.held() == 50
    assert scene.notices.statistics()["notices_held_bytes"] < 101_000


def test_who_holds_the_oldest_is_cut_off_when_too_much_is_held() -> None:
    scene = Scene(max_bytes=100_000)
    first, second, reader = (scene.join(f"c{number}", f"g{number}", Reader()) for number in range(3))
    first.is_paused = second.is_paused = True
    for number, group in enumerate(("g0", "g1", "g2")):
        scene.tell(number, group, size_bytes=60_000, group=group)
        scene.turn()
    assert (first.is_closing, second.is_closing, reader.is_closing) == (True, False, False)
    assert scene.notices.statistics()["notices_cut_off"] == 1
    assert scene.held() == 1
    scene.notices.on_disconnect(second)
    assert scene.notices.statistics()["notices_held_bytes"] == 0


def test_more_is_refused_while_too_much_is_about_to_be_told() -> None:
    scene = Scene(max_bytes=100_000)
    scene.join("c1", connection=Reader())
    scene.tell(1, "offsets", size_bytes=60_000)
    scene.tell(2, "offsets", size_bytes=60_000)  # in place of the first
    scene.notices.check_room()
    scene.tell(3, "other offsets", size_bytes=60_000)
    with pytest.raises(Busy):
        scene.notices.check_room()
    scene.turn()
    scene.notices.check_room()
