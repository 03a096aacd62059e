"""Statistics of topics and groups in RocketMQ's fields, built in steps because a wide topic has 65,535 queues."""

from collections.abc import Iterable

from latermq.broker.metrics.topic_traffic import Spans
from latermq.model.statistics import QueueTimes, TopicProgress, TopicState
from latermq.protocol.remoting.groups import ConsumeStats, OffsetWrapper, QueueTimeSpan
from latermq.protocol.remoting.queues import MessageQueue
from latermq.protocol.remoting.runtime import BrokerStats, StatsItem
from latermq.protocol.remoting.topics import TopicOffset, TopicStats
from latermq.server.handlers.admin.keyed_maps import keyed_map
from latermq.timer.steps import Steps

_SPANS_PER_STEP = 10  # 1 µs each


def topic_stats(state: TopicState, broker_name: str) -> Steps[TopicStats]:
    """Return the statistics body of a topic's queues."""
    entries = (
        (
            MessageQueue(state.topic, broker_name, queue_id),
            TopicOffset(minOffset=one.min_offset, maxOffset=one.max_offset, lastUpdateTimestamp=one.stored_ms),
        )
        for queue_id, one in enumerate(state.queues)
    )
    return TopicStats(topicPutTps=state.per_second, offsetTable=(yield from keyed_map(entries)))


def consume_stats(topics: Iterable[TopicProgress], broker_name: str) -> Steps[ConsumeStats]:
    """Return the statistics body of a group in these topics."""
    topics = list(topics)
    entries = (
        (
            MessageQueue(topic.topic, broker_name, queue_id),
            OffsetWrapper(
                brokerOffset=one.end_offset,
                consumerOffset=one.consumed_offset,
                pullOffset=one.delivered_offset,
                lastTimestamp=one.consumed_ms,
            ),
        )
        for topic in topics
        for queue_id, one in enumerate(topic.queues)
    )
    per_second = sum(topic.per_second for topic in topics)
    return ConsumeStats(consumeTps=per_second, offsetTable=(yield from keyed_map(entries)))


def time_spans(queues: Iterable[QueueTimes], topic: str, broker_name: str) -> Steps[list[QueueTimeSpan]]:
    """Return the body with the time spans of a topic's queues."""
    spans: list[QueueTimeSpan] = []
    for queue_id, one in enumerate(queues):
        spans.append(
            QueueTimeSpan(
                messageQueue=MessageQueue(topic, broker_name, queue_id),
                minTimeStamp=one.first_ms,
                maxTimeStamp=one.last_ms,
                consumeTimeStamp=one.consumed_ms,
                delayTime=one.late_ms,
            )
        )
        if len(spans) % _SPANS_PER_STEP == 0:
            yield
    return spans


def broker_stats(spans: Spans) -> BrokerStats:
    """Return the statistics body of the last minute, hour and day."""
    minute, hour, day = (StatsItem(sum=span.messages, tps=span.per_second) for span in spans)
    return BrokerStats(statsMinute=minute, statsHour=hour, statsDay=day)
