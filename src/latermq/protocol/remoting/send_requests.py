"""SEND_MESSAGE_V2 as a broker reads it: the header and its fields decoded in one go."""

import msgspec

from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import JSON, UNREADABLE, Command, HeaderType, decode_frame
from latermq.protocol.remoting.send import SendHeaderV2

_CODE = int(Request.SEND_MESSAGE_V2)
# Clients write `code` first. A header that begins otherwise is read in two steps, as all others are.
_BEGINNING = b'{"code":%d,' % _CODE


class SendRequest(Command, kw_only=True, gc=False, rename={"json_fields": "extFields"}):
    """A send with its fields decoded; they are not kept as they came."""

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
    """The same as `decode_frame`, with every well-formed send as a SendRequest: 0.5 µs less than field by field."""
    if header[: len(_BEGINNING)] == _BEGINNING and encoding == JSON:
        try:
            command = _decode_send(header)
        except UNREADABLE:  # what is wrong with it is told where it always is
            return decode_frame(encoding, header, body)
        if command.code == _CODE:  # a name may come twice, and then the last one counts
            # Whatever the header says under these names: they are not its to say.
            command.encoding, command.binary_fields, command.body = JSON, None, body
            return command
    return decode_frame(encoding, header, body)
