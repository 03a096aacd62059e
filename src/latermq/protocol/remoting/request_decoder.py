"""Decodes requests. Those that come in runs have their header fields decoded together with the header."""

from collections.abc import Callable

import msgspec

from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import JSON, UNREADABLE, Command, DecodedRequest, decode_frame
from latermq.protocol.remoting.pop import AckRequest
from latermq.protocol.remoting.send import SendRequest

_TYPES: dict[Request, type[Command]] = {Request.SEND_MESSAGE_V2: SendRequest, Request.ACK_MESSAGE: AckRequest}
# Clients write `code` first. A header that begins differently is decoded in two steps, like all other requests.
_BY_START: dict[bytes, tuple[int, Callable[[bytes], Command]]] = {
    b'{"code":%d' % code: (int(code), msgspec.json.Decoder(type_, strict=False).decode)
    for code, type_ in _TYPES.items()
}
_LONGEST_START = max(map(len, _BY_START)) + 1


def decode_request(encoding: int, header: bytes, body: bytes) -> Command:
    """Like `decode_frame`, but returns a well-formed request of these types as such, which saves 0.5 µs."""
    typed = _BY_START.get(header[: header.find(b",", 0, _LONGEST_START)])
    if typed is not None and encoding == JSON:
        code, decode = typed
        try:
            command = decode(header)
        except UNREADABLE:  # `decode_frame` reports the error
            return decode_frame(encoding, header, body)
        if command.code == code:  # a name may occur twice, and then the last value counts
            # A header could contain these names, but must not set these attributes.
            command.encoding, command.binary_fields, command.body = JSON, None, body
            return command
    return decode_frame(encoding, header, body)


def decode_signed_request(encoding: int, header: bytes, body: bytes) -> Command:
    """Like `decode_request`, and keeps the encoded fields, which signatures cover completely."""
    command = decode_request(encoding, header, body)
    if isinstance(command, DecodedRequest):
        command.encoded_header = header
    return command
