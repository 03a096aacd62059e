"""Signed requests, and a connection that only remembers what the access check does to it."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec
from msgspec import inspect

from latermq.access.resources import Access
from latermq.access.signatures import signed_fields
from latermq.access.users import INNER_USER
from latermq.client.session.credentials import Credentials
from latermq.errors import LaterMQError
from latermq.protocol.remoting.frames import JSON, Command, FrameReader, encode_frame
from latermq.protocol.remoting.request_decoder import decode_signed_request
from latermq.server.remoting.connection import CloseReason, Connection
from latermq.server.remoting.endpoints import Endpoint, RequestTable

DENIALS = ("username cannot be null.", "check signature failed.", "no matched policies.", "the decision is deny.")
SECRETS = {"root": "r00t", "alice": "s3cret", "bob": "b0b", "operator": "0perator"}


class CheckedConnection:
    """The part of a connection that the access check uses."""

    def __init__(self, host: str = "10.0.0.7", *, is_encrypted: bool = True) -> None:
        self.peer = (host, 40_000)
        self.peer_name = f"{host}:40000"
        self.is_encrypted = is_encrypted
        self.verdicts: object | None = None
        self.attachment: object | None = None
        self.failed_attempts = 0
        self.certificate_user = ""
        self.pauses_s: list[float] = []
        self.close_reason: CloseReason | None = None
        self.sent: list[bytes] = []

    def slow_down(self, pause_s: float) -> None:
        self.pauses_s.append(pause_s)

    def close_soon(self, reason: CloseReason) -> None:
        self.close_reason = reason

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)


def signed(
    user: str, fields: Mapping[str, str], body: bytes = b"", secret: str = "", *, code: int = 0
) -> dict[str, str]:
    """The fields of a request with the signature of a user. That of the inner user covers the code."""
    if user == INNER_USER:
        return Credentials(user, secret).signed(fields, body, code)
    return signed_fields(user, secret or SECRETS[user], fields, body)


def as_received(code: int, fields: Mapping[str, str], body: bytes = b"", encoding: int = JSON) -> Command:
    """A request as a server decodes it."""
    frame = encode_frame(code, 1, fields=fields, body=body, encoding=encoding)
    [command] = FrameReader(decode=decode_signed_request).feed(frame)
    return command


def sample(type_: inspect.Type) -> Any:
    """The shortest value of a type."""
    match type_:
        case inspect.StructType():
            return {field.encode_name: sample(field.type) for field in type_.fields if field.required}
        case inspect.StrType():
            return "orders"
        case inspect.ListType():
            return []
        case inspect.DictType():
            return {}
        case _:
            return 1


def sample_of(endpoint: Endpoint) -> tuple[dict[str, str], bytes]:
    """The fields and the body of a request that its handler could be called with."""
    fields: dict[str, str] = {}
    body = b""
    if endpoint.header is not None:
        header = sample(inspect.type_info(endpoint.header))
        fields = {name: str(value) for name, value in header.items()}
    elif endpoint.body is not None:
        body = msgspec.json.encode(sample(inspect.type_info(endpoint.body)))
    return fields, body


def answer(
    table: RequestTable,
    endpoint: Endpoint,
    fields: Mapping[str, str],
    body: bytes = b"",
    encoding: int = JSON,
    connection: CheckedConnection | None = None,
) -> str:
    """The remark of a refusal, or nothing if the request got to its handler."""
    connection = connection or CheckedConnection()
    command = as_received(endpoint.code, fields, body, encoding)
    try:
        table.answer(endpoint, cast(Connection, connection), command)
    except LaterMQError as error:
        return error.remark
    except (AttributeError, AssertionError):  # a handler asks more of a connection than this one has
        return ""
    return ""


def touched(endpoint: Endpoint, fields: dict[str, str], body: bytes) -> list[Access] | None:
    """What a request touches; None if that cannot be read from it."""
    command = as_received(endpoint.code, fields, body)
    if endpoint.header is not None:
        content: object = command.header(endpoint.header)
    else:
        content = None if endpoint.body is None else msgspec.json.decode(body, type=endpoint.body)
    try:
        return list(endpoint.accesses(command, content))
    except LaterMQError:
        return None
