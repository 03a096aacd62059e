"""Timer names: `topic+unique key` as one text, as in cancel records, and the possible meanings of such a text.

A unique key may contain the separator. So may a topic: RocketMQ's retry topics of POP consumers are
`%RETRY%group+topic`. Therefore names are compared as texts, and a cancel applies to every timer whose name is that
text. A comparison of texts (in the key index, on Spark) selects the same timers as the split names in this module.
"""

from latermq.message.names import RETRY_PREFIX, is_topic

SEPARATOR = "+"


def timer_name(topic: str, unique_key: str) -> str:
    """The name of a timer."""
    return f"{topic}{SEPARATOR}{unique_key}"


def names_of(name: str) -> list[tuple[str, str]]:
    """All pairs of topic and unique key with this name.

    There are two if the topic may be a retry topic of POP consumers, and none if the name is not valid. Otherwise there
    is one.
    """
    topic, _, unique_key = name.partition(SEPARATOR)
    if not unique_key or not is_topic(topic):
        return []
    second, _, rest = unique_key.partition(SEPARATOR)
    longer = timer_name(topic, second)
    if rest and topic.startswith(RETRY_PREFIX) and is_topic(second) and is_topic(longer.replace(SEPARATOR, "_")):
        return [(topic, unique_key), (longer, rest)]
    return [(topic, unique_key)]


def meanings(key: str, topic: str) -> list[str]:
    """The names to which a cancel with this key may refer if it was sent to this topic, the likeliest first.

    A setting of RocketMQ's brokers decides whether they expect the topic before the unique key. A unique key that
    contains the separator looks the same as one with its topic. Most cancels are sent to the topic of their timer.
    """
    own = timer_name(topic, key)
    if not names_of(key):
        return [own]
    return [key, own] if key.startswith(topic + SEPARATOR) else [own, key]
