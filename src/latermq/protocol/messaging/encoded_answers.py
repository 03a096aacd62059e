"""The usual answers to sends and acknowledgements, encoded by hand in a third of the time that protobuf takes."""

from latermq.protocol.messaging import messaging_pb2 as pb

_OK = pb.Status(code=pb.OK, message="OK").SerializeToString()
_STATUS = b"\x0a%c%b" % (len(_OK), _OK)  # field 1 of an answer, and of the result of a send
_LAST_STATUS = b"\x1a%c%b" % (len(_OK), _OK)  # field 3 of the result of an acknowledgement
_SIZES = [bytes((size,)) for size in range(128)]


def stored_answer(message_id: str, offset: int) -> bytes:
    """Return the SendMessageResponse for one stored message."""
    name = message_id.encode()
    entry = b"%b\x12%b%b" % (_STATUS, _varint(len(name)), name)
    if offset:  # 0 is the default, which is not encoded
        entry = b"%b\x20%b" % (entry, _varint(offset))
    return b"%b\x12%b%b" % (_STATUS, _varint(len(entry)), entry)


def acknowledged_answer(message_id: str, receipt_handle: str) -> bytes:
    """Return the AckMessageResponse for one acknowledged message."""
    name, handle = message_id.encode(), receipt_handle.encode()
    start = b"\x0a%b%b" % (_varint(len(name)), name) if name else b""
    entry = b"%b\x12%b%b%b" % (start, _varint(len(handle)), handle, _LAST_STATUS)
    return b"%b\x12%b%b" % (_STATUS, _varint(len(entry)), entry)


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _SIZES[number]
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    start = bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80))
    return start + _varint(number >> 14)
