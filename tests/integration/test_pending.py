"""Timers that wait, over a real server with a clock in the test's hand: SDK and command line."""

import datetime
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from latermq.client import MessageQueue, OutgoingMessage, PendingTimer, Verdict, blocking
from latermq.errors import IllegalMessage, IllegalOperation
from latermq.message.recall_handle import decode_recall_handle, encode_recall_handle
from latermq.message.record import Message
from tests.integration.command_line import Cli
from tests.interop.waiting import wait_until
from tests.support.fifo_clock import FifoClock
from tests.support.serving import Server, serving

SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000
ARRIVAL_TIMEOUT_S = 20.0


class Scene:
    """One server whose time stands still until the test lets it pass, and one client of each kind."""

    def __init__(self, server: Server, clock: FifoClock, clients: ExitStack) -> None:
        self.server = server
        self.cli = Cli(server)
        self.producer = clients.enter_context(blocking.Producer(server.namesrv))
        self.admin = clients.enter_context(blocking.Admin(server.namesrv))
        self._consumer = clients.enter_context(blocking.PullConsumer(server.namesrv, group="auditors"))
        self._clock = clock
        self._topics = 0
        self.now_ms = round(time.time() * 1000) + MINUTE_MS
        self.pass_ms(0)

    def pass_ms(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self._clock.advance_to(self.now_ms)

    def new_topic(self) -> str:
        """A topic of one queue that no other test knows."""
        self._topics += 1
        self.admin.create_topic(f"timers-{self._topics}", queues=1)
        return f"timers-{self._topics}"

    def messages(self, topic: str) -> list[Message]:
        queue = MessageQueue(topic, "broker-a", 0)
        found: list[Message] = []
        while len(found) < self._consumer.max_offset(queue):
            found += self._consumer.pull(queue, len(found), 100).messages
        return found

    def wait_for(self, topic: str, count: int) -> list[Message]:
        return wait_until(
            lambda: found if len(found := self.messages(topic)) >= count else None,
            ARRIVAL_TIMEOUT_S,
            f"{count} messages in {topic}",
        )

    def wait_listed(self, topic: str, count: int) -> list[PendingTimer]:
        """The timers of a topic; what was stored a moment ago may be listed a moment later."""
        return wait_until(
            lambda: found if len(found := self.admin.pending_timers(topic)) == count else None,
            ARRIVAL_TIMEOUT_S,
            f"{count} timers for {topic}",
        )

    def arrived_by(self, topic: str, by_ms: int) -> list[bytes]:
        """What has arrived once so much time has passed: a last timer, due then, shows that all before are through."""
        self.producer.send(OutgoingMessage(topic, b"last", delay_ms=by_ms))
        self.pass_ms(by_ms)
        wait_until(
            lambda: b"last" in [message.body for message in self.messages(topic)], ARRIVAL_TIMEOUT_S, "the last timer"
        )
        return [message.body for message in self.messages(topic) if message.body != b"last"]


@pytest.fixture(scope="module", params=["wheel", "rocksdb"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder: Path = tmp_path_factory.mktemp("pending")
    options = ("--set", "store.segment=64MiB", "--set", f"timer.engine={request.param}")
    with (
        FifoClock(folder / "clock") as clock,
        serving(folder / "data", *options, *clock.settings) as server,
        ExitStack() as clients,
    ):
        yield Scene(server, clock, clients)


def moment(ms: int) -> str:
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).isoformat(timespec="milliseconds")


# Scheduling


def test_a_timer_arrives_at_its_millisecond_and_its_send_returns_a_handle(scene: Scene) -> None:
    topic = scene.new_topic()
    due_ms = scene.now_ms + 12_345
    by_delay = scene.producer.send(OutgoingMessage(topic, b"by delay", delay_ms=12_345))
    by_moment = scene.producer.send(OutgoingMessage(topic, b"by moment", deliver_at_ms=due_ms))
    handle = decode_recall_handle(by_delay.recall_handle)
    assert (handle.topic, handle.broker_name, handle.unique_key) == (topic, "broker-a", by_delay.message_id)
    assert decode_recall_handle(by_moment.recall_handle).timestamp_ms == handle.timestamp_ms <= due_ms
    scene.pass_ms(12_344)
    assert scene.messages(topic) == []
    scene.pass_ms(1)
    arrived = scene.wait_for(topic, 2)
    assert {message.body for message in arrived} == {b"by delay", b"by moment"}
    assert all(message.store_timestamp_ms >= due_ms for message in arrived)
    assert {message.properties["LMQ_DUE_MS"] for message in arrived} == {str(due_ms)}


def test_what_is_due_already_arrives_at_once_and_has_no_handle(scene: Scene) -> None:
    topic = scene.new_topic()
    now = scene.producer.send(OutgoingMessage(topic, b"now"))
    past = scene.producer.send(OutgoingMessage(topic, b"past", deliver_at_ms=scene.now_ms))
    level = scene.producer.send(OutgoingMessage(topic, b"level", delay_level=1))
    assert [sent.recall_handle for sent in (now, past, level)] == ["", "", ""]
    assert [message.body for message in scene.messages(topic)] == [b"now", b"past"]


def test_a_time_too_far_ahead_is_refused(scene: Scene) -> None:
    with pytest.raises(IllegalMessage, match=r"timer\.max_delay"):
        scene.producer.send(OutgoingMessage(scene.new_topic(), b"x", delay_ms=3651 * DAY_MS))


# Cancelling


def test_a_recalled_timer_is_never_delivered(scene: Scene) -> None:
    topic = scene.new_topic()
    kept = scene.producer.send(OutgoingMessage(topic, b"kept", delay_ms=5_000))
    sent = scene.producer.send(OutgoingMessage(topic, b"recalled", delay_ms=5_000))
    assert scene.producer.recall(topic, sent.recall_handle) == sent.message_id
    assert scene.producer.recall(topic, sent.recall_handle) == sent.message_id  # asked again, the answer is the same
    assert scene.admin.timer_status(topic, unique_key=sent.message_id).verdict == Verdict.CANCELLED
    assert scene.admin.timer_status(topic, handle=kept.recall_handle).verdict == Verdict.PENDING
    assert scene.arrived_by(topic, 10_000) == [b"kept"]
    assert scene.producer.recall(topic, sent.recall_handle) == sent.message_id


def test_a_recall_that_comes_too_late_or_names_nothing_says_so(scene: Scene) -> None:
    topic = scene.new_topic()
    sent = scene.producer.send(OutgoingMessage(topic, b"x", delay_ms=1_000))
    scene.pass_ms(1_000)
    scene.wait_for(topic, 1)
    with pytest.raises(IllegalOperation, match="already delivered"):
        scene.producer.recall(topic, sent.recall_handle)
    unknown = encode_recall_handle(topic, "broker-a", scene.now_ms + HOUR_MS, "NOBODY")
    with pytest.raises(IllegalOperation, match="not found"):
        scene.producer.recall(topic, unknown)


def test_a_cancel_takes_one_name_of_one_topic(scene: Scene) -> None:
    topic, other = scene.new_topic(), scene.new_topic()
    first, second = (
        OutgoingMessage(topic, b"%d" % number, delay_ms=5_000, properties={"UNIQ_KEY": f"{topic}-{number}"})
        for number in range(2)
    )
    scene.producer.send(first)
    scene.producer.send(second)
    scene.producer.send(OutgoingMessage(other, b"other", delay_ms=5_000, properties={"UNIQ_KEY": f"{topic}-0"}))
    [missed] = scene.admin.cancel_timer(other, unique_key=f"{topic}-1")
    assert missed.verdict == Verdict.NOT_FOUND
    [cancelled] = scene.admin.cancel_timer(topic, unique_key=f"{topic}-0")
    assert (cancelled.verdict, cancelled.due_ms, cancelled.timers) == (Verdict.CANCELLED, scene.now_ms + 5_000, 1)
    assert scene.arrived_by(topic, 6_000) == [b"1"]
    assert [message.body for message in scene.wait_for(other, 1)] == [b"other"]
    [delivered] = scene.admin.cancel_timer(topic, unique_key=f"{topic}-1")
    assert delivered.verdict == Verdict.DELIVERED


def test_a_cancel_by_message_key_takes_every_timer_that_has_it(scene: Scene) -> None:
    topic = scene.new_topic()
    sent = [
        scene.producer.send(OutgoingMessage(topic, b"%d" % number, keys=keys, delay_ms=(number + 1) * 1_000))
        for number, keys in enumerate((["order-1"], ["order-1", "eu"], ["order-2"]))
    ]
    scene.pass_ms(1_000)
    scene.wait_for(topic, 1)
    outcomes = scene.admin.cancel_timer(topic, key="order-1")
    assert {outcome.unique_key: outcome.verdict for outcome in outcomes} == {
        sent[0].message_id: Verdict.DELIVERED,
        sent[1].message_id: Verdict.CANCELLED,
    }
    assert scene.admin.cancel_timer(topic, key="order-3") == []
    assert scene.arrived_by(topic, 5_000) == [b"0", b"2"]


# Moving


def test_a_timer_can_be_moved_both_ways_and_arrives_once(scene: Scene) -> None:
    topic = scene.new_topic()
    later = scene.producer.send(OutgoingMessage(topic, b"later", tag="t", keys=["k1"], delay_ms=2_000))
    sooner = scene.producer.send(OutgoingMessage(topic, b"sooner", delay_ms=40 * DAY_MS))
    [moved] = scene.admin.move_timer(topic, key="k1", delay_ms=10_000)
    due_ms = scene.now_ms + 10_000
    assert (moved.verdict, moved.unique_key, moved.due_ms) == (Verdict.MOVED, later.message_id, due_ms)
    [moved] = scene.admin.move_timer(topic, handle=sooner.recall_handle, due_ms=scene.now_ms + 1_000)
    assert moved.verdict == Verdict.MOVED
    scene.pass_ms(3_000)
    assert [message.body for message in scene.wait_for(topic, 1)] == [b"sooner"]
    assert scene.arrived_by(topic, 8_000) == [b"sooner", b"later"]
    [message] = [message for message in scene.messages(topic) if message.body == b"later"]
    assert message.store_timestamp_ms >= due_ms
    assert (message.properties["TAGS"], message.properties["KEYS"]) == ("t", "k1")
    assert message.properties["UNIQ_KEY"] == later.message_id


def test_a_handle_stays_valid_when_its_timer_is_moved(scene: Scene) -> None:
    topic = scene.new_topic()
    sent = scene.producer.send(OutgoingMessage(topic, b"x", delay_ms=2_000))
    scene.admin.move_timer(topic, unique_key=sent.message_id, delay_ms=60_000)
    scene.pass_ms(5_000)
    assert scene.producer.recall(topic, sent.recall_handle) == sent.message_id
    assert scene.arrived_by(topic, 90_000) == []


def test_what_is_not_pending_is_not_moved(scene: Scene) -> None:
    topic = scene.new_topic()
    sent = scene.producer.send(OutgoingMessage(topic, b"cancelled", delay_ms=2_000))
    scene.producer.recall(topic, sent.recall_handle)
    [outcome] = scene.admin.move_timer(topic, handle=sent.recall_handle, delay_ms=1)
    assert outcome.verdict == Verdict.CANCELLED
    [outcome] = scene.admin.move_timer(topic, unique_key="NOBODY", delay_ms=1)
    assert outcome.verdict == Verdict.NOT_FOUND
    with pytest.raises(IllegalMessage, match=r"timer\.max_delay"):
        scene.admin.move_timer(topic, handle=sent.recall_handle, delay_ms=3651 * DAY_MS)
    assert scene.arrived_by(topic, 5_000) == []


# Browsing


def test_what_waits_is_listed_in_due_order_and_narrowed(scene: Scene) -> None:
    topic = scene.new_topic()
    delays_ms = [5 * MINUTE_MS, 1 * MINUTE_MS, 3 * MINUTE_MS + 1, 40 * DAY_MS, 3 * MINUTE_MS]
    for number, delay_ms in enumerate(delays_ms):
        keys = ["even"] if number % 2 == 0 else ["odd"]
        scene.producer.send(OutgoingMessage(topic, b"body %d" % number, "tag", keys, delay_ms=delay_ms))
    start_ms = scene.now_ms
    listed = scene.wait_listed(topic, 5)
    assert [timer.due_ms - start_ms for timer in listed] == sorted(delays_ms)
    first = listed[0]
    assert (first.topic, first.tags, first.keys, first.sample) == (topic, "tag", "odd", "body 1")
    assert (first.queue_id, first.scheduled_ms, first.body_bytes) == (0, start_ms, 6)
    from_ms, until_ms = start_ms + 3 * MINUTE_MS, start_ms + 5 * MINUTE_MS
    assert scene.admin.pending_timers(topic, from_ms=from_ms, until_ms=until_ms) == listed[1:3]
    assert scene.admin.pending_timers(topic, limit=2) == listed[:2]
    # The position of a timer belongs to its listing: by key in due order, otherwise in the order of the engine.
    by_key = scene.admin.pending_timers(topic, key="odd")
    assert [replace(timer, position="") for timer in by_key] == [
        replace(timer, position="") for timer in (listed[0], listed[4])
    ]
    assert {timer.unique_key for timer in listed} <= {
        timer.unique_key for timer in scene.admin.pending_timers(limit=1000)
    }
    assert scene.admin.count_timers(topic) == 5
    assert scene.admin.count_timers(topic, from_ms=from_ms, until_ms=until_ms) == 2
    assert scene.admin.count_timers(topic, key="even") == 3
    scene.admin.cancel_timer(topic, key="even")
    assert scene.admin.pending_timers(topic) == [listed[0], listed[4]]
    assert scene.admin.count_timers(topic) == 2
    scene.admin.cancel_timer(topic, key="odd")


def test_the_density_counts_by_second_minute_and_hour(scene: Scene) -> None:
    topic = scene.new_topic()
    delays_ms = [20 * MINUTE_MS, 20 * MINUTE_MS + 1_000, 90 * MINUTE_MS, 25 * HOUR_MS + 30 * MINUTE_MS]
    for delay_ms in delays_ms:
        scene.producer.send(OutgoingMessage(topic, b"x", keys=["dense"], delay_ms=delay_ms))

    def counts() -> list[int]:
        """What is due in the second, minute and hour of each delay."""
        density = scene.admin.timer_density()
        assert (len(density.seconds), len(density.minutes), len(density.hours)) == (3600, 1380, 24)
        seconds = [(scene.now_ms + delay_ms - 1 - density.start_ms) // SECOND_MS for delay_ms in delays_ms]
        return [
            density.seconds[seconds[0]],
            density.seconds[seconds[1]],
            density.minutes[(seconds[2] - 3_600) // 60],
            density.hours[(seconds[3] - 86_400) // 3_600],
        ]

    # What was stored a moment ago is counted a moment later.
    wait_until(lambda: counts() == [1, 1, 1, 1], ARRIVAL_TIMEOUT_S, "all are counted")
    scene.admin.cancel_timer(topic, key="dense")
    wait_until(lambda: counts() == [0, 0, 0, 0], ARRIVAL_TIMEOUT_S, "none is counted")


# The command line


def test_the_command_line_schedules_cancels_and_says_what_it_hit(scene: Scene) -> None:
    topic = scene.new_topic()
    (sent,) = scene.cli.rows("send", topic, "unpaid", "--key", "4711", "--delay", "40d")
    assert decode_recall_handle(sent["recall_handle"]).unique_key == sent["message_id"]
    assert "recall handle" in scene.cli.text("send", topic, "unpaid", "--at", moment(scene.now_ms + HOUR_MS))
    (level,) = scene.cli.rows("send", topic, "level", "--level", "18")
    assert "recall_handle" not in level
    (outcome,) = scene.cli.rows("cancel", topic, "--key", "4711")
    assert (outcome["verdict"], outcome["message_id"]) == ("cancelled", sent["message_id"])
    assert "cancelled" in scene.cli.text("cancel", topic, "--handle", sent["recall_handle"])
    assert scene.cli.error("cancel", topic, "--key", "0815") == (
        f"error: topic {topic} has no timer with key 0815\n"
        "hint: Check topic and key; `latermq pending TOPIC` lists pending timers\n"
    )
    error = scene.cli.error("cancel", topic, "--unique-key", "NOBODY")
    assert error.startswith("error: nothing was cancelled: not found\n")
    error = scene.cli.error("move", topic, "--handle", sent["recall_handle"], "--delay", "1s")
    assert error.startswith("error: nothing was moved: cancelled\n")
    assert scene.cli.error("cancel", topic, "--handle", "nonsense").startswith("error: recall handle is invalid\n")


def test_the_command_line_moves_and_lists(scene: Scene) -> None:
    topic = scene.new_topic()
    (sent,) = scene.cli.rows("send", topic, '{"order": 4711}', "--key", "4711", "--tag", "unpaid", "--delay", "15m")
    (outcome,) = scene.cli.rows(
        "move", topic, "--unique-key", sent["message_id"], "--at", moment(scene.now_ms + HOUR_MS)
    )
    assert (outcome["verdict"], outcome["due_ms"]) == ("moved", scene.now_ms + HOUR_MS)
    scene.wait_listed(topic, 1)
    (row,) = scene.cli.rows("pending", topic)
    assert (row["due_ms"], row["message_id"], row["keys"]) == (scene.now_ms + HOUR_MS, sent["message_id"], ["4711"])
    assert row["body"] == '{"order": 4711}'
    assert "unpaid" in scene.cli.text("pending", topic, "--key", "4711")
    until = ("--until", moment(scene.now_ms + HOUR_MS))
    assert scene.cli.run("pending", topic, *until) == ("", "no pending timers\n")
    assert scene.cli.rows("pending", topic, "--from", moment(scene.now_ms + HOUR_MS), "--count") == [{"timers": 1}]
    assert scene.cli.text("pending", topic, "--count") == "timers  1\n"
    assert sum(span["timers"] for span in scene.cli.rows("pending", "--density")) >= 1
    assert "busiest second" in scene.cli.text("pending", "--density")
    scene.cli.run("send", topic, "x", "--delay", "1d", "--count", "3")
    scene.wait_listed(topic, 4)
    text, note = scene.cli.run("pending", topic, "--limit", "2")
    assert len([line for line in text.splitlines() if topic in line]) == 2
    assert note.startswith("list truncated to 2 timers")
