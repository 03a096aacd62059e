"""Frames: both header encodings round-trip, the reader does not care how bytes arrive, and nothing makes it raise."""

import contextlib
import itertools
import struct
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from latermq.errors import MalformedRequest
from latermq.protocol.remoting.frames import (
    BINARY,
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    JSON,
    LANGUAGE,
    MAX_FRAME_BYTES,
    VERSION,
    Command,
    FrameReader,
    encode_frame,
    encode_response,
)

ENCODINGS = st.sampled_from((JSON, BINARY))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
FIELDS = st.dictionaries(TEXT, TEXT, max_size=6)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT16 = st.integers(0, (1 << 15) - 1)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    return encode_frame(
        draw(INT16),
        draw(INT32),
        flag=draw(st.sampled_from((0, FLAG_RESPONSE, FLAG_ONEWAY))),
        encoding=draw(ENCODINGS),
        fields=draw(FIELDS),
        remark=draw(st.none() | TEXT.filter(bool)),
        body=draw(st.binary(max_size=200)),
    )


def raw_frame(header: bytes, body: bytes = b"", encoding: int = JSON) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), encoding << 24 | len(header)) + header + body


def read_one(data: bytes) -> Command:
    reader = FrameReader()
    (command,) = reader.feed(data)
    assert reader.broken is None
    assert reader.held_bytes == 0
    return command


def feed_in_chunks(data: bytes, cuts: Sequence[int]) -> tuple[list[Command], FrameReader]:
    reader = FrameReader()
    commands: list[Command] = []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        commands += reader.feed(data[start:end])
    return commands, reader


@given(INT16, INT32, ENCODINGS, FIELDS, st.none() | TEXT.filter(bool), st.binary(max_size=200))
def test_a_command_is_read_as_it_was_written(
    code: int, opaque: int, encoding: int, fields: dict[str, str], remark: str | None, body: bytes
) -> None:
    command = read_one(encode_frame(code, opaque, encoding=encoding, fields=fields, remark=remark, body=body))
    assert (command.code, command.opaque, command.flag, command.encoding) == (code, opaque, 0, encoding)
    assert (command.remark, command.body) == (remark, body)
    assert (command.language, command.version) == (LANGUAGE, VERSION)
    assert command.text_fields() == fields


@given(frames())
def test_a_response_comes_in_the_encoding_of_its_request(frame: bytes) -> None:
    request = read_one(frame)
    response = read_one(encode_response(request, 17, fields={"a": "1"}, remark="no", body=b"x"))
    assert response.is_response
    assert (response.opaque, response.encoding, response.code) == (request.opaque, request.encoding, 17)
    assert response.text_fields() == {"a": "1"}


@given(st.lists(frames(), max_size=5), st.lists(st.integers(0, 5000), max_size=12))
def test_the_same_commands_come_out_however_the_bytes_are_cut(wanted: list[bytes], cuts: list[int]) -> None:
    commands, reader = feed_in_chunks(b"".join(wanted), cuts)
    assert reader.broken is None
    assert reader.held_bytes == 0
    assert commands == [read_one(frame) for frame in wanted]


@given(st.lists(frames(), min_size=1, max_size=3))
def test_the_same_commands_come_out_byte_by_byte(wanted: list[bytes]) -> None:
    data = b"".join(wanted)
    commands, reader = feed_in_chunks(data, range(len(data)))
    assert reader.broken is None
    assert commands == [read_one(frame) for frame in wanted]


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=4))
@example(raw_frame(b'{"code":1,"x":' + b"[" * 100_000), [])
@example(raw_frame(b'{"code":1,"extFields":' + b"[" * 100_000), [])
@example(raw_frame(b'{"code":99999999999999999999999999}'), [])
@example(raw_frame(b'{"code":1,"remark":"\xff"}'), [])
def test_no_bytes_make_the_reader_raise(data: bytes, cuts: list[int]) -> None:
    commands, reader = feed_in_chunks(data, cuts)
    if reader.broken is not None:
        assert reader.broken.message
        assert reader.feed(encode_frame(105, 1)) == []
    for command in commands:
        look_inside(command)


@given(ENCODINGS | st.integers(0, 255), st.binary(max_size=200), st.binary(max_size=20))
def test_no_header_makes_the_reader_raise(encoding: int, header: bytes, body: bytes) -> None:
    reader = FrameReader()
    for command in reader.feed(raw_frame(header, body, encoding)):
        look_inside(command)


@given(frames(), st.data())
def test_no_damage_to_a_frame_makes_the_reader_raise(frame: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(frame) - 1))
    damaged = frame[:at] + bytes([data.draw(st.integers(0, 255))]) + frame[at + 1 :]
    for command in FrameReader().feed(damaged + frame):
        look_inside(command)


class SomeHeader(msgspec.Struct):
    topic: str = ""
    queueId: int = 0


def look_inside(command: Command) -> None:
    """Whatever a command holds, its fields are read or refused; anything else fails the test."""
    for read in (command.text_fields, lambda: command.header(SomeHeader)):
        with contextlib.suppress(MalformedRequest):
            read()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack(">II", MAX_FRAME_BYTES + 1, 10), "the limit is"),
        (struct.pack(">II", 0xFFFFFFFF, 10), "the limit is"),
        (struct.pack(">II", 3, 0), "a frame of 3 bytes"),
        (struct.pack(">II", 10, 7), "cannot have a header of 7"),
        (raw_frame(b"{}", encoding=7), "header encoding 7"),
        (raw_frame(b"{}"), "cannot parse the JSON header"),
        (raw_frame(b"", encoding=BINARY), "cannot parse the binary header"),
        (raw_frame(struct.pack(">hBhiiii", 1, 0, 0, 1, 0, 0, 9), encoding=BINARY), "do not add up"),
        (raw_frame(struct.pack(">hBhiiii", 1, 0, 0, 1, 0, -4, 0), encoding=BINARY), "do not add up"),
        (raw_frame(struct.pack(">hBhiiiiHI", 1, 0, 0, 1, 0, 0, 6, 0, 1), encoding=BINARY), "past its end"),
    ],
)
def test_a_stream_that_cannot_be_followed_says_why(data: bytes, reason: str) -> None:
    good = encode_frame(105, 1)
    reader = FrameReader()
    assert [command.code for command in reader.feed(good + data + good)] == [105]
    assert reader.broken is not None
    assert reason in reader.broken.message


def test_a_frame_of_the_largest_size_is_taken_and_held_no_longer_than_needed() -> None:
    overhead = len(encode_frame(1, 1)) - 4
    frame = encode_frame(1, 1, body=bytes(MAX_FRAME_BYTES - overhead))
    reader = FrameReader()
    assert reader.feed(frame[:-1]) == []
    assert reader.held_bytes == len(frame) - 1
    (command,) = reader.feed(frame[-1:])
    assert len(command.body) == MAX_FRAME_BYTES - overhead
    assert reader.held_bytes == 0


def test_fields_of_null_are_no_fields() -> None:
    command = read_one(raw_frame(b'{"code":105,"opaque":1,"extFields":null}'))
    assert command.text_fields() == {}


def test_fields_that_are_no_text_are_refused_when_they_are_looked_at() -> None:
    command = read_one(raw_frame(b'{"code":105,"extFields":{"topic":"\xff"}}'))
    with pytest.raises(MalformedRequest, match="request 105"):
        command.header(SomeHeader)
