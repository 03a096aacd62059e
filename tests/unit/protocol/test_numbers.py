"""Every integer that comes from outside is one that Java's side can read: in headers, in bodies, in config files."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

import latermq.config_json
import latermq.protocol.remoting
from latermq.broker.tables.config_files import TOPICS_PATH, load_table
from latermq.config_json.groups import GroupJson
from latermq.errors import MalformedRequest
from latermq.model.topic import TopicTable
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import BINARY, JSON, Command, decode_frame, encode_frame
from latermq.protocol.remoting.json_body import decode_body, encode_body
from latermq.protocol.remoting.routes import RegisterBrokerBody, RegisterBrokerHeader
from latermq.protocol.remoting.topics import CreateTopicHeader
from latermq.store.files.memory_disk import MemoryDisk

# One more than a long, thirty digits, more digits than Python reads, and what is a number to JSON alone or to nobody.
ODD = [str(1 << 63), "1" + "0" * 30, "9" * 5000, "1e400", "-1e400", "NaN", "Infinity", "0x10", "1_000", " 1", "", "1.5"]


def structs() -> list[type[msgspec.Struct]]:
    found: dict[str, type[msgspec.Struct]] = {}
    for package in (latermq.protocol.remoting, latermq.config_json):
        for module_info in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{module_info.name}")
            for name, value in vars(module).items():
                if (
                    isinstance(value, type)
                    and issubclass(value, msgspec.Struct)
                    and value.__module__ == module.__name__
                ):
                    found[name] = value
    # What we write and never read: numbers of our own.
    return [value for name, value in found.items() if name != "_JsonReply"]


def unbounded(type_: inspect.Type, path: str, seen: set[Any]) -> Iterator[str]:
    """Every place below a type that takes a number without bounds, or anything at all."""
    if isinstance(type_, inspect.AnyType):
        yield f"{path} takes anything"
    elif isinstance(type_, inspect.IntType):
        if type_.ge is None or type_.le is None or type_.ge < -(1 << 63) or type_.le >= 1 << 63:
            yield f"{path} has no bounds"
    elif isinstance(type_, inspect.UnionType):
        for inner in type_.types:
            yield from unbounded(inner, path, seen)
    elif isinstance(type_, inspect.DictType):
        yield from unbounded(type_.key_type, f"{path}'s keys", seen)
        yield from unbounded(type_.value_type, f"{path}'s values", seen)
    elif isinstance(type_, inspect.CollectionType):
        yield from unbounded(type_.item_type, f"{path}'s items", seen)
    elif isinstance(type_, inspect.TupleType):
        for inner in type_.item_types:
            yield from unbounded(inner, path, seen)
    elif isinstance(type_, inspect.StructType) and type_.cls not in seen:
        seen.add(type_.cls)
        for field in type_.fields:
            # The fields of a frame that the frame may not say itself: they are set after it is read.
            if not (issubclass(type_.cls, Command) and field.name == "encoding"):
                yield from unbounded(field.type, f"{type_.cls.__name__}.{field.name}", seen)


@pytest.mark.parametrize("struct", structs(), ids=lambda struct: struct.__name__)
def test_every_integer_of_the_protocol_has_the_bounds_of_java(struct: type[msgspec.Struct]) -> None:
    assert list(unbounded(inspect.type_info(struct), struct.__name__, set())) == []


@pytest.mark.parametrize("encoding", [JSON, BINARY])
@pytest.mark.parametrize("odd", ODD)
def test_a_number_that_java_does_not_read_is_refused_in_a_header(odd: str, encoding: int) -> None:
    def asked(type_: type[msgspec.Struct], fields: dict[str, str]) -> None:
        frame = encode_frame(Request.UPDATE_AND_CREATE_TOPIC, 1, encoding=encoding, fields=fields)
        header_end = 8 + int.from_bytes(frame[5:8], "big")
        decode_frame(encoding, frame[8:header_end], b"").header(type_)

    topic = {"topic": "orders", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    broker = {"brokerName": "a", "brokerAddr": "h:1", "clusterName": "c", "brokerId": "0"}
    asked(CreateTopicHeader, topic | {"topicSysFlag": "7"})
    asked(RegisterBrokerHeader, broker | {"heartbeatTimeoutMillis": "7"})
    with pytest.raises(MalformedRequest):
        asked(CreateTopicHeader, topic | {"topicSysFlag": odd})
    with pytest.raises(MalformedRequest):
        asked(RegisterBrokerHeader, broker | {"heartbeatTimeoutMillis": odd})


@pytest.mark.parametrize("odd", ["yes", "2", "-1", "1e0", "", "tru"])
def test_a_boolean_is_true_or_false_and_no_other_text(odd: str) -> None:
    topic = {"topic": "orders", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    frame = encode_frame(17, 1, encoding=BINARY, fields=topic | {"order": odd})
    with pytest.raises(MalformedRequest):
        decode_frame(BINARY, frame[8:], b"").header(CreateTopicHeader)


@pytest.mark.parametrize("odd", [*ODD[:5], '"' + "9" * 30 + '"', '"1e400"', "NaN", "Infinity", "-Infinity"])
def test_a_number_that_java_does_not_read_is_refused_in_a_body(odd: str) -> None:
    bodies: list[tuple[str, type[msgspec.Struct]]] = [
        ('{"topicConfigSerializeWrapper":{"dataVersion":{"stateVersion":%s}}}', RegisterBrokerBody),
        (
            '{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{"topicName":"t","topicSysFlag":%s}}}}',
            RegisterBrokerBody,
        ),
        ('{"groupName":"g","retryMaxTimes":%s}', GroupJson),
    ]
    if not odd.startswith('"'):  # what is kept as it came may hold texts
        bodies.append(('{"groupName":"g","groupRetryPolicy":{"customizedRetryPolicy":{"next":[%s]}}}', GroupJson))
    for template, type_ in bodies:
        decode_body((template % "7").encode(), type_)
        with pytest.raises(MalformedRequest):
            decode_body((template % odd).encode(), type_)


def test_a_retry_policy_of_java_is_kept_as_it_came() -> None:
    policy = {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 5000, "max": 7_200_000, "multiplier": 2},
        "customizedRetryPolicy": {"next": [1000, 5000]},
    }
    group = decode_body(msgspec.json.encode({"groupName": "g", "groupRetryPolicy": policy}), GroupJson)
    assert msgspec.json.decode(encode_body(group))["groupRetryPolicy"] == policy


def test_numbers_that_an_earlier_release_kept_in_a_file_do_not_hinder_a_start() -> None:
    disk = MemoryDisk()
    disk.replace(
        TOPICS_PATH,
        b'{"topicConfigTable":{"t":{"topicName":"t","readQueueNums":3,"topicSysFlag":%d},"u":{"topicName":"u"}},'
        b'"dataVersion":{"counter":4}}' % 10**30,
    )
    table = load_table(disk, TOPICS_PATH, TopicTable)
    assert list(table.topics) == ["t", "u"]
    topic = table.topics["t"]
    assert (topic.read_queues, topic.system_flags, table.version.counter) == (3, 0, 4)
