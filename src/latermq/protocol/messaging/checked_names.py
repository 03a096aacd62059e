"""Names of topics and groups that clients of the 5.x protocol may use."""

from functools import lru_cache

from latermq.errors import IllegalMessage
from latermq.message.names import check_group, check_topic, is_system_topic, shown
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.refusals import CallRefused

SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
_CACHED_NAMES = 1024


@lru_cache(_CACHED_NAMES)  # only of names that are valid
def check_topic_name(name: str) -> None:
    """Raise CallRefused unless clients may use a topic of this name."""
    try:
        check_topic(name)
    except IllegalMessage as error:
        raise CallRefused(pb.ILLEGAL_TOPIC, error.message, hint=error.hint) from None
    if is_system_topic(name):
        raise CallRefused(pb.ILLEGAL_TOPIC, f"topic {shown(name)} is a system topic")


@lru_cache(_CACHED_NAMES)
def check_group_name(name: str) -> None:
    """Raise CallRefused unless clients may consume with a group of this name."""
    try:
        check_group(name)
    except IllegalMessage as error:
        raise CallRefused(pb.ILLEGAL_CONSUMER_GROUP, error.message, hint=error.hint) from None
    if name.startswith(SYSTEM_GROUP_PREFIX):
        raise CallRefused(pb.ILLEGAL_CONSUMER_GROUP, f"group {shown(name)} is a system group")
