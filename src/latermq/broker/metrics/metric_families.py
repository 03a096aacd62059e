"""Which metrics servers tell: their names, kinds and meanings. docs/operations.md lists the same."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from latermq.broker.metrics.exposition import Family, Kind

if TYPE_CHECKING:
    from latermq.broker.metrics.exposition import Value


def _of_store(name: str, kind: Kind, meaning: str, label: str = "", scale: int = 1) -> Family:
    return Family(name, kind, meaning, label, of_storage=True, scale=scale)


_OF_CONNECTIONS = (
    Family("latermq_connections", Kind.GAUGE, "Connections of clients"),
    Family("latermq_connections_refused_total", Kind.COUNTER, "Connections refused because there were too many"),
    Family("latermq_connections_held_bytes", Kind.GAUGE, "Unfinished requests and unread replies of all connections"),
    Family("latermq_connections_let_go_total", Kind.COUNTER, "Requests and connections given up for these"),
    Family("latermq_connections_paused", Kind.GAUGE, "Connections whose peer is behind with reading"),
    Family("latermq_connections_closed_total", Kind.COUNTER, "Connections that the server closed, by why", "reason"),
    Family("latermq_turns_used_up_total", Kind.COUNTER, "How often a connection had to let others go before"),
    Family(
        "latermq_metrics_connections_displaced_total",
        Kind.COUNTER,
        "Connections to the metrics port that were closed for others, or refused",
    ),
)
_OF_BOUNDS = (
    Family("latermq_requests_refused_total", Kind.COUNTER, "Requests that were answered with an error", "code"),
    Family("latermq_limit", Kind.GAUGE, "Bounds of what can grow, as they hold now", "setting"),
    Family("latermq_limit_used", Kind.GAUGE, "How much of each bound is used", "setting"),
)
SERVER_FAMILIES = (*_OF_CONNECTIONS, *_OF_BOUNDS)  # of broker and name server alike
FAMILIES = (
    _of_store("rocketmq_timer_enqueue_lag", Kind.GAUGE, "Entries of the timer topic that are not in the engine yet"),
    _of_store("rocketmq_timer_enqueue_latency", Kind.GAUGE, "Age of the oldest of these in ms, 0 if none"),
    _of_store("rocketmq_timer_dequeue_lag", Kind.GAUGE, "Timers in memory that should have been delivered already"),
    _of_store("rocketmq_timer_dequeue_latency", Kind.GAUGE, "How late the first of these is in ms, 0 if none"),
    _of_store("rocketmq_timer_enqueue_total", Kind.COUNTER, "Timers that began to wait, moved ones again", "topic"),
    _of_store("rocketmq_timer_dequeue_total", Kind.COUNTER, "Timers that were delivered", "topic"),
    _of_store("rocketmq_timing_messages", Kind.GAUGE, "Timers that wait now", "topic"),
    _of_store(
        "rocketmq_timer_message_snapshot",
        Kind.GAUGE,
        "Timers that are due within so many seconds, but not within the next lower bound; a little old",
        "timer_bound_s",
    ),
    _of_store(
        "rocketmq_delay_message_latency",
        Kind.HISTOGRAM,
        "Requested delay of timers in seconds; a renewed timer counts again with its remaining delay",
        scale=1_000,
    ),
    _of_store("rocketmq_storage_size", Kind.GAUGE, "Bytes of the log that are kept"),
    _of_store("rocketmq_storage_flush_behind_bytes", Kind.GAUGE, "Bytes of the log that are not on disk yet"),
    _of_store("rocketmq_storage_dispatch_behind_bytes", Kind.GAUGE, "Always 0: queues are written with the log"),
    _of_store("rocketmq_storage_message_reserve_time", Kind.GAUGE, "Age of the oldest message in ms"),
    Family("rocketmq_messages_in_total", Kind.COUNTER, "Messages that producers sent"),
    Family("rocketmq_messages_out_total", Kind.COUNTER, "Messages that consumers pulled"),
    Family("rocketmq_topic_number", Kind.GAUGE, "Topics"),
    Family("rocketmq_consumer_group_number", Kind.GAUGE, "Consumer groups that are configured"),
    Family("rocketmq_producer_connections", Kind.GAUGE, "Producers that are connected"),
    Family("rocketmq_consumer_connections", Kind.GAUGE, "Consumers that are connected"),
    Family(
        "latermq_timer_lateness_milliseconds",
        Kind.HISTOGRAM,
        "Store time of what was delivered minus its due time",
        "kind",
    ),
    Family("latermq_early_deliveries_total", Kind.COUNTER, "Deliveries before their time: anything but 0 is an alarm"),
    Family("latermq_deliveries_total", Kind.COUNTER, "Messages that waited and were delivered", "kind"),
    Family("latermq_dead_letters_total", Kind.COUNTER, "Messages that waited and can never be delivered"),
    Family("latermq_timers_cancelled_total", Kind.COUNTER, "Timers that a cancel took"),
    Family("latermq_timers_moved_total", Kind.COUNTER, "Moves of timers to another time"),
    Family(
        "latermq_timers_renewed_total",
        Kind.COUNTER,
        "Pending timers rewritten to the end of the log before their segment ages out",
    ),
    Family("latermq_timers_refused_total", Kind.COUNTER, "Timers that flow control refused"),
    Family("latermq_timers_loaded", Kind.GAUGE, "Timers whose places are read ahead of their time"),
    Family("latermq_staged_messages", Kind.GAUGE, "Messages that are built ahead of their time"),
    Family("latermq_staged_bytes", Kind.GAUGE, "Memory that these take"),
    Family("latermq_kept_back_messages", Kind.GAUGE, "Messages that are due but could not be stored yet"),
    Family("latermq_clock_held", Kind.GAUGE, "1 while deliveries wait because the clock leapt forward"),
    Family(
        "latermq_ingest_lag_milliseconds", Kind.GAUGE, "Age of the oldest timer that Spark has not ingested, 0 if none"
    ),
    Family(
        "latermq_pipeline_refused_total", Kind.COUNTER, "Requests of drivers that do not know the pipeline's secret"
    ),
    Family("latermq_windows_waiting", Kind.GAUGE, "Windows that are cut and not read to their end"),
    Family(
        "latermq_windows_built_total",
        Kind.COUNTER,
        "Windows chosen for loading, by what built them: spark or local",
        "by",
    ),
    Family("latermq_disk_used_ratio", Kind.GAUGE, "How full the disk of the data directory is, 0 to 1"),
    Family("latermq_queues", Kind.GAUGE, "Queues of all topics; above store.max_queues no new one is made"),
    Family("latermq_consumer_offsets", Kind.GAUGE, "Stored consumer offsets; above broker.max_offsets none is added"),
    Family("latermq_unused_topics", Kind.GAUGE, "Auto-created retry topics that nobody has used"),
    Family("latermq_unused_groups", Kind.GAUGE, "Auto-created groups that nobody has used"),
    Family("latermq_mapped_queue_files", Kind.GAUGE, "Files of queues that are open"),
    *_OF_CONNECTIONS,
    Family("latermq_waiting_pulls", Kind.GAUGE, "Pulls that wait for messages"),
    Family("latermq_held_notices", Kind.GAUGE, "Notifications for clients that are behind with reading"),
    Family("latermq_refused_pulls_total", Kind.COUNTER, "Pulls that found no place to wait, or lost it to others"),
    Family("latermq_filter_cache_bytes", Kind.GAUGE, "Memory of the filters that are kept compiled"),
    Family("latermq_filters_refused_total", Kind.COUNTER, "Filters that were too long or did not parse"),
    Family(
        "latermq_worn_out_pulls_total", Kind.COUNTER, "Pulls whose filter had looked at as much as one pull may look at"
    ),
    *_OF_BOUNDS,
)


def server_values(statistics: Mapping[str, int]) -> "dict[str, Value]":
    """What every server tells of its sockets; what nobody counts, as a broker without a socket, is 0."""
    refused_requests, closed = "refused_requests_", "closed_"
    return {
        "latermq_connections": statistics.get("connections", 0),
        "latermq_connections_refused_total": statistics.get("refused", 0),
        "latermq_connections_held_bytes": statistics.get("held_bytes", 0),
        "latermq_connections_let_go_total": statistics.get("let_go", 0),
        "latermq_connections_paused": statistics.get("paused", 0),
        "latermq_connections_closed_total": _labelled(statistics, closed),
        "latermq_turns_used_up_total": statistics.get("turns_used_up", 0),
        "latermq_metrics_connections_displaced_total": statistics.get("metrics_displaced", 0)
        + statistics.get("metrics_refused", 0),
        "latermq_requests_refused_total": _labelled(statistics, refused_requests),
    }


def _labelled(statistics: Mapping[str, int], prefix: str) -> dict[str, float]:
    return {name.removeprefix(prefix): count for name, count in statistics.items() if name.startswith(prefix)}
