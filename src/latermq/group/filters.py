"""Message filters: a subscription as two tests, one on the queue entry's tags code, one on the record."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from latermq.group.sql_filter import compile_sql_filter
from latermq.message.properties import decode_properties
from latermq.message.record import record_properties, record_property
from latermq.message.tags import tags_code
from latermq.protocol.remoting.bodies import SubscriptionData

SUBSCRIBE_ALL = "*"
TAG_TYPE = "TAG"


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """What a subscription lets through; None lets everything through."""

    code_matches: Callable[[int], bool] | None = None
    record_matches: Callable[[bytes], bool] | None = None


EVERYTHING = MessageFilter()


def subscription_of(topic: str, expression: str | None, expression_type: str | None) -> SubscriptionData:
    """The subscription that a pull request carries in its own fields."""
    text = expression or SUBSCRIBE_ALL
    subscription = SubscriptionData(topic=topic, subString=text, expressionType=expression_type or TAG_TYPE)
    if is_tag_type(expression_type) and text != SUBSCRIBE_ALL:
        subscription.tagsSet = split_tags(text)
        subscription.codeSet = [tags_code(tag) for tag in subscription.tagsSet]
    return subscription


def is_tag_type(expression_type: str | None) -> bool:
    """Whether an expression names tags; no type means that too."""
    return not expression_type or expression_type == TAG_TYPE


def split_tags(expression: str) -> list[str]:
    """The tags of `A || B`."""
    return [tag.strip() for tag in expression.split("||") if tag.strip()]


def filter_of(subscription: SubscriptionData) -> MessageFilter:
    """The filter of a subscription. Raises FilterError where its expression does not parse."""
    return _filter(subscription.subString, subscription.expressionType or TAG_TYPE)


@lru_cache(maxsize=4096)
def _filter(expression: str, expression_type: str) -> MessageFilter:
    if expression_type != TAG_TYPE:
        sql = compile_sql_filter(expression)
        return MessageFilter(
            record_matches=lambda record: sql.matches(decode_properties(record_properties(record).decode()))
        )
    tags = split_tags(expression)
    if not tags or SUBSCRIBE_ALL in tags:
        return EVERYTHING
    codes = frozenset(map(tags_code, tags))
    wanted = frozenset(tag.encode() for tag in tags)
    # Two tags can share a code, so the record has the last word.
    return MessageFilter(codes.__contains__, lambda record: record_property(record, b"TAGS") in wanted)
