"""The broker's counters, settings and positions for operators."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from latermq.broker.metrics.dead_letter_counts import DeadLetterCounts
from latermq.broker.metrics.group_lags import GroupLags
from latermq.broker.metrics.recent_lateness import RecentLateness
from latermq.broker.metrics.recent_traffic import RecentTraffic
from latermq.broker.metrics.topic_traffic import Spans, TopicTraffic
from latermq.broker.metrics.traffic import Traffic
from latermq.broker.tables.topics import Topics
from latermq.clock import Clock
from latermq.config import SECRET_SETTINGS, Config, Duration
from latermq.errors import LaterMQError
from latermq.message.record import record_store_timestamp_ms
from latermq.message.record_fields import HEAD
from latermq.redaction import redacted
from latermq.store.commit_log import CommitLog
from latermq.store.message_store import MessageStore
from latermq.store.queues.consume_queue import ENTRY_BYTES
from latermq.timer.service import TimerService

# The version of RocketMQ that the broker reports to clients and tools; 513 in frames.
VERSION_TEXT = "V5_5_0"
TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
GROUP_GET_NUMS = "GROUP_GET_NUMS"

_RATES_OVER_S = (10, 60, 600)
_MS_PER_HOUR = 3_600_000


@dataclass(frozen=True)
class Identity:
    """Facts that the process knows and the broker does not: its address, its version, its start time."""

    address: str
    program_version: str
    started_ms: int


class RuntimeInfo:
    """Reads the broker's counters for operators."""

    def __init__(
        self,
        store: MessageStore,
        timers: TimerService,
        topics: Topics,
        traffic: Traffic,
        timer_traffic: Traffic,
        topic_traffic: TopicTraffic,
        group_lags: GroupLags,
        dead_letters: DeadLetterCounts,
        clock: Clock,
        statistics: Callable[[], Mapping[str, int]],
    ) -> None:
        """`timer_traffic` counts timers into the engine and out of it; `statistics` are the sizes of all parts."""
        self._store = store
        self._timers = timers
        self._topics = topics
        self._traffic = traffic
        self._timer_traffic = timer_traffic
        self._topic_traffic = topic_traffic
        self._group_lags = group_lags
        self._dead_letters = dead_letters
        self._clock = clock
        self._statistics = statistics
        self._lateness = RecentLateness((timers.delivered.timer_lateness, timers.delivered.level_lateness))
        self._recent_traffic = RecentTraffic(traffic, timer_traffic)

    def sample(self) -> None:
        """Update the counters that rates are computed from. Call it about once per second."""
        now_s = self._clock.monotonic_s()
        self._traffic.sample(now_s)
        self._timer_traffic.messages_in = self._timers.intake.rows
        self._timer_traffic.messages_out = self._timers.settled.delivered_rows
        self._timer_traffic.sample(now_s)
        self._group_lags.sample(now_s)
        self._dead_letters.sample(now_s)
        self._lateness.sample(self._clock.now_ms())
        self._recent_traffic.sample(self._clock.now_ms())

    def begin_day(self, day: int) -> None:
        """Count messages for this day from now on, if it is a new one, and update the counts per topic."""
        self._traffic.begin_day(day)
        self._topic_traffic.sample(self._clock.monotonic_s())

    def table(self, identity: Identity) -> dict[str, str]:
        """Counters and positions under the names that RocketMQ's tools read.

        The sizes of request queues are 0, because one thread serves requests as it reads them.
        """
        now_ms = self._clock.now_ms()
        store, traffic = self._store, self._traffic
        rates = [traffic.rates(over_s) for over_s in _RATES_OVER_S]
        put_rates = " ".join(f"{put:.2f}" for put, _ in rates)
        get_rates = " ".join(f"{get:.2f}" for _, get in rates)
        used = store.used_ratio()
        written_bytes = store.log.end - store.recovery.log_end
        info = {
            "brokerActive": "true",
            "brokerVersionDesc": VERSION_TEXT,
            "latermqVersion": identity.program_version,
            "storeId": store.store_id,
            "bootTimestamp": str(identity.started_ms),
            "runtime": _elapsed(now_ms - identity.started_ms),
            "putTps": put_rates,
            "getFoundTps": get_rates,
            "getTransferredTps": get_rates,
            "getTotalTps": get_rates,
            "putMessageTimesTotal": str(traffic.messages_in),
            "putMessageSizeTotal": str(written_bytes),
            "putMessageAverageSize": f"{written_bytes / max(1, traffic.messages_in):.1f}",
            "msgPutTotalYesterdayMorning": str(traffic.yesterday_morning[0]),
            "msgPutTotalTodayMorning": str(traffic.this_morning[0]),
            "msgPutTotalTodayNow": str(traffic.messages_in),
            "msgGetTotalYesterdayMorning": str(traffic.yesterday_morning[1]),
            "msgGetTotalTodayMorning": str(traffic.this_morning[1]),
            "msgGetTotalTodayNow": str(traffic.messages_out),
            "commitLogMinOffset": str(store.log.start),
            "commitLogMaxOffset": str(store.log.end),
            "commitLogFlushedOffset": str(store.log.flushed),
            "commitLogDiskRatio": f"{used:.4f}",
            "consumeQueueDiskRatio": f"{used:.4f}",
            "earliestMessageTimeStamp": str(earliest_ms(store.log, now_ms)),
            "remainHowManyDataToFlush": f"{store.log.end - store.log.flushed} B",
            "dispatchBehindBytes": "0",
            "pageCacheLockTimeMills": "0",
            **self._timer_info(now_ms),
            **self._alert_info(now_ms),
        }
        for pool in ("send", "pull", "litePull", "query", "ack"):
            info[f"{pool}ThreadPoolQueueSize"] = "0"
            info[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        info.update((f"latermq_{name}", str(count)) for name, count in sorted(self._statistics().items()))
        return info

    def message_counts(self, name: str, key: str) -> Spans:
        """Counts over the last minute, hour and day: of a topic's messages, or of those that a group pulled from it."""
        now_s = self._clock.monotonic_s()
        if name == TOPIC_PUT_NUMS:
            config = self._topics.require(key)
            queues = max(config.read_queues, config.write_queues)
            return self._topic_traffic.stored(key, queues, now_s)
        if name == GROUP_GET_NUMS:
            topic, _, group = key.partition("@")
            self._topics.require(topic)
            return self._topic_traffic.pulled(topic, group, now_s)
        raise LaterMQError(
            f"there are no statistics {name}",
            hint=f"Use {TOPIC_PUT_NUMS} with a topic, or {GROUP_GET_NUMS} with topic@group",
        )

    def _timer_info(self, now_ms: int) -> dict[str, str]:
        """The lag of deliveries in seconds, timers that are not in the engine yet, pending timers, and the rates."""
        timers = self._timers
        counts = timers.statistics()
        put_rate, delivered_rate = self._timer_traffic.rates(_RATES_OVER_S[0])
        return {
            "timerReadBehind": str(max(0, now_ms - timers.marks.all_wake_from_ms()) // 1000),
            "timerOffsetBehind": str(counts["timers_unread"] + counts["timers_unput"]),
            "timerCongestNum": str(counts["timers_pending"]),
            "timerEnqueueTps": f"{put_rate:.2f}",
            "timerDequeueTps": f"{delivered_rate:.2f}",
        }

    def _alert_info(self, now_ms: int) -> dict[str, str]:
        """What the console shows: overdue and held timers, lateness, traffic, stalled groups, new dead letters."""
        timers = self._timers
        overdue, overdue_ms = timers.late_timers(now_ms)
        lateness = timers.delivered.timer_lateness.counts()
        return {
            "latermqOverdueTimers": str(overdue),
            "latermqOverdueMs": str(overdue_ms),
            "latermqClockHeld": _flag(timers.guard.is_holding),
            "latermqKeptBack": str(timers.delivery_statistics()["kept_back"]),
            "latermqTimerLateness": _json([[*lateness.bounds_ms], [*lateness.upto, lateness.total]]),
            "latermqLatenessByMinute": _json([lateness.bounds_ms, self._lateness.minutes()]),
            "latermqTrafficByMinute": _json(self._recent_traffic.minutes()),
            "latermqStalledGroups": _json(self._group_lags.stalled()),
            "latermqNewDeadLetters": _json(self._dead_letters.recent()),
        }


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _elapsed(elapsed_ms: int) -> str:
    minutes, seconds = divmod(max(0, elapsed_ms) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def earliest_ms(log: CommitLog, now_ms: int) -> int:
    """When the oldest message was stored; `now_ms` if the log is empty."""
    if log.end - log.start < HEAD.size:
        return now_ms
    return record_store_timestamp_ms(log.read(log.start, HEAD.size), 0)


def settings_text(config: Config, identity: Identity) -> str:
    """The settings as a properties file: under RocketMQ's names where it has them, then under our own."""
    settings = {**_apache_settings(config, identity), **_latermq_settings(config)}
    return "".join(f"{name}={_escaped(value)}\n" for name, value in settings.items())


def _apache_settings(config: Config, identity: Identity) -> dict[str, str]:
    broker, store, server = config.broker, config.store, config.server
    host, _, port = identity.address.rpartition(":")
    return {
        "brokerClusterName": broker.cluster,
        "brokerName": broker.name,
        "brokerId": str(broker.id),
        "brokerRole": "ASYNC_MASTER",
        "brokerIP1": host,
        "listenPort": port,
        "namesrvAddr": server.namesrv or f"{server.host}:{server.namesrv_port}",
        "autoCreateTopicEnable": _flag(broker.auto_create_topics),
        "autoCreateSubscriptionGroup": _flag(broker.auto_create_groups),
        "defaultTopicQueueNums": str(broker.default_queues),
        "maxMessageSize": str(int(broker.max_message)),
        "maxTransferBytesOnMessageInMemory": str(int(broker.pull_batch)),
        "maxTransferCountOnMessageInMemory": str(broker.pull_max_messages),
        "channelExpiredTimeout": str(int(broker.client_timeout)),
        "flushConsumerOffsetInterval": str(int(broker.offset_save_every)),
        "registerNameServerPeriod": str(int(broker.register_every)),
        "longPollingEnable": "true",
        "enablePropertyFilter": "true",
        "rejectTransactionMessage": "true",
        "messageDelayLevel": config.timer.levels,
        "flushDiskType": "SYNC_FLUSH" if store.flush == "sync" else "ASYNC_FLUSH",
        "flushIntervalCommitLog": str(int(store.flush_every)),
        "mappedFileSizeCommitLog": str(int(store.segment)),
        "mappedFileSizeConsumeQueue": str(store.queue_file_entries * ENTRY_BYTES),
        "maxHashSlotNum": str(store.index_slots),
        "maxIndexNum": str(store.index_entries),
        "fileReservedTime": f"{store.retention / _MS_PER_HOUR:g}",
        "diskMaxUsedSpaceRatio": f"{store.disk_high * 100:g}",
    }


def _latermq_settings(config: Config) -> dict[str, str]:
    """Every setting as `section.key`, in the form that `--set` accepts, without secrets: any client may read them."""
    settings = {}
    for section in msgspec.structs.fields(Config):
        values = getattr(config, section.name)
        for field in msgspec.structs.fields(values):
            name = f"{section.name}.{field.name}"
            if name not in SECRET_SETTINGS:
                settings[name] = _setting_text(getattr(values, field.name))
    return settings


def _setting_text(value: object) -> str:
    if isinstance(value, bool):
        return _flag(value)
    return f"{int(value)}ms" if isinstance(value, Duration) else redacted(str(value))


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")
