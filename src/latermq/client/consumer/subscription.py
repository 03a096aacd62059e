"""Subscription expressions of heartbeats and pulls: `*`, tags separated by `||`, or SQL."""

from dataclasses import dataclass

from latermq.errors import FilterError
from latermq.message.properties import TAGS
from latermq.message.record import Message
from latermq.message.tags import tags_code
from latermq.protocol.remoting.clients import SubscriptionData

ALL = "*"
TAG = "TAG"
SQL = "SQL92"


@dataclass(frozen=True, slots=True)
class Sql:
    """A condition on message properties, for example `Sql("region = 'eu' AND amount > 100")`."""

    condition: str


def subscription_data(topic: str, expression: str | Sql = ALL, *, version: int = 0) -> SubscriptionData:
    """Build the subscription entry of a heartbeat for one topic."""
    if isinstance(expression, Sql):
        if not expression.condition.strip():
            raise FilterError("the SQL condition is empty", hint="Omit the expression to receive all messages")
        return SubscriptionData(topic=topic, subString=expression.condition, expressionType=SQL, subVersion=version)
    text = expression.strip() or ALL
    if text == ALL:
        return SubscriptionData(topic=topic, subString=ALL, expressionType=TAG, subVersion=version)
    tags = list(dict.fromkeys(tag.strip() for tag in text.split("||") if tag.strip()))
    if not tags:
        raise FilterError(
            f"the expression {expression!r} contains no tag", hint="Separate tags by ||, for example 'red || blue'"
        )
    return SubscriptionData(
        topic=topic,
        subString=text,
        expressionType=TAG,
        tagsSet=tags,
        codeSet=[tags_code(tag) for tag in tags],
        subVersion=version,
    )


def matches_tags(data: SubscriptionData, message: Message) -> bool:
    """Return whether a pulled message has a subscribed tag. Brokers compare hashes, which can collide."""
    return not data.tagsSet or message.properties.get(TAGS) in data.tagsSet
