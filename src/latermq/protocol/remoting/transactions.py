"""Requests about transactions: producers end them (37), and the broker asks producers that did not (39)."""

from msgspec import Struct

from latermq.config_json.numbers import Int32, Int64
from latermq.errors import MalformedRequest
from latermq.message.half import real_queue_id
from latermq.message.ids import pack_host
from latermq.message.names import HALF_TOPIC
from latermq.message.properties import REAL_TOPIC, UNIQUE_KEY, encode_properties
from latermq.message.record import Message
from latermq.message.record_writer import encode_record
from latermq.model.transaction import Decision, EndTransaction
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import FLAG_ONEWAY, encode_frame

# The values of `commitOrRollback`.
_DECISIONS = {0: Decision.UNKNOWN, 8: Decision.COMMIT, 12: Decision.ROLL_BACK}


class EndTransactionHeader(Struct, kw_only=True):
    """END_TRANSACTION (37). RocketMQ requires the offsets. Without them, `transactionId` names the half."""

    producerGroup: str
    commitOrRollback: Int32
    topic: str | None = None
    tranStateTableOffset: Int64 | None = None
    commitLogOffset: Int64 | None = None
    fromTransactionCheck: bool = False
    msgId: str | None = None
    transactionId: str | None = None


def read_end(header: EndTransactionHeader) -> EndTransaction:
    """Convert the header of a request that ends a transaction."""
    decision = _DECISIONS.get(header.commitOrRollback)
    if decision is None:
        raise MalformedRequest(
            f"commitOrRollback is {header.commitOrRollback}", hint="It is 8 to commit, 12 to roll back, or 0"
        )
    offsets = (header.commitLogOffset, header.tranStateTableOffset)
    if None in offsets and (offsets != (None, None) or not header.transactionId):
        raise MalformedRequest(
            "the request names no half message", hint="Set commitLogOffset and tranStateTableOffset, or transactionId"
        )
    return EndTransaction(header.producerGroup, decision, *offsets, header.transactionId or "", header.topic or "")


def encode_check(half: Message, broker_name: str) -> bytes:
    """Encode CHECK_TRANSACTION_STATE (39): the offsets of the half, and its record with the real topic and queue."""
    key = half.properties.get(UNIQUE_KEY, "")
    fields = {
        "topic": HALF_TOPIC,
        "tranStateTableOffset": str(half.queue_offset),
        "commitLogOffset": str(half.physical_offset),
        "msgId": key,
        "transactionId": key,
        "offsetMsgId": half.message_id,
        "bname": broker_name,
    }
    record = encode_record(
        half.properties.get(REAL_TOPIC, HALF_TOPIC).encode(),
        half.body,
        encode_properties(half.properties).encode(),
        queue_id=real_queue_id(half.properties),
        queue_offset=half.queue_offset,
        physical_offset=half.physical_offset,
        born_timestamp_ms=half.born_timestamp_ms,
        born_host=pack_host(*half.born_host),
        store_timestamp_ms=half.store_timestamp_ms,
        store_host=pack_host(*half.store_host),
        flag=half.flag,
        sysflag=half.sysflag,
        reconsume_times=half.reconsume_times,
    )
    return encode_frame(Request.CHECK_TRANSACTION_STATE, 0, flag=FLAG_ONEWAY, fields=fields, body=record)
