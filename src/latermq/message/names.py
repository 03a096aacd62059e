"""Topic and group names: validation, system topics, and the names of retry and dead-letter topics."""

import re

from latermq.errors import IllegalMessage, NoPermission

MAX_TOPIC_CHARS = 127
MAX_RETRY_TOPIC_CHARS = 255
MAX_GROUP_CHARS = 120  # with the retry or dead-letter prefix it is still a valid topic name
MAX_FILE_NAME_BYTES = 255  # of one file or folder, on all relevant file systems
RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
AUTO_CREATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
TIMER_DEAD_LETTER_TOPIC = "rmq_sys_timer_dlq"
POP_TOPIC = "rmq_sys_latermq_pop"  # the journal of POP consumption
BENCHMARK_TOPIC = "BenchmarkTest"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_CHECK_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"

# Topics that hold messages of all other topics. Their use takes a right to the cluster.
CLUSTER_TOPICS = frozenset({
    TIMER_TOPIC, SCHEDULE_TOPIC, TIMER_DEAD_LETTER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_CHECK_TOPIC,
    POP_TOPIC,
})  # fmt: skip
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"  # RocketMQ's broker reads the half topic as this group
REVIVE_TOPIC_PREFIX = "rmq_sys_REVIVE_LOG_"  # with the cluster: where RocketMQ's broker notes popped messages
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"  # and the group as which it reads them
WAITING_TOPICS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, POP_TOPIC})  # not for consumers
_SHOWN_CHARS = 40  # of a refused name, whose length an untrusted client chooses

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+").fullmatch
_SYSTEM_TOPICS = frozenset({
    AUTO_CREATE_TOPIC, SCHEDULE_TOPIC, BENCHMARK_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC, TRACE_TOPIC,
    HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_CHECK_TOPIC,
})  # fmt: skip
_CLOSED_TOPICS = frozenset({
    SCHEDULE_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_CHECK_TOPIC,
})  # fmt: skip


def check_topic(topic: str) -> None:
    """Raise an error if this is not a valid topic name."""
    if not topic.strip():
        raise IllegalMessage("the topic name is blank", hint="Specify a topic")
    if not _LEGAL(topic):
        raise IllegalMessage(
            f"topic {shown(topic)} contains illegal characters",
            hint="Letters, digits, '_', '-', '%' and '|' are allowed",
        )
    limit = _max_chars(topic)
    if len(topic) > limit:
        raise IllegalMessage(f"topic {shown(topic)} has {len(topic)} characters; the limit is {limit}")


def is_topic(name: str) -> bool:
    """Whether this is a valid topic name."""
    return len(name) <= _max_chars(name) and _LEGAL(name) is not None


def is_stored_topic(name: str) -> bool:
    """Whether a topic in a store can have this name. RocketMQ's brokers create names that clients may not use.

    These are the retry topics of its POP consumers, `%RETRY%group+topic`.
    """
    return is_topic(name) or (name.startswith(RETRY_PREFIX) and is_topic(name.replace("+", "_", 1)))


def is_group(name: str) -> bool:
    """Whether this is a valid group name."""
    return len(name) <= MAX_GROUP_CHARS and _LEGAL(name) is not None


def is_file_name(name: str) -> bool:
    """Whether this is a valid file or folder name that cannot escape its folder as part of a path."""
    if name in ("", ".", "..") or "/" in name or "\0" in name or len(name) > MAX_FILE_NAME_BYTES:
        return False
    try:
        return len(name.encode()) <= MAX_FILE_NAME_BYTES
    except UnicodeEncodeError:
        return False


def shown(name: str) -> str:
    """A name for an error message: quoted, escaped, and truncated if it is long."""
    return repr(name) if len(name) <= _SHOWN_CHARS else f"{name[:_SHOWN_CHARS]!r}…"


def escaped(name: str, max_chars: int) -> str:
    """A name for a log line: escaped and truncated, but not quoted, because the log adds quotes where needed."""
    cut = repr(name[:max_chars])[1:-1]
    return cut if len(name) <= max_chars else f"{cut}…"


def _max_chars(topic: str) -> int:
    return MAX_RETRY_TOPIC_CHARS if topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)) else MAX_TOPIC_CHARS


def check_sendable_topic(topic: str) -> None:
    """Raise an error if clients must not send to this topic: the name is not valid, or only the broker writes to it."""
    check_topic(topic)
    if topic in _CLOSED_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX):
        raise NoPermission(f"topic {topic!r} is reserved for the broker", hint="Send to another topic")


def check_group(group: str) -> None:
    """Raise an error if this is not a valid group name."""
    if not group.strip():
        raise IllegalMessage("the group name is blank", hint="Specify a group")
    if not _LEGAL(group):
        raise IllegalMessage(
            f"group {shown(group)} contains illegal characters",
            hint="Letters, digits, '_', '-', '%' and '|' are allowed",
        )
    if len(group) > MAX_GROUP_CHARS:
        raise IllegalMessage(f"group {shown(group)} has {len(group)} characters; the limit is {MAX_GROUP_CHARS}")


def is_system_topic(topic: str) -> bool:
    """Whether this is a system topic."""
    return topic in _SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def retry_topic(group: str) -> str:
    """The topic where a group's failed messages wait for their next attempt."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """The topic for messages that a group failed to consume too often."""
    return DEAD_LETTER_PREFIX + group


def group_of(topic: str) -> str:
    """The group of a retry or dead-letter topic."""
    # Remove only one prefix: the name of a group may itself begin with one.
    return topic.removeprefix(RETRY_PREFIX if topic.startswith(RETRY_PREFIX) else DEAD_LETTER_PREFIX)
