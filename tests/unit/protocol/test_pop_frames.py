"""Frames of POP that are written from templates equal those that are encoded field by field."""

import pytest

from latermq.group.pop.handles import order_count_info
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.pop import (
    AckHeader,
    AckRequest,
    encode_ack_reply,
    encode_batch_ack_reply,
    encode_pop_reply,
)
from latermq.protocol.remoting.request_decoder import decode_request

OPAQUES = [0, 7, (1 << 31) - 1, -(1 << 31)]
FIELDS = b'"extFields":{"consumerGroup":"g","topic":"t","queueId":"1","extraInfo":"x","offset":"9"}'


@pytest.mark.parametrize("opaque", OPAQUES)
def test_the_reply_to_an_acknowledgement_is_that_of_its_fields(opaque: int) -> None:
    request = Command(Request.ACK_MESSAGE, opaque=opaque)
    assert encode_ack_reply(request) == encode_response(request, fields={"outcome": "done"})
    assert encode_batch_ack_reply(request, 31) == encode_response(request, fields={"acknowledged": "31"})


@pytest.mark.parametrize("opaque", OPAQUES)
@pytest.mark.parametrize("counts", [None, order_count_info([("0", 3, [(7, 1), (8, 0)])])])
def test_the_reply_to_a_pop_is_that_of_its_fields(opaque: int, counts: str | None) -> None:
    fields = {
        "popTime": "1800000000000", "invisibleTime": "60000", "reviveQid": "999", "restNum": "5",
        "startOffsetInfo": "0 3 7", "msgOffsetInfo": "0 3 7,8",
    }  # fmt: skip
    reply = encode_pop_reply(
        opaque,
        pop_ms=1_800_000_000_000,
        invisible_ms=60_000,
        revive_queue_id=999,
        rest=5,
        starts=b"0 3 7",
        offsets=b"0 3 7,8",
        order_counts=counts,
        body=b"records",
    )
    if counts is not None:
        fields["orderCountInfo"] = counts
    request = Command(Request.POP_MESSAGE, opaque=opaque)
    assert reply == encode_response(request, fields=fields, body=b"records")


def test_an_acknowledgement_is_decoded_with_its_fields() -> None:
    request = decode_request(0, b'{"code":200051,"opaque":5,%b}' % FIELDS, b"")
    assert isinstance(request, AckRequest)
    assert (request.opaque, request.json_fields.offset, request.held_bytes) == (5, 9, 3)
    assert request.header(AckHeader) is request.json_fields


@pytest.mark.parametrize(
    "header",
    [
        b'{"opaque":5,"code":200051,%b}' % FIELDS,  # the code is not the first
        b'{"code":200051,"opaque":5,%b,"code":200051}' % FIELDS.replace(b'"9"', b'"nine"'),
        b'{"code":200051,"code":34,"opaque":5,%b}' % FIELDS,
    ],
)
def test_a_header_that_is_not_the_usual_one_is_decoded_in_two_steps(header: bytes) -> None:
    assert type(decode_request(0, header, b"")) is Command
