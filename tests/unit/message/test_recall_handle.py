"""Recall handles as Apache's class writes and reads them."""

import base64
from typing import Any

import pytest

from latermq.errors import IllegalOperation
from latermq.message.recall_handle import RecallHandle, decode_recall_handle, encode_recall_handle
from tests.golden.files import golden_json

GOLDEN = golden_json("ids.json")["recall_handles"]


def encoded(words: bytes) -> str:
    return base64.urlsafe_b64encode(words).decode()


@pytest.mark.parametrize("known", GOLDEN, ids=lambda known: ascii(known["topic"]))
def test_a_handle_is_written_and_read_as_apache_does(known: dict[str, Any]) -> None:
    handle = RecallHandle(known["topic"], known["broker_name"], int(known["timestamp"]), known["unique_key"])
    assert encode_recall_handle(*handle) == known["handle"]
    assert decode_recall_handle(known["handle"]) == handle


@pytest.mark.parametrize("known", GOLDEN, ids=lambda known: ascii(known["topic"]))
def test_a_handle_may_come_without_its_padding(known: dict[str, Any]) -> None:
    assert decode_recall_handle(known["handle"].rstrip("=")) == decode_recall_handle(known["handle"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        encoded(b"v1 a b c"),
        encoded(b"v1 a b c "),
        encoded(b"v2 a b c d"),
        "v1 a b c d",
        encoded(b"v1 a b 1 d") + "=",
        encoded(b"v1 a b 1 d")[:-1] + "+",
        encoded(b"v1 a b 1 d?") + "\n",
        encoded(b"v1 a b 1 \xff"),
        "djEgY",
        "==",
    ],
)
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(IllegalOperation, match="recall handle is invalid") as refused:
        decode_recall_handle(text)
    assert refused.value.code == 604


@pytest.mark.parametrize("timestamp", ["", "soon", "-5", "1" * 40, "²"])
def test_a_time_that_is_no_number_leaves_the_rest_readable(timestamp: str) -> None:
    handle = decode_recall_handle(encoded(f"v1 orders broker-a {timestamp} KEY".encode()))
    assert handle == RecallHandle("orders", "broker-a", -1, "KEY")


def test_a_unique_key_may_hold_spaces() -> None:
    handle = RecallHandle("orders", "broker-a", 1_700_000_000_000, "order 4711 unpaid")
    assert decode_recall_handle(encode_recall_handle(*handle)) == handle
