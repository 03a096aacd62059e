"""A broker's metrics on a clock turned by hand: what is pending, what became of the rest, and how late it was."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from latermq.broker.metrics.broker_metrics import SNAPSHOT_BOUNDS_S, SNAPSHOT_EVERY_S
from latermq.broker.metrics.exposition import Family, Kind
from latermq.broker.metrics.metric_families import COPIED_ACCESS_FAMILIES, FAMILIES
from latermq.clock import SimulatedClock
from latermq.config import TimerConfig
from latermq.errors import FlowControl, StoreError
from latermq.http import metrics as console_metrics
from latermq.message.batch import BatchMember, encode_batch
from latermq.message.properties import REAL_TOPIC, encode_properties
from latermq.pipeline.driver import driver_metrics
from latermq.server.broker.composition import broker_metrics
from latermq.server.namesrv.name_server_metrics import OWN_FAMILIES
from latermq.server.proxy import proxy_metrics
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import HOST, bodies, open_broker, pass_time, run_until_quiet, send
from tests.support.metrics_scrape import ScrapedMetrics

PAGE = Path(__file__).resolve().parents[3] / "docs" / "operations.md"
DAY_MS = 86_400_000
# | `name` | kind | `label` | meaning |, or with two labels
_ROW = re.compile(r"^\| `((?:rocketmq|latermq)_\w+)` \| (\w+) \| (.*?) ?\| .+ \|$", re.MULTILINE)


class Watched:
    """A broker with one engine and its metrics; it can die and come back."""

    def __init__(self, engine: str, *, slot_limit: int = 0) -> None:
        self.disk = MemoryDisk()
        self.clock = SimulatedClock()
        self.config = TimerConfig(engine=engine, slot_limit=slot_limit)  # type: ignore[arg-type]
        self._open()

    def _open(self) -> None:
        self.broker = open_broker(self.disk, self.clock, self.config)
        self.metrics = broker_metrics(
            self.broker, lambda: {"connections": 3, "closed_idle": 0, "refused_requests_1": 0}
        )

    def restart(self, *, clean: bool) -> None:
        if clean:
            self.broker.close()
        else:
            self.broker.timers.engine.close()
        self.disk = self.disk.after_process_crash()
        self._open()

    def schedule(self, delay_ms: int, name: str, topic: str = "orders") -> None:
        properties = {"TIMER_DELAY_MS": str(delay_ms), "UNIQ_KEY": name}
        self.broker.writer.send(topic, 0, name.encode(), encode_properties(properties), 1, HOST)

    def flush(self) -> None:
        self.broker.store.flush()
        run_until_quiet(self.broker)

    def checkpoint(self) -> None:
        self.flush()
        self.broker.store.save(self.broker.store.plan_checkpoint())

    def pass_time(self, by_ms: int) -> None:
        pass_time(self.broker, self.clock, by_ms)

    def skip(self, by_ms: int) -> None:
        """Let much time pass, looking at the clock every ten minutes only."""
        until_ms = self.clock.now_ms() + by_ms
        while self.clock.now_ms() < until_ms:
            self.clock.advance(min(600_000, until_ms - self.clock.now_ms()))
            self.flush()
            run_until_quiet(self.broker)

    def figures(self) -> ScrapedMetrics:
        return ScrapedMetrics(generate_latest(self.metrics.read()))

    def value(self, name: str, **labels: str) -> float:
        return self.figures().value(name, **labels)

    def timing(self) -> dict[str, float]:
        """What the metric says is pending, which is just what waits in truth."""
        told = self.figures().values("rocketmq_timing_messages", "topic")
        assert all(count >= 0 for count in told.values())
        pending = {topic: count for topic, count in told.items() if count}
        assert pending == self._waiting()
        return pending

    def _waiting(self) -> dict[str, int]:
        """What is pending, told by every single record that waits."""
        found: Counter[str] = Counter()
        for units in self.broker.timers.slots.waiting_from(0, 0):
            for offset in units.physical_offsets.tolist():
                message = self.broker.store.reader.read_message(offset)
                assert message is not None
                found[message.properties[REAL_TOPIC]] += 1
        return dict(found)


@pytest.fixture(params=["wheel", "rocksdb"])
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def watched(engine: str) -> Iterator[Watched]:
    watched = Watched(engine)
    yield watched
    watched.disk.before_step = lambda operation, path: None
    watched.broker.timers.engine.close()


# The text


def test_every_family_is_told_with_its_kind_and_its_labels(watched: Watched) -> None:
    watched.schedule(1_000, "a")
    watched.pass_time(1_000)
    watched.broker.offsets.put("readers", "orders", 0, 0)
    watched.broker.group_lags.sample(0.0)
    watched.broker.group_lags.sample(1.0)
    figures = watched.figures()
    assert figures.kinds == {family.name: family.kind.value for family in FAMILIES}
    node = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
    for family in FAMILIES:
        name = family.name + ("_count" if family.kind == Kind.HISTOGRAM else "")
        expected = node | ({"storage_type": "local", "storage_medium": "disk"} if family.of_storage else {})
        found = [sample.labels for sample in figures.samples if sample.name == name]
        assert found, name
        for labels in found:
            assert {**labels} == expected | {label: labels[label] for label in labels_of(family)}


def labels_of(family: Family) -> tuple[str, ...]:
    label = family.label
    return label if isinstance(label, tuple) else (label,) if label else ()


def test_the_page_lists_every_metric_with_its_kind_and_label() -> None:
    copied = [family for family in COPIED_ACCESS_FAMILIES if family not in FAMILIES]
    families = (*FAMILIES, *OWN_FAMILIES, *copied, *proxy_metrics.OWN_FAMILIES, *copied)
    rows = [
        (family.name, family.kind.value, ", ".join(f"`{label}`" for label in labels_of(family))) for family in families
    ]
    others = (*driver_metrics.FAMILIES, *console_metrics.FIGURES)
    rows += [(one.name, one.kind, f"`{one.label}`" if one.label else "") for one in others]
    assert _ROW.findall(PAGE.read_text()) == rows


def test_a_broker_that_has_done_nothing_tells_zeros(watched: Watched) -> None:
    figures = watched.figures()
    for family in FAMILIES:
        if family.kind == Kind.COUNTER and not family.label:
            assert figures.value(family.name) == 0
    assert figures.values("rocketmq_timing_messages", "topic") == {}
    assert figures.value("rocketmq_timer_enqueue_latency") == figures.value("rocketmq_timer_dequeue_latency") == 0
    assert figures.value("latermq_connections") == 3


# Pending


@pytest.mark.parametrize("clean", [False, True])
def test_what_is_pending_is_right_through_every_change_and_restart(watched: Watched, clean: bool) -> None:
    for number in range(4):
        watched.schedule(60_000, f"o{number}")
    watched.schedule(60_000, "b0", topic="bills")
    assert watched.timing() == {"orders": 4, "bills": 1}
    watched.checkpoint()
    watched.schedule(70_000, "twin")
    watched.schedule(80_000, "twin")
    watched.restart(clean=clean)
    assert watched.timing() == {"orders": 6, "bills": 1}
    watched.broker.pending.cancel("orders", "twin")
    assert watched.timing() == {"orders": 4, "bills": 1}
    watched.broker.pending.move("orders", "o1", watched.clock.now_ms() + 90_000)
    watched.broker.pending.cancel("bills", "b0")
    watched.restart(clean=clean)
    assert watched.timing() == {"orders": 4}
    watched.checkpoint()
    watched.restart(clean=clean)
    assert watched.timing() == {"orders": 4}
    watched.pass_time(60_000)
    assert watched.timing() == {"orders": 1}
    watched.restart(clean=clean)
    assert watched.timing() == {"orders": 1}
    watched.pass_time(30_000)
    assert watched.timing() == {}
    watched.restart(clean=clean)
    assert watched.timing() == {}
    assert bodies(watched.broker) == [b"o0", b"o2", b"o3", b"o1"]


def test_the_timers_of_a_batch_are_pending_each(watched: Watched) -> None:
    given = [{"TIMER_DELAY_MS": "5000"}, {"DELAY": "1"}, {}, {"TIMER_DELAY_MS": "9000"}]
    members = (BatchMember(0, b"x", encode_properties(properties).encode()) for properties in given)
    watched.broker.writer.send_batch("orders", 0, encode_batch(members), 1, HOST)
    assert watched.timing() == {"orders": 2}
    watched.restart(clean=False)
    assert watched.timing() == {"orders": 2}


@pytest.mark.parametrize("clean", [False, True])
def test_a_timer_that_rolls_stays_pending_once(watched: Watched, clean: bool) -> None:
    watched.schedule(5 * DAY_MS, "far")
    watched.schedule(5 * DAY_MS, "cancelled")
    watched.checkpoint()
    watched.skip(2 * DAY_MS)
    assert watched.value("latermq_timers_renewed_total") == 2
    assert watched.timing() == {"orders": 2}
    watched.broker.pending.cancel("orders", "cancelled")
    watched.restart(clean=clean)
    assert watched.timing() == {"orders": 1}
    watched.skip(3 * DAY_MS)
    assert watched.timing() == {}
    assert watched.value("latermq_early_deliveries_total") == 0


def test_a_timer_without_a_topic_is_a_dead_letter_and_no_longer_pending(watched: Watched) -> None:
    watched.schedule(2_000, "orphan", topic="doomed")
    for step in watched.broker.topic_admin.delete("doomed"):
        step()
    assert watched.timing() == {"doomed": 1}
    watched.pass_time(2_000)
    figures = watched.figures()
    assert figures.value("latermq_dead_letters_total") == 1
    assert figures.value("latermq_deliveries_total", kind="timer") == 0
    assert "doomed" not in figures.values("rocketmq_timing_messages", "topic"), "a topic that is gone"
    watched.restart(clean=False)
    assert watched.timing() == {}


# What became of the rest


def test_every_timer_that_began_to_wait_is_told_apart_by_what_became_of_it(watched: Watched) -> None:
    for number in range(10):
        watched.schedule(3_000, f"o{number}")
    watched.schedule(3_000, "b0", topic="bills")
    watched.broker.pending.cancel("orders", "o1")
    send(watched.broker, b"", TIMER_DEL_UNIQKEY="orders+o2", TIMER_DELAY_MS="3000")
    watched.broker.pending.move("orders", "o3", watched.clock.now_ms() + 100_000)
    watched.pass_time(3_000)
    figures = watched.figures()
    assert figures.values("rocketmq_timer_enqueue_total", "topic") == {"orders": 11, "bills": 1}
    assert figures.values("rocketmq_timer_dequeue_total", "topic") == {"orders": 7, "bills": 1}
    assert figures.value("latermq_timers_cancelled_total") == 2
    assert figures.value("latermq_timers_moved_total") == 1
    assert figures.value("latermq_deliveries_total", kind="timer") == 8
    assert watched.timing() == {"orders": 1}


@pytest.mark.parametrize("clean", [False, True])
def test_counters_begin_with_0_at_every_start(watched: Watched, clean: bool) -> None:
    watched.schedule(50_000, "waits")
    watched.schedule(50_000, "cancelled")
    watched.schedule(1_000, "goes")
    watched.pass_time(1_000)
    watched.broker.pending.cancel("orders", "cancelled")
    watched.restart(clean=clean)
    watched.flush()
    figures = watched.figures()
    for family in FAMILIES:
        if family.kind == Kind.COUNTER:
            told = [sample.value for sample in figures.samples if sample.name == family.name]
            assert not any(told), family.name
    assert figures.value("rocketmq_delay_message_latency_count") == 0
    watched.schedule(60_000, "new")
    assert watched.figures().values("rocketmq_timer_enqueue_total", "topic") == {"orders": 1}


def test_what_flow_control_refuses_is_counted(engine: str) -> None:
    watched = Watched(engine, slot_limit=5)
    refused = 0
    for number in range(20):
        try:
            watched.schedule(20_000, f"t{number}")
        except FlowControl:
            refused += 1
    assert refused >= 10
    assert watched.value("latermq_timers_refused_total") == refused
    assert watched.timing() == {"orders": 20 - refused}
    watched.broker.timers.engine.close()


# Lags and lateness


def test_what_is_not_flushed_lags_behind_the_engine(watched: Watched) -> None:
    watched.schedule(60_000, "a")
    watched.pass_time(250)
    watched.schedule(60_000, "b")
    watched.pass_time(50)
    figures = watched.figures()
    assert figures.value("rocketmq_timer_enqueue_lag") == 2
    assert figures.value("rocketmq_timer_enqueue_latency") == 300
    assert figures.value("rocketmq_storage_flush_behind_bytes") > 0
    watched.flush()
    figures = watched.figures()
    assert figures.value("rocketmq_timer_enqueue_lag") == figures.value("rocketmq_timer_enqueue_latency") == 0
    assert figures.value("rocketmq_storage_flush_behind_bytes") == 0


def test_what_is_due_and_cannot_be_stored_lags_until_it_can(watched: Watched) -> None:
    for number in range(3):
        watched.schedule(1_000, f"t{number}")
    watched.schedule(90_000, "later")

    def fail(operation: str, path: str) -> None:
        if "consumequeue/orders" in path:
            raise StoreError("injected")

    watched.disk.before_step = fail
    watched.pass_time(1_700)
    figures = watched.figures()
    assert figures.value("rocketmq_timer_dequeue_lag") == figures.value("latermq_kept_back_messages") == 3
    assert figures.value("rocketmq_timer_dequeue_latency") == 700
    assert watched.timing() == {"orders": 4}
    watched.disk.before_step = lambda operation, path: None
    watched.pass_time(10_000)
    figures = watched.figures()
    assert figures.value("rocketmq_timer_dequeue_lag") == figures.value("rocketmq_timer_dequeue_latency") == 0
    assert figures.value("latermq_timer_lateness_milliseconds_count", kind="timer") == 3
    assert figures.value("latermq_timer_lateness_milliseconds_bucket", kind="timer", le="500.0") == 0
    assert watched.timing() == {"orders": 1}


def test_what_a_stopped_broker_missed_is_late_and_counts_so(watched: Watched) -> None:
    for number in range(4):
        watched.schedule(1_000 + number, f"t{number}")
    watched.schedule(40_000, "last")
    watched.checkpoint()
    watched.clock.advance(31_000)
    watched.restart(clean=False)
    run_until_quiet(watched.broker)
    watched.pass_time(9_000)
    figures = watched.figures()
    name = "latermq_timer_lateness_milliseconds"
    assert figures.value(f"{name}_bucket", kind="timer", le="1.0") == 1
    assert figures.value(f"{name}_bucket", kind="timer", le="5000.0") == 1
    assert figures.value(f"{name}_bucket", kind="timer", le="60000.0") == 5
    assert figures.value(f"{name}_count", kind="timer") == 5
    assert figures.value(f"{name}_sum", kind="timer") == sum(30_000 - number for number in range(4))
    assert figures.value("latermq_early_deliveries_total") == 0


def test_the_lateness_of_levels_is_told_by_itself(watched: Watched) -> None:
    send(watched.broker, b"x", DELAY="1")
    watched.schedule(1_000, "t")
    watched.pass_time(1_000)
    figures = watched.figures()
    assert figures.values("latermq_deliveries_total", "kind") == {"timer": 1, "level": 1}
    assert figures.values("latermq_timer_lateness_milliseconds_sum", "kind") == {"timer": 0, "level": 0}


def test_a_roll_is_no_delivery(watched: Watched) -> None:
    watched.schedule(3 * DAY_MS, "far")
    watched.flush()
    watched.skip(2 * DAY_MS)
    figures = watched.figures()
    assert figures.value("latermq_timers_renewed_total") == 1
    assert figures.value("latermq_deliveries_total", kind="timer") == 0
    assert figures.values("rocketmq_timer_enqueue_total", "topic") == {"orders": 1}


# How long timers wait


def test_the_snapshot_tells_what_is_due_up_to_each_bound_and_is_kept_for_a_while(watched: Watched) -> None:
    assert set(watched.figures().values("rocketmq_timer_message_snapshot", "timer_bound_s").values()) == {0}
    before_s = 0
    for bound_s in SNAPSHOT_BOUNDS_S:
        watched.schedule((before_s + bound_s) * 500, f"within {bound_s}")
        before_s = bound_s
    watched.schedule(30 * 3_600_000, "beyond a day")
    watched.schedule(30 * DAY_MS, "beyond a month")
    watched.flush()
    assert set(watched.figures().values("rocketmq_timer_message_snapshot", "timer_bound_s").values()) == {0}
    watched.clock.advance(int(SNAPSHOT_EVERY_S * 1000))
    watched.clock.step(-int(SNAPSHOT_EVERY_S * 1000))
    snapshot = watched.figures().values("rocketmq_timer_message_snapshot", "timer_bound_s")
    assert snapshot == {str(bound_s): 1 for bound_s in SNAPSHOT_BOUNDS_S}


def test_the_time_that_timers_were_asked_to_wait_is_told_in_seconds(watched: Watched) -> None:
    for delay_s in (1, 60, 61, 3_600, 90_000):
        watched.schedule(delay_s * 1_000, f"{delay_s}")
        run_until_quiet(watched.broker)
    figures = watched.figures()
    name = "rocketmq_delay_message_latency"
    assert figures.values(f"{name}_bucket", "le") == {
        "60.0": 2, "600.0": 3, "3600.0": 4, "43200.0": 4, "86400.0": 4, "259200.0": 5, "+Inf": 5,
    }  # fmt: skip
    assert figures.value(f"{name}_sum") == 93_722
