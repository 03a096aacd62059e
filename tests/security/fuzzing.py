"""Requests that no client sends: every code and every field of it with values that a stranger would try, by a seed."""

import random
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import inspect

from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import BINARY, FLAG_ONEWAY, encode_frame
from tests.security.shapes import Shape

# Names that requests may make, change and delete. What must stay as it is has other names.
DECOYS = ("decoy", "decoy-2", "%RETRY%decoys", "%DLQ%decoys", "decoys")
_OWN = ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "rmq_sys_timer_dlq", "TBW102", "DefaultCluster")
_BROKER = "broker-a"  # as which anybody may try to register
_PATHS = (
    "..", ".", "/", "../..", "../../outside/victim", "../outside", "../commitlog", "../config", "a/b", "/etc", "//",
    "decoy/../../commitlog", "%RETRY%../../outside", "..%2f..", "C:\\x", "~", "a\0b", "\0", ".hidden", "-rf", "*",
    "a b",
)  # fmt: skip
_CONTROLS = ("\x1b[2J\x1b[31m", "\x9b2J", "\x00\x01\x02", "x\r\n[info] forged", "\u202egnp", "\u2028", "\x7f", "\ufeff")
_NUMBERS = (
    "-1", "0", "1", "7", "65535", "65536", "2147483647", "2147483648", "-2147483648", "-2147483649",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "1" + "0" * 30, "9" * 400, "1e400", "-1e400",
    "NaN", "Infinity", "0x10", "1.5", "٣", " 1", "1_000", "+1", "true", "null",
)  # fmt: skip
_TEXTS = (
    "", " ", "\t", "x" * 127, "x" * 128, "x" * 255, "x" * 256, "x" * 5_000, "é" * 130, "𝕏", "{}", "[]", "{" * 900,
    "[" * 900, "a||b", "||" * 500, "TAGS\x01x\x02", "\x01\x02", "KEYS\x01" + "k " * 300, "DELAY\x0199", "1:2:3:4:5",
    "TIMER_DELIVER_MS\x019223372036854775807", "LMQ_TIMER_ID\x01-5", "CLUSTER\x01", "a = '" + "9" * 500 + "'",
    "a > 1 AND " * 200 + "b", "(" * 300, "NOT " * 300 + "a", "a LIKE '" + "%" * 300 + "x'", "+message.type=NORMAL",
)  # fmt: skip
_ODD_JSON: tuple[Any, ...] = (
    None, True, -1, 10**9, 2**63, -(2**63) - 1, 10**30, 1.5, 1e308, [], {}, [[[[]]]], {"a": {"b": {}}}, "", "..",
)  # fmt: skip
_DEEP = b"[" * 3_000 + b"]" * 3_000
_HUGE = b"1" + b"0" * 400
_BOMB = zlib.compress(b"\0" * 1_000_000)
READING = frozenset(
    one
    for one in Request
    if one.name.startswith(("GET_", "QUERY_", "SEARCH_", "VIEW_", "PULL_", "LITE_PULL", "LIST_", "COUNT_", "TIMER_"))
)
# What a server may do for minutes, or ask another client for: nobody waits for these.
MAX_BINARY_CODE = 32_767  # binary headers have 16 bits for it
MAX_FIELDS = 8


