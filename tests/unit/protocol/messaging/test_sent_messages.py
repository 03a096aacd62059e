"""Messages of 5.x senders: every limit with its code, and the properties that are stored."""

import contextlib
from collections.abc import Callable

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from latermq.message.ids import pack_host
from latermq.message.properties import decode_properties
from latermq.message.record_writer import encode_record
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.messages import message_of
from latermq.protocol.messaging.property_names import ROCKETMQ_NAMES, is_system_name
from latermq.protocol.messaging.refusals import CallRefused
from latermq.protocol.messaging.sent_messages import SendLimits, SentMessage, sent_message

NOW_MS = 1_700_000_000_000
MAX_BODY = 1000
LIMITS = SendLimits(MAX_BODY, 128, 16 * 1024, 4_096, 63, 3_600)
Change = Callable[[pb.Message], object]


def message(**system: object) -> pb.Message:
    one = pb.Message(body=b"hello", system_properties=pb.SystemProperties(message_id="id-1", **system))  # type: ignore[arg-type]
    one.topic.name = "orders"
    return one


def sent(one: pb.Message) -> SentMessage:
    return sent_message(one, "orders", "10.0.0.9", NOW_MS, LIMITS)


def test_a_plain_message_gets_its_id_its_producer_group_and_its_host() -> None:
    one = sent(message(tag="red", keys=["a", "b"], born_timestamp=Timestamp(seconds=1_600_000_000, nanos=7_000_000)))
    assert decode_properties(one.properties) == {
        "UNIQ_KEY": "id-1", "PGROUP": "orders", "__BORNHOST": "10.0.0.9", "TAGS": "red", "KEYS": "a b",
    }  # fmt: skip
    assert (one.body, one.sysflag, one.born_ms, one.kind) == (b"hello", 0, 1_600_000_000_007, pb.NORMAL)
    assert (one.message_group, one.delivery_ms, one.message_id) == ("", None, "id-1")


def test_the_types_follow_from_what_a_message_has() -> None:
    fifo = sent(message(message_group="g"))
    assert (fifo.kind, fifo.message_group) == (pb.FIFO, "g")
    assert decode_properties(fifo.properties)["__SHARDINGKEY"] == "g"
    delay = sent(message(message_group="g", delivery_timestamp=Timestamp(seconds=1_700_000_009)))
    assert (delay.kind, delay.delivery_ms) == (pb.DELAY, 1_700_000_009_000)
    assert decode_properties(delay.properties)["TIMER_DELIVER_MS"] == "1700000009000"
    half = sent(message(message_type=pb.TRANSACTION))
    assert (half.kind, half.sysflag) == (pb.TRANSACTION, 4)
    assert decode_properties(half.properties)["TRAN_MSG"] == "true"
    # The type in the request matters for transactions only, as in RocketMQ's proxy.
    assert sent(message(message_type=pb.DELAY)).kind == pb.NORMAL


def test_a_gzip_body_is_marked_as_compressed() -> None:
    assert sent(message(body_encoding=pb.GZIP)).sysflag == 1


@pytest.mark.parametrize("born", [Timestamp(), Timestamp(seconds=-5), Timestamp(seconds=1 << 62), Timestamp(nanos=-1)])
def test_a_message_without_a_valid_born_time_is_born_now(born: Timestamp) -> None:
    assert sent(message(born_timestamp=born)).born_ms == NOW_MS


def test_a_born_host_with_control_characters_is_replaced() -> None:
    properties = decode_properties(sent(message(born_host="a\x02TRAN_MSG\x01true")).properties)
    assert properties["__BORNHOST"] == "10.0.0.9"
    assert "TRAN_MSG" not in properties


def test_a_delivery_time_in_the_past_is_no_error() -> None:
    assert sent(message(delivery_timestamp=Timestamp(seconds=-100))).delivery_ms == 1


def _user(name: str, value: str = "x") -> Change:
    return lambda one: one.user_properties.update({name: value})


def _many(count: int, size: int) -> Change:
    return lambda one: one.user_properties.update({f"{number:04}": "v" * size for number in range(count)})


