"""Receipt handles, offset infos and bit sets are those of Apache's classes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latermq.errors import MalformedRequest
from latermq.group.pop.handles import (
    MAX_BIT_SET_BYTES,
    ReceiptHandle,
    decode_bit_set,
    decode_handle,
    encode_bit_set,
    offset_infos,
    order_count_info,
    pop_retry_topic,
    topic_mark,
)
from latermq.group.pop.rows import offsets_of
from tests.golden.files import golden_json

POP = golden_json("pop.json")
INFOS = POP["infos"]
HANDLE = "4711 1700000004711 60000 3 0 broker-a 2 4716"


@pytest.mark.parametrize("known", POP["handles"], ids=lambda known: known["pop_ck"])
def test_a_handle_is_read_and_written_as_apache_does(known: dict[str, Any]) -> None:
    handle = ReceiptHandle(*(known[name] for name in ReceiptHandle._fields))
    assert handle.encode() == known["receipt_handle"]
    assert handle._replace(log_offset=None).encode() == known["pop_ck"]
    assert decode_handle(known["receipt_handle"]) == handle
    assert decode_handle(known["pop_ck"]) == handle._replace(log_offset=None)
    assert handle.is_in_order == known["is_in_order"]
    assert handle.real_topic(POP["group"], POP["topic"]) == known["real_topic"]
    assert topic_mark(known["real_topic"]) == known["mark"]


@pytest.mark.parametrize(
    "text",
    [
        "", " ", HANDLE[:-5], HANDLE + " 1 2", HANDLE.replace("0 broker", "3 broker"), HANDLE.replace("broker-a", ""),
        HANDLE.replace("60000", "-1"), HANDLE.replace("60000", "6_0"), HANDLE.replace("60000", "６０"),
        HANDLE.replace("60000", "9" * 19), HANDLE.replace("4716", "x"), HANDLE + " x", HANDLE + " ",
        HANDLE.replace(" ", "  "),
    ],
)  # fmt: skip
def test_a_text_that_is_not_a_handle_is_rejected(text: str) -> None:
    with pytest.raises(MalformedRequest):
        decode_handle(text)


@given(
    st.lists(
        st.sampled_from(
            ["0", "1", "2", "3", "0017", "9" * 18, "9" * 19, "", "-1", "+1", "1.0", "²", "٣", "broker-a", "\n"]
        )
        | st.text(max_size=2),
        min_size=6,
        max_size=10,
    ).map(" ".join)
)
def test_a_handle_is_valid_if_each_of_its_parts_is(text: str) -> None:
    parts = text.split(" ")
    numbers = [part for at, part in enumerate(parts) if at not in (4, 5)]
    is_valid = (
        len(parts) in (8, 9)
        and all(part.isascii() and part.isdigit() and len(part) <= 18 for part in numbers)
        and len(parts[3]) <= 9
        and len(parts[6]) <= 9
        and parts[4] in ("0", "1", "2")
        and parts[5] != ""
    )
    if is_valid:
        whole = [part if at in (4, 5) else int(part) for at, part in enumerate(parts)]
        assert decode_handle(text) == (*whole, None)[:9]
    else:
        with pytest.raises(MalformedRequest):
            decode_handle(text)


def test_two_pairs_of_group_and_topic_can_have_the_same_retry_topic_so_it_is_never_split() -> None:
    assert pop_retry_topic("a_b", "c") == pop_retry_topic("a", "b_c")
    handle = decode_handle(HANDLE.replace("3 0 broker", "3 1 broker"))
    assert handle.real_topic("a_b", "c") == handle.real_topic("a", "b_c") == "%RETRY%a_b_c"


def test_the_infos_of_an_answer_are_those_of_apache() -> None:
    marks = "012"
    starts, offsets = offset_infos((marks[i], i, [100 + i, 101 + i, 140 + i]) for i in range(3))
    assert starts.decode() == INFOS["start_offset_info"]
    assert offsets.decode() == INFOS["message_offset_info"]
    # Apache's text has a count of 2 for one message and a lowest count of 1: another one was delivered once before.
    counted = order_count_info((marks[i], i, [(101 + i, 2), (102 + i, 1)]) for i in range(3))
    assert (
        counted.replace("0 qo0%102 1;", "").replace("1 qo1%103 1;", "").replace("2 qo2%104 1;", "")
        == INFOS["order_count_info"]
    )


def test_a_message_that_was_never_delivered_has_no_count_of_its_own() -> None:
    assert order_count_info([("0", 3, [(7, 1), (8, 0)])]) == "0 qo3%7 1;0 3 0"


@pytest.mark.parametrize("known", POP["batch_acks"], ids=lambda known: str(known["bits"]))
def test_a_bit_set_is_read_and_written_as_apache_does(known: dict[str, Any]) -> None:
    count, windows = decode_bit_set(known["encoded"])
    assert count == len(known["bits"])
    assert [offset for first, mask in windows for offset in offsets_of(first, mask)] == known["bits"]
    assert encode_bit_set(known["bits"]) == known["encoded"]


@pytest.mark.parametrize("text", ["A", "####", "AQ=", "AQ==\n", "é"])
def test_a_text_that_is_not_a_bit_set_is_rejected(text: str) -> None:
    with pytest.raises(MalformedRequest):
        decode_bit_set(text)


def test_the_size_of_a_bit_set_is_bounded() -> None:
    count, windows = decode_bit_set(encode_bit_set(range(MAX_BIT_SET_BYTES * 8 - 8)))
    assert sum(mask.bit_count() for _, mask in windows) == count == MAX_BIT_SET_BYTES * 8 - 8
    with pytest.raises(MalformedRequest, match="characters"):
        decode_bit_set("A" * (MAX_BIT_SET_BYTES * 2))
    assert decode_bit_set(encode_bit_set([1, 500]), 2) == (2, ((0, 1 << 1), (480, 1 << 20)))
    with pytest.raises(MalformedRequest, match="at once"):
        decode_bit_set(encode_bit_set([1, 2, 3]), 2)