class Fuzzer:
    """An endless series of requests. The same seed gives the same ones."""

    def __init__(self, seed: int, shapes: Sequence[Shape], readable: Sequence[str]) -> None:
        """`readable` are true names, for requests that change nothing."""
        self._random = random.Random(seed)
        self._shapes = list(shapes)
        self._readable = tuple(readable)
        self._decoy_names = (*DECOYS, *_OWN)

    def frames(self) -> Iterator[bytes]:
        """Whole frames, with opaques that no other request has."""
        opaque = 1_000_000
        while True:
            opaque += 1
            yield self._frame(self._random.choice(self._shapes), opaque)

    def broken(self) -> bytes:
        """Bytes that are no frame, after which a connection is of no use."""
        choose = self._random
        frame = bytearray(self._frame(choose.choice(self._shapes), 1))
        match choose.randrange(5):
            case 0:
                header = {
                    "code": 310,
                    "extFields": {"b": choose.choice((msgspec.Raw(_DEEP), msgspec.Raw(b'"\\ud800"')))},
                }
                header[choose.choice(("version", "language", "flag", "body", "encoding"))] = choose.choice(_ODD_JSON)
                return _framed(header, b"")
            case 1:
                frame[choose.randrange(len(frame))] ^= 1 << choose.randrange(8)
            case 2:
                del frame[choose.randrange(len(frame)) :]
            case 3:
                frame[:8] = struct.pack(
                    ">II", choose.choice((0, 3, 1 << 24, 1 << 31, 0xFFFFFFFF)), choose.getrandbits(32)
                )
            case _:
                frame[12:12] = b"\xff\xfe\xed"
        return bytes(frame)

    def _frame(self, shape: Shape, opaque: int) -> bytes:
        choose = self._random
        names = (*self._decoy_names, *self._readable) if shape.code in READING else self._decoy_names
        if shape.code != Request.WIPE_WRITE_PERM_OF_BROKER:  # an operator's right
            names = (*names, _BROKER)
        fields = list(shape.fields)
        if len(fields) > 2 * MAX_FIELDS:
            fields = choose.sample(fields, choose.randrange(MAX_FIELDS))
        odd = choose.sample(range(len(fields)), min(len(fields), choose.choice((0, 1, 1, 1, 2, 3))))
        texts: dict[str, str] = {}
        for at, field in enumerate(fields):
            if at in odd:
                if choose.random() < 0.15:
                    continue
                texts[field.encode_name] = self._odd_text()
            elif field.required or choose.random() < 0.5:
                texts[field.encode_name] = self._text_of(field.type, names)
        body = self._body(shape, names)
        flag = FLAG_ONEWAY if choose.random() < 0.02 else 0
        if choose.random() < 0.3 and shape.code <= MAX_BINARY_CODE:
            return encode_frame(shape.code, opaque, flag=flag, encoding=BINARY, fields=texts, body=body)
        if choose.random() < 0.8:
            return encode_frame(shape.code, opaque, flag=flag, fields=texts, body=body)
        return self._json_frame(shape.code, opaque, texts, body)

    def _json_frame(self, code: int, opaque: int, texts: dict[str, str], body: bytes) -> bytes:
        """A header in JSON whose fields are not texts."""
        choose = self._random
        header: dict[str, Any] = {"code": code, "opaque": opaque, "flag": 0, "language": "JAVA", "version": 1}
        raw: dict[str, Any] = dict(texts)
        for name in list(raw):
            if choose.random() < 0.3:
                raw[name] = choose.choice((*_ODD_JSON, msgspec.Raw(_HUGE)))
        header["extFields"] = choose.choice((raw, raw, raw, raw, None, {}))
        return _framed(header, body)

    def _odd_text(self) -> str:
        return self._random.choice(self._random.choice((_PATHS, _CONTROLS, _NUMBERS, _TEXTS)))

    def _text_of(self, type_: inspect.Type, names: Sequence[str]) -> str:
        """A value that this field may well have."""
        choose = self._random
        match type_:
            case inspect.UnionType(types=types):
                return self._text_of(
                    choose.choice([one for one in types if not isinstance(one, inspect.NoneType)]), names
                )
            case inspect.IntType():
                return str(choose.choice((0, 0, 0, 1, 2, 3, 8, 32, 100, 4_000)))
            case inspect.BoolType():
                return choose.choice(("true", "false"))
            case _:
                return choose.choice(names)

    def _body(self, shape: Shape, names: Sequence[str]) -> bytes:
        choose = self._random
        if shape.bodies and choose.random() < 0.95:
            encoded = msgspec.json.encode(self._json_of(choose.choice(shape.bodies), names, 0.15, 4))
            return zlib.compress(encoded) if choose.random() < 0.05 else encoded
        match choose.randrange(12):
            case 0:
                return choose.randbytes(choose.randrange(200))
            case 1:
                return _DEEP
            case 2:
                return b'{"a":' * 2_000
            case 3:
                return _BOMB
            case 4:
                return msgspec.json.encode(choose.choice(_ODD_JSON))
            case 5:
                return self._odd_text().encode()
            case _:
                return b"" if choose.random() < 0.5 else b"body"

    def _json_of(self, type_: inspect.Type, names: Sequence[str], oddness: float, depth: int) -> Any:
        choose = self._random
        if choose.random() < oddness:
            return choose.choice((*_ODD_JSON, self._odd_text(), msgspec.Raw(_DEEP), msgspec.Raw(_HUGE)))
        match type_:
            case inspect.StructType(fields=fields):
                return {
                    field.encode_name: self._json_of(field.type, names, oddness, depth - 1)
                    for field in fields
                    if field.required or choose.random() < 0.6
                }
            case (
                inspect.ListType(item_type=item)
                | inspect.SetType(item_type=item)
                | inspect.VarTupleType(item_type=item)
            ):
                return [
                    self._json_of(item, names, oddness, depth - 1) for _ in range(choose.randrange(3) if depth else 0)
                ]
            case inspect.DictType(value_type=value):
                names_of = [choose.choice(names) for _ in range(choose.randrange(3) if depth else 0)]
                return {name: self._json_of(value, names, oddness, depth - 1) for name in names_of}
            case inspect.IntType():
                return choose.choice((0, 0, 1, 4, 6, 8, 16, 1_700_000_000_000))
            case inspect.BoolType():
                return choose.random() < 0.5
            case inspect.UnionType(types=types):
                return self._json_of(choose.choice(types), names, 0, depth)
            case inspect.NoneType():
                return None
            case _:
                return choose.choice(names)


def _framed(header: dict[str, Any], body: bytes) -> bytes:
    encoded = msgspec.json.encode(header)
    return struct.pack(">II", 4 + len(encoded) + len(body), len(encoded)) + encoded + body
