"""Records of RocketMQ's revive topic, written by its own classes: what was popped and not acknowledged is in flight."""

import json
from itertools import permutations

import pytest

from latermq.group.pop.apache_deliveries import ApacheDeliveries, Delivery, HeldRun, runs_of
from latermq.group.pop.table import MAX_VISIBLE_MS
from tests.golden.files import golden_json

GOLDEN = golden_json("pop.json")
RECORDS = [(record["tag"], record["body"].encode()) for record in GOLDEN["revive_records"]]
GROUP, TOPIC, START_MS = GOLDEN["group"], GOLDEN["topic"], 1_700_000_000_000
ORDERS, RETRIES = (GROUP, TOPIC, 2), (GROUP, f"%RETRY%{GROUP}_{TOPIC}", 2)


def test_what_has_a_checkpoint_and_no_acknowledgement_is_in_flight_in_whichever_order_they_are_read() -> None:
    for records in permutations(RECORDS):
        found = ApacheDeliveries(START_MS + 10)
        for tag, body in records:
            found.add(tag, body)
        # 10, 11 and 15 are acknowledged, singly and in a batch. Of 12, only the delivery before its change is.
        assert found.held(ORDERS) == [(12, Delivery(START_MS + 2, START_MS + 90_002, is_suspended=True))]
        assert found.held(RETRIES) == [(3, Delivery(START_MS + 1, START_MS + 30_001, is_suspended=False))]
        assert (found.end(ORDERS), found.end(RETRIES), found.unreadable) == (16, 4, 0)


def test_acknowledgements_before_the_first_checkpoint_that_counts_are_used() -> None:
    found = ApacheDeliveries(START_MS)
    for tag, body in RECORDS:
        found.add(tag, body, with_checkpoints=False)
    assert found.queues() == []
    found.add(*RECORDS[0])
    assert found.held(ORDERS) == []


def test_a_clock_that_was_ahead_holds_no_message_longer_than_its_invisible_time() -> None:
    found = ApacheDeliveries(START_MS - 86_400_000)
    found.add(*RECORDS[1])
    [(_, delivery)] = found.held(RETRIES)
    assert delivery.visible_ms == START_MS - 86_400_000 + 30_000


def test_a_checkpoint_without_distances_has_consecutive_messages() -> None:
    found = ApacheDeliveries(START_MS)
    fields = {"c": "g", "t": "t", "q": 0, "pt": START_MS, "it": 1 << 60, "so": 7, "n": 3, "bm": 2}
    found.add("ck", json.dumps(fields).encode())
    delivery = Delivery(START_MS, MAX_VISIBLE_MS, is_suspended=False)
    assert found.held(("g", "t", 0)) == [(7, delivery), (9, delivery)]


@pytest.mark.parametrize(("tag", "body"), [("ck", b"7-12"), ("ack", b"{}"), ("bAck", b"\xff"), ("", b""), ("x", b"{}")])
def test_records_that_cannot_be_read_are_counted(tag: str, body: bytes) -> None:
    found = ApacheDeliveries(START_MS)
    found.add(tag, body)
    assert (found.queues(), found.unreadable) == ([], 1)


def test_runs_do_not_overlap() -> None:
    one, other = Delivery(1, 2, is_suspended=False), Delivery(3, 4, is_suspended=False)
    held = [(5, one), (7, one), (8, other), (9, one), (40, one), (41, one)]
    assert list(runs_of(held)) == [
        HeldRun(5, 0b101, one), HeldRun(8, 1, other), HeldRun(9, 1 | 1 << 31, one), HeldRun(41, 1, one),
    ]  # fmt: skip
