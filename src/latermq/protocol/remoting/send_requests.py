"""Decoding of SEND_MESSAGE_V2 in the broker: the header and its fields in one step."""

import msgspec

from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import JSON, UNREADABLE, Command, HeaderType, decode_frame
from latermq.protocol.remoting.send import SendHeaderV2

_CODE = int(Request.SEND_MESSAGE_V2)
# Clients write `code` first. A header that begins differently is decoded in two steps, like all other requests.
_BEGINNING = b'{"code":%d,' % _CODE


class SendRequest(Command, kw_only=True, gc=False, rename={"json_fields": "extFields"}):
    """A send request with decoded fields. The encoded fields are not kept."""

    json_fields: SendHeaderV2  # type: ignore[assignment]

    @property
    def held_bytes(self) -> int:
        fields = self.json_fields
        names = len(fields.producerGroup) + len(fields.topic) + len(fields.defaultTopic)
        return len(self.body) + len(self.remark or "") + len(fields.properties) + names

    def header(self, type_: type[HeaderType]) -> HeaderType:
        assert type_ is SendHeaderV2, f"the fields of a send are no {type_.__name__}"
        return self.json_fields  # type: ignore[return-value]


_decode_send = msgspec.json.Decoder(SendRequest, strict=False).decode


def decode_request(encoding: int, header: bytes, body: bytes) -> Command:
    """Like `decode_frame`, but returns a well-formed send as a SendRequest, which saves 0.5 µs."""
    if header[: len(_BEGINNING)] == _BEGINNING and encoding == JSON:
        try:
            command = _decode_send(header)
        except UNREADABLE:  # `decode_frame` reports the error
            return decode_frame(encoding, header, body)
        if command.code == _CODE:  # a name may occur twice, and then the last value counts
            # A header could contain these names, but must not set these attributes.
            command.encoding, command.binary_fields, command.body = JSON, None, body
            return command
    return decode_frame(encoding, header, body)
