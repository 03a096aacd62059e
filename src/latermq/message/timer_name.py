"""The name of a timer in one text, `topic+unique key`, as cancels carry it, and what such a text can mean.

A unique key may hold the separator, and so may a topic: RocketMQ's retry topics of pops are `%RETRY%group+topic`. So a
name is a text, and whatever has that text as its name is meant: a cancel that is compared as a text (in the key index,
on Spark) takes the same timers as one that is split here.
"""

from latermq.message.names import RETRY_PREFIX, is_topic

SEPARATOR = "+"


def timer_name(topic: str, unique_key: str) -> str:
    """What a timer is called."""
    return f"{topic}{SEPARATOR}{unique_key}"


def names_of(name: str) -> list[tuple[str, str]]:
    """Every topic and unique key that have this name: two where the topic may be a retry topic of pops, else one."""
    topic, _, unique_key = name.partition(SEPARATOR)
    if not unique_key or not is_topic(topic):
        return []
    second, _, rest = unique_key.partition(SEPARATOR)
    longer = timer_name(topic, second)
    if rest and topic.startswith(RETRY_PREFIX) and is_topic(second) and is_topic(longer.replace(SEPARATOR, "_")):
        return [(topic, unique_key), (longer, rest)]
    return [(topic, unique_key)]


def meanings(key: str, topic: str) -> list[str]:
    """The names that a cancel with this key can mean if it was sent to this topic, the likeliest first.

    RocketMQ's brokers expect the topic before the unique key or not, by a setting; and a unique key that holds the
    separator looks the same as one with its topic. A cancel is mostly sent to the topic of what it takes.
    """
    own = timer_name(topic, key)
    if not names_of(key):
        return [own]
    return [key, own] if key.startswith(topic + SEPARATOR) else [own, key]
