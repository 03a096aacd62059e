"""The parts of the data source that need neither Spark nor a broker: options, offsets, filters, owners."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from latermq.client.session.failures import NoBroker
from latermq.errors import ConfigError, CorruptStore
from latermq.message.names import TIMER_TOPIC
from latermq.model.pipeline_state import CutState, PipelineState
from latermq.pipeline.driver.brokers import QueuePlace
from latermq.pipeline.source.filters import PushedFilters
from latermq.pipeline.source.options import SourceOptions, parse_options
from latermq.pipeline.source.ranges import check_queues, limit_offsets, parts, resolve
from latermq.pipeline.source.reader import timeline_batch
from latermq.pipeline.source.records import RecordBlock
from latermq.pipeline.timeline.ownership import ownership_of
from tests.unit.pipeline.test_pipeline_records import record

PLACE = QueuePlace("broker-a", 0, "127.0.0.1:1")
OTHER = QueuePlace("broker-b", 0, "127.0.0.1:2")


def test_options_are_read_in_any_case_and_checked() -> None:
    options = parse_options({
        "TOPIC": TIMER_TOPIC, "namesrv": "h:1", "startingoffsets": '{"broker-a": {"0": 12}}', "columns": "body, keys",
        "maxRowsPerTrigger": "7", "failondataloss": "FALSE", "epoch": "3", "timeline": "true",
    })  # fmt: skip
    assert options == SourceOptions(
        topic=TIMER_TOPIC, namesrv="h:1", starting_offsets={"broker-a": {0: 12}}, columns=("body", "keys"),
        max_rows_per_trigger=7, fail_on_data_loss=False, epoch=3, timeline=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    "given_options",
    [
        {},
        {"topic": "t", "startingOffsets": "{"},
        {"topic": "t", "startingOffsets": "[1]"},
        {"topic": "t", "startingOffsets": '{"b": {"x": 1}}'},
        {"topic": "t", "endingOffsets": "earliest"},
        {"topic": "t", "maxRowsPerTrigger": "-1"},
        {"topic": "t", "maxRowsPerTrigger": "0"},
        {"topic": "t", "failOnDataLoss": "perhaps"},
        {"topic": "t", "timeline": "true"},
        {"topic": "t", "offset": "1"},
    ],
)
def test_options_that_make_no_sense_are_refused(given_options: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        parse_options(given_options)


def test_offsets_are_found_for_every_queue() -> None:
    bounds = {PLACE: (5, 20), OTHER: (0, 9)}
    assert resolve("earliest", bounds) == {PLACE: 5, OTHER: 0}
    assert resolve("latest", bounds) == {PLACE: 20, OTHER: 9}
    assert resolve({"broker-a": {0: 7}}, bounds) == {PLACE: 7, OTHER: 0}


def test_offsets_of_a_queue_that_is_not_there_are_refused() -> None:
    check_queues("earliest", [])
    check_queues({"broker-a": {0: 7}, "broker-b": {0: 1}}, [PLACE, OTHER])
    with pytest.raises(NoBroker, match="queue 0 of broker 'broker-b', which does not exist"):
        check_queues({"broker-a": {0: 7}, "broker-b": {0: 1}}, [PLACE])


@given(
    st.dictionaries(st.sampled_from("abcde"), st.tuples(st.integers(0, 50), st.integers(0, 1000)), min_size=1),
    st.integers(1, 400),
)
def test_a_limit_holds_over_all_queues_and_is_used_up(queues: dict[str, tuple[int, int]], max_rows: int) -> None:
    start = {key: low for key, (low, _) in queues.items()}
    end = {key: low + rows for key, (low, rows) in queues.items()}
    found = limit_offsets(start, end, max_rows)
    assert found.keys() == end.keys()
    assert all(start[key] <= found[key] <= end[key] for key in end)
    total = sum(rows for _, rows in queues.values())
    assert sum(found[key] - start[key] for key in end) == min(total, max_rows)


@given(st.integers(0, 100), st.integers(-5, 300), st.integers(1, 70))
def test_parts_cover_a_range_without_gaps_and_keep_to_their_size(start: int, rows: int, max_rows: int) -> None:
    found = parts(PLACE, start, start + rows, max_rows)
    assert [entry for part in found for entry in range(part.start, part.end)] == list(range(start, start + rows))
    assert all(0 < part.end - part.start <= max_rows for part in found)


def test_filters_are_accepted_exactly_or_left_to_spark() -> None:
    due, offset = ("due_ms",), ("queue_offset",)
    left: list[Filter] = [IsNull(due), StringStartsWith(("keys",), "x"), EqualTo(("body",), b"x"), In(due, (1, 2))]
    taken: list[Filter] = [
        GreaterThan(due, 10), LessThanOrEqual(due, 20), IsNotNull(due), GreaterThanOrEqual(offset, 3),
        LessThan(offset, 9), EqualTo(("broker",), "a"), In(("queue_id",), (1, 2)), EqualTo(("queue_id",), 2),
    ]  # fmt: skip
    pushed = PushedFilters()
    assert pushed.accept([*taken, *left]) == left
    assert pushed.ranges == {"due_ms": (11, 21), "queue_offset": (3, 9)}
    assert pushed.allows("queue_id", 2)
    assert not pushed.allows("queue_id", 1)
    assert not pushed.allows("broker", "b")


def test_an_equal_offset_is_a_range_of_one() -> None:
    pushed = PushedFilters()
    assert pushed.accept([EqualTo(("queue_offset",), 4), GreaterThan(("queue_offset",), 2)]) == []
    assert pushed.range_of("queue_offset") == (4, 5)


cut_lists = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 100)), max_size=6, unique_by=lambda cut: cut[0])
timers = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 100)), max_size=20)


@given(cut_lists, timers)
def test_the_last_cut_before_an_entry_says_whose_it_is(
    pairs: list[tuple[int, int]], entries: list[tuple[int, int]]
) -> None:
    cuts = [CutState(number, entry, until, 0) for number, (entry, until) in enumerate(sorted(pairs), 1)]
    entries = [one for one in entries if one[0] not in dict(pairs)]  # which are cuts themselves

    def is_near(entry: int, due_ms: int) -> bool:
        before = [cut for cut in cuts if cut.entry < entry]
        return not before or due_ms < before[-1].frontier_ms

    assert near(state(cuts), entries) == [is_near(*entry) for entry in entries]


def state(cuts: list[CutState], owned_from: int | None = None) -> PipelineState:
    return PipelineState("s", "broker-a", 1, 0, 0, 100, 0, 0, 0, cuts=cuts, owned_from=owned_from)


def near(told: PipelineState, entries: list[tuple[int, int]]) -> list[bool]:
    columns = np.array(entries, np.int64).reshape(-1, 2).T
    found: list[bool] = ownership_of(told).is_near(*columns).tolist()
    return found


def test_an_older_broker_that_leaves_out_a_frontier_is_refused_rather_than_guessed_about() -> None:
    cuts = [CutState(7, 20, 500, 0)]
    assert near(state(cuts), [(21, 499), (21, 500)]) == [True, False]
    with pytest.raises(CorruptStore, match=r"known from entry 21\.") as refused:
        near(state(cuts), [(19, 499)])
    assert "upgrade the broker first" in refused.value.hint
    assert near(state(cuts, owned_from=15), [(19, 499), (19, 900)]) == [True, True]


def test_the_timeline_gets_rows_in_due_order_without_cuts_and_records_of_far_ones_alone() -> None:
    def entry(offset: int, due_ms: int, **properties: str) -> bytes:
        named = {"REAL_TOPIC": "t", "UNIQ_KEY": f"u{offset}", "LMQ_DUE_MS": str(due_ms), **properties}
        return record(b"", named, offset=offset)

    block = RecordBlock(
        [
            entry(10, 900),
            entry(11, 1, TIMER_DEL_UNIQKEY="latermq.cut", LMQ_CUT="1:500:0"),
            entry(12, 800),
            entry(13, 499),
            entry(14, 950, TIMER_DEL_UNIQKEY="t+u12"),
            entry(15, 700, LMQ_MOVE="1", LMQ_TIMER_ID="10"),
            entry(16, 300, LMQ_MOVE="1", LMQ_TIMER_ID="10"),
        ],
        is_timer_topic=True,
    )
    ownership = ownership_of(state([CutState(1, 11, 500, 0)]))
    batch = timeline_batch(block, ("queue_offset", "kind", "due_ms", "record"), ownership)
    rows = [(*list(row.values())[:3], row["record"] is not None) for row in batch.to_pylist()]
    assert rows == [
        (16, "move", 300, False), (13, "timer", 499, False), (15, "move", 700, True), (12, "timer", 800, True),
        (10, "timer", 900, False), (14, "cancel", 950, False),
    ]  # fmt: skip
