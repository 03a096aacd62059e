"""The metrics of a broker: RocketMQ's metrics under its names, and metrics that RocketMQ does not have.

`read` only copies numbers from existing counters, which takes little time. The text is made from its result, possibly
on another thread.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from latermq.broker.admin.runtime_info import earliest_ms
from latermq.broker.metrics.dead_letter_counts import DeadLetterCounts
from latermq.broker.metrics.exposition import Reading
from latermq.broker.metrics.group_lags import GroupLags
from latermq.broker.metrics.limits import BROKER_LIMITS, limits
from latermq.broker.metrics.metric_families import FAMILIES, access_values, server_values
from latermq.broker.metrics.traffic import Traffic
from latermq.broker.tables.topics import Topics
from latermq.broker.timers.far_timers import FarTimers
from latermq.broker.timers.ingest_mark import IngestMark
from latermq.clock import Clock
from latermq.config import Config
from latermq.message.names import TIMER_TOPIC
from latermq.message.slots import SLOT_MS, last_slot_start
from latermq.model.transaction import TransactionTallies
from latermq.store.message_store import MessageStore
from latermq.timer.service import TimerService

if TYPE_CHECKING:
    from latermq.broker.metrics.exposition import Value

SNAPSHOT_BOUNDS_S = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)  # RocketMQ's bounds
SNAPSHOT_EVERY_S = 15.0
SNAPSHOT_SHARE = 0.001  # of the time at most: counting takes 2 ms in the wheel, and 0.2 s for 200,000 timers in RocksDB
TIMER, LEVEL = "timer", "level"
BUILDERS = ("spark", "driver", "local")  # the prefixes of attempt names


class BrokerMetrics:
    """Reads one broker. Called on the event loop."""

    def __init__(
        self,
        store: MessageStore,
        timers: TimerService,
        far: FarTimers,
        ingest: IngestMark,
        topics: Topics,
        traffic: Traffic,
        transactions: TransactionTallies,
        group_lags: GroupLags,
        dead_letters: DeadLetterCounts,
        clock: Clock,
        config: Config,
        statistics: Callable[[], Mapping[str, int]],
        connections: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """`statistics` are the sizes of the broker's parts, `connections` those of the sockets."""
        self._message_store = store
        self._timer_service = timers
        self._far_timers = far
        self._ingest = ingest
        self._topics = topics
        self._traffic = traffic
        self._transactions = transactions
        self._group_lags = group_lags
        self._dead_letters = dead_letters
        self._clock = clock
        self._config = config
        self._statistics = statistics
        self._connections = connections
        settings = config.broker
        self._labels = {"cluster": settings.cluster, "node_type": "broker", "node_id": settings.name}
        self._snapshot: dict[str, float] = {}
        self._busiest_second = 0
        self._snapshot_again_s = float("-inf")

    def read(self) -> Reading:
        """The current values of all families."""
        told = (self._timers(), self._deliveries(), self._far(), self._store(), self._clients())
        return Reading(FAMILIES, self._labels, {name: value for values in told for name, value in values.items()})

    def _timers(self) -> "dict[str, Value]":
        now_ms = self._clock.now_ms()
        timers, tallies = self._timer_service, self._timer_service.tallies
        unput, unput_ms = self._unput(now_ms)
        late, late_ms = timers.late_timers(now_ms)
        return {
            "rocketmq_timer_enqueue_lag": unput,
            "rocketmq_timer_enqueue_latency": unput_ms,
            "rocketmq_timer_dequeue_lag": late,
            "rocketmq_timer_dequeue_latency": late_ms,
            "rocketmq_timer_enqueue_total": self._of_topics(tallies.scheduled(timers.pending)),
            "rocketmq_timer_dequeue_total": self._of_topics(tallies.delivered),
            "rocketmq_timing_messages": self._of_topics(timers.pending),
            "rocketmq_timer_message_snapshot": self._due_within(now_ms),
            "latermq_busiest_second": self._busiest_second,
            "rocketmq_delay_message_latency": timers.intake.delays.counts(),
            "latermq_timers_cancelled_total": tallies.cancelled,
            "latermq_timers_moved_total": tallies.moved,
            "latermq_timers_renewed_total": tallies.renewed,
            "latermq_timers_refused_total": tallies.refused,
            "latermq_timers_loaded": timers.loader.rows,
        }

    def _of_topics(self, counts: Mapping[str, int]) -> dict[str, float]:
        """Skips deleted topics, because monitoring systems keep every label that they have seen."""
        topics, pending = self._topics.table.topics, self._timer_service.pending
        return {topic: count for topic, count in counts.items() if topic in topics or pending[topic]}

    def _unput(self, now_ms: int) -> tuple[int, int]:
        """The number of timer topic entries that are not in the engine yet, and the age of the first."""
        store = self._message_store
        queue = store.queues.find(TIMER_TOPIC, 0)
        first = self._timer_service.write_queue.put_upto
        if queue is None or first >= queue.next_offset:
            return 0, 0
        return queue.next_offset - first, max(0, now_ms - store.reader.store_timestamp_ms(queue, first))

    def _due_within(self, now_ms: int) -> dict[str, float]:
        """The number of timers that are due between each bound and the previous one."""
        clock = self._clock
        now_s = clock.monotonic_s()
        if now_s >= self._snapshot_again_s:
            start_ms = last_slot_start(now_ms)
            seconds = self._timer_service.slots.density(start_ms, start_ms + SNAPSHOT_BOUNDS_S[-1] * SLOT_MS)
            self._busiest_second = int(seconds[:3_600].max())
            sums = np.add.reduceat(seconds, (0, *SNAPSHOT_BOUNDS_S[:-1])).tolist()
            self._snapshot = {str(bound): count for bound, count in zip(SNAPSHOT_BOUNDS_S, sums, strict=True)}
            took_s = clock.monotonic_s() - now_s
            self._snapshot_again_s = now_s + max(SNAPSHOT_EVERY_S, took_s / SNAPSHOT_SHARE)
        return self._snapshot

    def _deliveries(self) -> "dict[str, Value]":
        timers = self._timer_service
        delivered, counts = timers.delivered, timers.delivery_statistics()
        lateness = {TIMER: delivered.timer_lateness, LEVEL: delivered.level_lateness}
        return {
            "latermq_timer_lateness_milliseconds": {kind: own.counts() for kind, own in lateness.items()},
            "latermq_early_deliveries_total": sum(own.negative for own in lateness.values()),
            "latermq_deliveries_total": {kind: own.total for kind, own in lateness.items()},
            "latermq_dead_letters_total": delivered.dead_letters,
            "latermq_staged_messages": counts["staged_records"] + counts["staged_overdue"],
            "latermq_staged_bytes": counts["staged_bytes"],
            "latermq_kept_back_messages": counts["kept_back"],
            "latermq_clock_held": int(timers.guard.is_holding),
        }

    def _far(self) -> "dict[str, Value]":
        far = self._far_timers
        return {
            "latermq_ingest_lag_milliseconds": far.lag_ms(self._clock.now_ms()) if far.frontier.last else 0,
            "latermq_pipeline_refused_total": self._ingest.refused,
            "latermq_windows_waiting": len(far.windows.waiting()),
            "latermq_windows_built_total": {by: far.built_by[by] for by in BUILDERS},
        }

    def _store(self) -> "dict[str, Value]":
        store, now_ms = self._message_store, self._clock.now_ms()
        counts = store.statistics()
        return {
            "latermq_queues": counts["queues"],
            "latermq_mapped_queue_files": counts["mapped_queue_files"],
            "rocketmq_storage_size": store.log.end - store.log.start,
            "rocketmq_storage_flush_behind_bytes": store.log.end - store.log.flushed,
            "rocketmq_storage_dispatch_behind_bytes": 0,
            "rocketmq_storage_message_reserve_time": max(0, now_ms - earliest_ms(store.log, now_ms)),
            "latermq_disk_used_ratio": store.used_ratio(),
        }

    def _clients(self) -> "dict[str, Value]":
        counts = {**self._statistics(), **self._connections()}
        tables = ("consumer_offsets", "unused_topics", "unused_groups")
        return {
            "rocketmq_messages_in_total": self._traffic.messages_in,
            "rocketmq_messages_out_total": self._traffic.messages_out,
            "rocketmq_topic_number": counts["topics"],
            "rocketmq_consumer_group_number": counts["groups"],
            "rocketmq_producer_connections": counts["producers"],
            "rocketmq_consumer_connections": counts["consumers"],
            "rocketmq_consumer_lag_messages": self._group_lags.lags(),
            "rocketmq_send_to_dlq_messages_total": self._dead_letters.of_groups,
            "latermq_stalled_groups": len(self._group_lags.stalled()),
            "rocketmq_half_messages": counts["open_halves"],
            "rocketmq_commit_messages_total": self._transactions.committed,
            "rocketmq_rollback_messages_total": self._transactions.rolled_back,
            "latermq_transactions_given_up_total": self._transactions.given_up,
            "latermq_transaction_checks_total": self._transactions.checks,
            "latermq_transactions_refused_total": counts["refused_halves"],
            "latermq_held_notices": counts["notices_held"],
            "latermq_waiting_pulls": counts["waiting_pulls"],
            "latermq_refused_pulls_total": counts["refused_pulls"] + counts["displaced_pulls"],
            "latermq_filter_cache_bytes": counts["filters_kept_bytes"],
            "latermq_filters_refused_total": counts["filters_refused"],
            "latermq_worn_out_pulls_total": counts["worn_out_pulls"],
            **_pops(counts),
            **access_values(counts),
            **server_values(counts),
            **limits(BROKER_LIMITS, self._config, counts),
            **{f"latermq_{name}": counts[name] for name in tables},
        }


def _pops(counts: Mapping[str, int]) -> "dict[str, Value]":
    outcomes = ("done", "repeated", "stale", "unknown")
    return {
        "latermq_waiting_pops": counts["waiting_pops"],
        "latermq_pop_in_flight": counts["pop_in_flight"],
        "latermq_popped_total": counts["popped_messages"],
        "latermq_pop_acks_total": {outcome: counts[f"acks_{outcome}"] for outcome in outcomes},
        "latermq_pop_revived_total": counts["revived_messages"],
        "latermq_pop_dead_letters_total": counts["buried_messages"],
        "latermq_refused_pops_total": counts["pop_refused_pops"] + counts["refused_waiting_pops"],
    }
