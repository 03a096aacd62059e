"""Filters of subscriptions: what they let through, what is kept of them, and how far one pull looks."""

import pytest

from latermq.broker.messages.reader import Pulled
from latermq.clock import SimulatedClock
from latermq.config import BrokerConfig, Size
from latermq.errors import FilterError
from latermq.group.filters import EVERYTHING, Filters, subscription_of
from latermq.message.tags import MAX_CACHED_CHARS, java_string_hash, tags_code
from latermq.model.pull_status import PullStatus
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import open_broker, send


def filters(max_chars: int = 10_000, max_words: int = 1_000, max_bytes: int = 100_000) -> Filters:
    return Filters(
        BrokerConfig(max_expression=Size(max_chars), max_expression_words=max_words, filter_cache=Size(max_bytes))
    )


def test_a_filter_is_made_once_and_the_ones_used_last_are_kept() -> None:
    kept = filters(max_bytes=20_000)
    favourite = kept.of(subscription_of("t", "a = 1", "SQL92"))
    for number in range(200):
        kept.of(subscription_of("t", f"a = {number} OR b = 2", "SQL92"))
        kept.of(subscription_of("t", f"a || {number}", "TAG"))
        assert kept.of(subscription_of("other", "a = 1", "SQL92")) is favourite
        assert kept.statistics()["filters_kept_bytes"] <= 20_000
    assert 2 < kept.statistics()["filters_kept"] < 20


def test_a_filter_larger_than_the_cache_works_and_is_not_kept() -> None:
    kept = filters(max_bytes=1_000)
    assert kept.of(subscription_of("t", "a = 1", "SQL92")).record_matches is not None
    assert kept.statistics() == {"filters_kept": 0, "filters_kept_bytes": 0, "filters_refused": 0}


def test_everything_is_no_filter() -> None:
    kept = filters()
    for expression, kind in ((None, None), ("*", "TAG"), ("*", None), ("", ""), ("a || *", "TAG"), (" || ", "TAG")):
        assert kept.of(subscription_of("t", expression, kind)) is EVERYTHING


def test_what_is_too_long_is_refused_and_counted() -> None:
    kept = filters(max_chars=20, max_words=4)
    for expression, kind in (("x" * 21, "TAG"), ("x" * 21, "SQL92"), ("a||b||c||d||e", "TAG"), ("a=1 OR b=2", "SQL92")):
        with pytest.raises(FilterError, match=r"broker\.max_expression") as caught:
            kept.of(subscription_of("t", expression, kind))
        assert caught.value.code == 23
    assert kept.statistics() == {"filters_kept": 0, "filters_kept_bytes": 0, "filters_refused": 4}
    kept.of(subscription_of("t", "a||b||c||d", "TAG"))


@pytest.mark.parametrize("length", [1, 255, 256, 257, 5_000, 40_000])
@pytest.mark.parametrize("letter", ["x", "é", "𝄞", "\ud800"])
def test_long_texts_have_the_hash_that_java_gives_them(letter: str, length: int) -> None:
    value = 0
    units = (letter * length).encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = value * 31 + (high << 8 | low) & 0xFFFFFFFF
    expected = value - (1 << 32) if value >> 31 else value
    assert java_string_hash(letter * length) == expected
    assert tags_code(letter * length) == expected


def test_only_short_tags_are_remembered() -> None:
    from latermq.message.tags import _cached_code

    before = _cached_code.cache_info().currsize
    for number in range(100):
        tags_code(f"{number:04}" + "x" * MAX_CACHED_CHARS)
    assert _cached_code.cache_info().currsize == before


@pytest.mark.parametrize(
    ("expression", "kind", "settings", "most"),
    [
        ("a = 'no' AND b = 1", "SQL92", BrokerConfig(pull_work=2_000), 12),
        ("b = 1" + " OR b = 2" * 200, "SQL92", BrokerConfig(pull_work=20_000), 4),
        ("a CONTAINS 'x'" + " OR a CONTAINS 'z'" * 99, "SQL92", BrokerConfig(pull_work=200_000), 40),
        ("other", "TAG", BrokerConfig(pull_scan=512), 512),
    ],
)
def test_a_pull_whose_filter_finds_nothing_goes_on_where_it_stopped(
    expression: str, kind: str, settings: BrokerConfig, most: int
) -> None:
    broker = open_broker(MemoryDisk(), SimulatedClock(), settings=settings)
    for _ in range(600):
        send(broker, b"x", a="yes", TAGS="some")
    wanted = broker.filters.of(subscription_of("orders", expression, kind))
    offset = 0
    pulls: list[Pulled] = []
    while offset < 600:
        pulls.append(broker.reader.pull("orders", 0, offset, 32, message_filter=wanted))
        assert pulls[-1].status == PullStatus.NO_MATCHED_MESSAGE
        assert 0 < pulls[-1].next_offset - offset <= most
        offset = pulls[-1].next_offset
    assert broker.statistics()["worn_out_pulls"] >= len(pulls) - 1


def test_a_pull_that_runs_out_of_work_answers_with_what_it_has() -> None:
    broker = open_broker(MemoryDisk(), SimulatedClock(), settings=BrokerConfig(pull_work=3_000))
    for number in range(100):
        send(broker, b"x", a=str(number))
    wanted = broker.filters.of(subscription_of("orders", "a = 3 OR a = 70", "SQL92"))
    pulled = broker.reader.pull("orders", 0, 0, 32, message_filter=wanted)
    assert (pulled.status, pulled.messages) == (PullStatus.FOUND, 1)
    assert 4 <= pulled.next_offset < 30


def test_one_message_is_looked_at_even_where_it_is_more_work_than_a_pull_may_do() -> None:
    broker = open_broker(MemoryDisk(), SimulatedClock(), settings=BrokerConfig(pull_work=1, max_message=Size(8_192)))
    for _ in range(3):
        send(broker, b"x" * 8_000, a="1")
    wanted = broker.filters.of(subscription_of("orders", "a = 1", "SQL92"))
    assert [broker.reader.pull("orders", 0, at, 32, message_filter=wanted).next_offset for at in range(3)] == [1, 2, 3]
