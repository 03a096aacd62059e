"""Message filters: a subscription compiled to two tests, one on a queue entry's tags code and one on the record."""

import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from latermq.config import BrokerConfig
from latermq.errors import FilterError
from latermq.group.sql.filter import compile_sql_filter
from latermq.group.sql.tokens import too_many_words
from latermq.message.properties import decode_properties
from latermq.message.record import record_properties, record_property
from latermq.message.tags import tags_code
from latermq.model.subscription import Subscription

SUBSCRIBE_ALL = "*"
TAG_TYPE = "TAG"

# The unit of work is one byte of a record. Reading and decoding a byte takes up to 12 ns. Evaluating a word of an
# expression takes as long as 8 bytes, and 4 searches through all properties take as long as reading them.
_WORD_WORK = 8
_SEARCHES_PER_BYTE = 4
# Memory per word of a compiled filter, in addition to its expression, whose texts it holds a second time.
_WORD_BYTES = 512


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """The two tests of a subscription. A test that is None accepts every message.

    Testing a record of n bytes counts as `record_work + n · byte_work` towards the work limit of a pull.
    """

    code_matches: Callable[[int], bool] | None = None
    record_matches: Callable[[bytes], bool] | None = None
    record_work: int = 0
    byte_work: int = 1
    size_bytes: int = 0  # approximate memory


EVERYTHING = MessageFilter()


def subscription_of(topic: str, expression: str | None, expression_type: str | None) -> Subscription:
    """Build the subscription that a pull request contains in its own fields."""
    return Subscription(
        topic=topic, expression=expression or SUBSCRIBE_ALL, expression_type=expression_type or TAG_TYPE
    )


class Filters:
    """An LRU cache of compiled filters, limited to `broker.filter_cache` bytes."""

    def __init__(self, settings: BrokerConfig) -> None:
        self._max_chars = int(settings.max_expression)
        self._max_words = settings.max_expression_words
        self._max_bytes = int(settings.filter_cache)
        self._cache: OrderedDict[tuple[str, str], tuple[MessageFilter, int]] = OrderedDict()
        self._bytes = 0
        self._refused = 0

    def of(self, subscription: Subscription) -> MessageFilter:
        """Return the filter of a subscription. Raises FilterError if its expression is too long or does not parse."""
        key = subscription.expression, subscription.expression_type or TAG_TYPE
        if key == (SUBSCRIBE_ALL, TAG_TYPE):
            return EVERYTHING
        cached = self._cache.get(key)
        if cached is not None:
            self._cache.move_to_end(key)
            return cached[0]
        self.check(subscription)
        try:
            compiled, words = self._compile(*key)
        except FilterError:
            self._refused += 1
            raise
        size_bytes = 2 * sys.getsizeof(key[0]) + words * _WORD_BYTES
        if compiled is not EVERYTHING:
            compiled = replace(compiled, size_bytes=size_bytes)
        self._add(key, compiled, size_bytes)
        return compiled

    def of_request(self, topic: str, expression: str | None, expression_type: str | None) -> MessageFilter:
        """Return the filter of a request that contains its own subscription. Most want everything, in 0.2 µs."""
        if (expression or SUBSCRIBE_ALL) == SUBSCRIBE_ALL and (expression_type or TAG_TYPE) == TAG_TYPE:
            return EVERYTHING
        return self.of(subscription_of(topic, expression, expression_type))

    def check(self, subscription: Subscription) -> None:
        """Reject a subscription that is too long to be cached. Syntax errors are reported on first use."""
        chars = len(subscription.expression) + len(subscription.expression_type or "")
        # Clients send their tags three times: as the original expression, as a list and as hash codes.
        longest = max(chars, sum(map(len, subscription.tags)))
        if longest > self._max_chars:
            self._refused += 1
            raise FilterError(
                f"the expression has {longest} characters; broker.max_expression allows {self._max_chars}",
                hint="Shorten the expression, or raise the setting",
            )
        if max(len(subscription.tags), len(subscription.codes)) > self._max_words:
            self._refused += 1
            raise too_many_words(self._max_words)

    def _compile(self, expression: str, expression_type: str) -> tuple[MessageFilter, int]:
        if expression_type != TAG_TYPE:
            sql = compile_sql_filter(expression, max_words=self._max_words)
            compiled = MessageFilter(
                record_matches=lambda record: sql.matches(decode_properties(record_properties(record).decode())),
                record_work=sql.words * _WORD_WORK,
                byte_work=1 + sql.searches // _SEARCHES_PER_BYTE,
            )
            return compiled, sql.words
        tags = split_tags(expression)
        if not tags or SUBSCRIBE_ALL in tags:
            return EVERYTHING, 0
        if len(tags) > self._max_words:
            raise too_many_words(self._max_words)
        codes = frozenset(map(tags_code, tags))
        wanted = frozenset(tag.encode() for tag in tags)
        # Two tags can have the same code, so the tag in the record decides.
        return MessageFilter(codes.__contains__, lambda record: record_property(record, b"TAGS") in wanted), len(tags)

    def _add(self, key: tuple[str, str], compiled: MessageFilter, size_bytes: int) -> None:
        self._cache[key] = compiled, size_bytes
        self._bytes += size_bytes
        while self._bytes > self._max_bytes:
            self._bytes -= self._cache.popitem(last=False)[1][1]

    def statistics(self) -> dict[str, int]:
        """Return the size of the cache and the number of rejected expressions."""
        return {
            "filters_kept": len(self._cache),
            "filters_kept_bytes": self._bytes,
            "filters_refused": self._refused,
        }


def split_tags(expression: str) -> list[str]:
    """Split an expression such as `A || B` into its tags."""
    return [tag.strip() for tag in expression.split("||") if tag.strip()]