def _system(**fields: object) -> Change:
    return lambda one: one.system_properties.MergeFrom(pb.SystemProperties(**fields))  # type: ignore[arg-type]


def _recovery(seconds: int) -> Change:
    def change(one: pb.Message) -> None:
        one.system_properties.message_type = pb.TRANSACTION
        one.system_properties.orphaned_transaction_recovery_duration.seconds = seconds

    return change


def _body(body: bytes) -> Change:
    def change(one: pb.Message) -> None:
        one.body = body

    return change


ACCEPTED: dict[str, Change] = {
    "a body of the largest size": _body(bytes(MAX_BODY)),
    "128 properties": _many(128, 1),
    "16 KiB of properties": _many(16, 1020),
    "a group of 63 bytes": _system(message_group="g" * 63),
    "a recovery of an hour": _recovery(3600),
    "empty keys": _system(keys=["", "a", ""]),
    "only empty keys": _system(keys=["", ""]),
    "an empty tag": _system(tag=""),
    "an empty value": _user("name", ""),
    "text of any language": _user("имя", "値 😀"),
    "a priority of the enumeration's default": _system(message_type=pb.MESSAGE_TYPE_UNSPECIFIED),
}
REFUSED: dict[str, tuple[Change, pb.Code]] = {
    "an empty body": (_body(b""), pb.MESSAGE_BODY_EMPTY),
    "a large body": (_body(bytes(MAX_BODY + 1)), pb.MESSAGE_BODY_TOO_LARGE),
    "129 properties": (_many(129, 1), pb.MESSAGE_PROPERTIES_TOO_LARGE),
    "more than 16 KiB": (_many(16, 1021), pb.MESSAGE_PROPERTIES_TOO_LARGE),
    "a long tag": (_system(tag="t" * 16_385), pb.MESSAGE_PROPERTIES_TOO_LARGE),
    "long keys": (_system(keys=["k" * 9000, "k" * 9000]), pb.MESSAGE_PROPERTIES_TOO_LARGE),
    "millions of empty keys": (_system(keys=[""] * 5000), pb.MESSAGE_PROPERTIES_TOO_LARGE),
    "a long trace context": (_system(trace_context="c" * 32_000), pb.MESSAGE_PROPERTIES_TOO_LARGE),
    "a long born host": (_system(born_host="é" * 17_000), pb.MESSAGE_PROPERTIES_TOO_LARGE),
    "a long message id": (_system(message_id="i" * 40_000), pb.MESSAGE_PROPERTIES_TOO_LARGE),
    "a group of 64 bytes": (_system(message_group="é" * 32), pb.ILLEGAL_MESSAGE_GROUP),
    "a blank group": (_system(message_group=" "), pb.ILLEGAL_MESSAGE_GROUP),
    "a group with a control character": (_system(message_group="a\x9fb"), pb.ILLEGAL_MESSAGE_GROUP),
    "a blank tag": (_system(tag=" "), pb.ILLEGAL_MESSAGE_TAG),
    "a tag with a bar": (_system(tag="a|b"), pb.ILLEGAL_MESSAGE_TAG),
    "a tag with a control character": (_system(tag="a\x02b"), pb.ILLEGAL_MESSAGE_TAG),
    "a blank key": (_system(keys=["a", " "]), pb.ILLEGAL_MESSAGE_KEY),
    "a key with a control character": (_system(keys=["a\x01"]), pb.ILLEGAL_MESSAGE_KEY),
    "a property without a name": (_user(""), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "a control character in a name": (_user("a\nb"), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "a control character in a value": (_user("a", "\x02"), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "a name of the timers": (_user("TIMER_ANYTHING"), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "a name of the broker": (_user("LMQ_DUE_MS"), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "the sharding key as a property": (_user("__SHARDINGKEY"), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "an older delay property": (_user("__STARTDELIVERTIME"), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "a trace context with a control character": (_system(trace_context="\x01"), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "a blank message id": (_system(message_id=" "), pb.ILLEGAL_MESSAGE_ID),
    "a message id with a control character": (_system(message_id="a\x02b"), pb.ILLEGAL_MESSAGE_ID),
    "a delivery time after the year 9999": (
        _system(delivery_timestamp=Timestamp(seconds=253_402_300_800)), pb.ILLEGAL_DELIVERY_TIME,
    ),
    "a delivery time with negative nanoseconds": (
        _system(delivery_timestamp=Timestamp(seconds=1, nanos=-1)), pb.ILLEGAL_DELIVERY_TIME,
    ),
    "a recovery of more than an hour": (_recovery(3601), pb.BAD_REQUEST),
    "a priority": (_system(priority=0), pb.NOT_IMPLEMENTED),
    "the type PRIORITY": (_system(message_type=pb.PRIORITY), pb.NOT_IMPLEMENTED),
    "a lite topic": (_system(lite_topic="x"), pb.NOT_IMPLEMENTED),
    "the type LITE": (_system(message_type=pb.LITE), pb.NOT_IMPLEMENTED),
}  # fmt: skip


@pytest.mark.parametrize("case", ACCEPTED)
def test_limits_can_be_reached(case: str) -> None:
    one = message()
    ACCEPTED[case](one)
    decode_properties(sent(one).properties)


@pytest.mark.parametrize("case", REFUSED)
def test_limits_cannot_be_exceeded(case: str) -> None:
    change, code = REFUSED[case]
    one = message()
    change(one)
    with pytest.raises(CallRefused) as caught:
        sent(one)
    assert caught.value.status_code == code


def test_a_message_without_an_id_is_refused() -> None:
    one = message()
    one.system_properties.message_id = ""
    with pytest.raises(CallRefused) as caught:
        sent(one)
    assert caught.value.status_code == pb.ILLEGAL_MESSAGE_ID


@pytest.mark.parametrize("name", sorted(ROCKETMQ_NAMES))
def test_no_system_name_can_be_a_user_property(name: str) -> None:
    one = message()
    one.user_properties[name] = "x"
    with pytest.raises(CallRefused) as caught:
        sent(one)
    assert caught.value.status_code == pb.ILLEGAL_MESSAGE_PROPERTY_KEY


TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
VISIBLE = TEXT.filter(lambda text: not text.isspace())


@given(
    st.binary(min_size=1, max_size=50),
    st.dictionaries(TEXT.filter(lambda name: not is_system_name(name)), TEXT, max_size=4),
    VISIBLE.filter(lambda tag: "|" not in tag),
    st.lists(VISIBLE.filter(lambda key: " " not in key), max_size=3),
    st.none() | VISIBLE,
    st.none() | st.integers(1, 253_402_300_799_999),
)
def test_what_is_sent_is_received(
    body: bytes, user: dict[str, str], tag: str, keys: list[str], group: str | None, delivery_ms: int | None
) -> None:
    one = message(tag=tag, keys=keys, message_group=group)
    one.body = body
    one.user_properties.update(user)
    if delivery_ms is not None:
        one.system_properties.delivery_timestamp.FromMilliseconds(delivery_ms)
    stored = sent(one)
    record = encode_record(
        stored.topic.encode(), stored.body, stored.properties.encode(), queue_id=0, queue_offset=0, physical_offset=0,
        born_timestamp_ms=stored.born_ms, born_host=pack_host("10.0.0.9", 1), store_timestamp_ms=1,
        store_host=pack_host("10.0.0.1", 2), sysflag=stored.sysflag,
    )  # fmt: skip
    received = message_of(record)
    assert (received.topic.name, received.body, dict(received.user_properties)) == ("orders", body, user)
    system = received.system_properties
    assert (system.tag, list(system.keys), system.message_id) == (tag, keys, "id-1")
    assert (system.message_group if group else None) == group
    assert system.message_type == stored.kind
    if delivery_ms is not None:
        assert system.delivery_timestamp.ToMilliseconds() == delivery_ms


@given(st.binary(max_size=300))
def test_any_message_that_parses_is_accepted_or_refused(data: bytes) -> None:
    one = pb.Message()
    try:
        one.ParseFromString(data)
    except Exception:  # protobuf's DecodeError: not a message
        return
    with contextlib.suppress(CallRefused):
        sent(one).properties.encode()
