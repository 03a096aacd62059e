"""Remoting frames that Apache RocketMQ encoded, in both header encodings."""

import json
from typing import Any

import pytest

from latermq.protocol.remoting.clients import HeartbeatData
from latermq.protocol.remoting.frames import BINARY, JSON, LANGUAGE, Command, FrameReader, encode_frame
from latermq.protocol.remoting.json_body import decode_body
from latermq.protocol.remoting.routes import TopicRoute
from tests.golden.files import golden_json

Golden = dict[str, Any]

FRAMES: list[Golden] = golden_json("frames.json")
ENCODINGS = {"JSON": JSON, "ROCKETMQ": BINARY}
BINARY_FRAMES = [golden for golden in FRAMES if golden["serialize_type"] == "ROCKETMQ"]
JSON_FRAMES = [golden for golden in FRAMES if golden["serialize_type"] == "JSON"]
LANGUAGE_AT = 8 + 2  # behind the two lengths and the code


def name(golden: Golden) -> str:
    return f"{golden['name']} {golden['serialize_type']}"


def read(frame: bytes) -> Command:
    [command] = FrameReader().feed(frame)
    return command


def known_fields(golden: Golden) -> dict[str, str]:
    """Java reads a field without letters from a binary header as null; what the sender meant is the empty text."""
    return {field: value or "" for field, value in (golden["ext_fields"] or {}).items()}


@pytest.mark.parametrize("golden", FRAMES, ids=name)
def test_a_frame_of_apache_is_understood(golden: Golden) -> None:
    command = read(bytes.fromhex(golden["frame_hex"]))
    assert command.encoding == ENCODINGS[golden["serialize_type"]]
    assert (command.code, command.opaque, command.flag) == (golden["code"], golden["opaque"], golden["flag"])
    assert (command.language, command.version) == (golden["language"], golden["version"])
    assert command.remark == golden["remark"]
    assert command.text_fields() == known_fields(golden)
    assert command.body.hex() == golden["body_hex"]
    assert command.is_oneway == (golden["name"] == "one-way offset commit")


@pytest.mark.parametrize("golden", BINARY_FRAMES, ids=name)
def test_a_binary_frame_is_the_bytes_that_apache_wrote(golden: Golden) -> None:
    frame = bytes.fromhex(golden["frame_hex"])
    command = read(frame)
    written = encode_frame(
        command.code,
        command.opaque,
        flag=command.flag,
        encoding=BINARY,
        fields=command.text_fields(),  # in the order of the frame
        remark=command.remark,
        body=command.body,
    )
    # The language is the one thing that we say differently.
    expected = bytearray(frame)
    expected[LANGUAGE_AT] = written[LANGUAGE_AT]
    assert written.hex() == expected.hex()


@pytest.mark.parametrize("golden", JSON_FRAMES, ids=name)
def test_a_json_frame_says_what_apache_says(golden: Golden) -> None:
    frame = bytes.fromhex(golden["frame_hex"])
    command = read(frame)
    written = encode_frame(
        command.code,
        command.opaque,
        flag=command.flag,
        encoding=JSON,
        fields=command.text_fields() or None,
        remark=command.remark,
        body=command.body,
    )
    assert json_header(written) == json_header(frame) | {"language": LANGUAGE}
    assert written.endswith(command.body)


def json_header(frame: bytes) -> dict[str, Any]:
    size = int.from_bytes(frame[4:8], "big")
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header: dict[str, Any] = json.loads(frame[8 : 8 + size])
    return header


def body_of(golden_name: str) -> bytes:
    return bytes.fromhex(next(golden["body_hex"] for golden in FRAMES if golden["name"] == golden_name))


def test_a_heartbeat_of_apache_is_understood() -> None:
    heartbeat = decode_body(body_of("heartbeat"), HeartbeatData)
    assert heartbeat.clientID == "192.168.1.10@1234#1"
    assert [producer.groupName for producer in heartbeat.producerDataSet] == ["golden-producers"]
    [consumer] = heartbeat.consumerDataSet
    assert (consumer.groupName, consumer.messageModel) == ("golden-group", "CLUSTERING")
    [subscription] = consumer.subscriptionDataSet
    assert (subscription.topic, subscription.subString) == ("TopicGolden", "TagA || TagB")
    assert sorted(subscription.codeSet) == [2598919, 2598920]


def test_a_route_of_apache_is_understood_though_its_broker_ids_have_no_quotes() -> None:
    route = decode_body(body_of("route answer"), TopicRoute)
    [broker] = route.brokerDatas
    assert (broker.cluster, broker.brokerName) == ("DefaultCluster", "broker-a")
    assert broker.brokerAddrs == {0: "127.0.0.1:10911"}
    [queues] = route.queueDatas
    assert (queues.readQueueNums, queues.writeQueueNums, queues.perm) == (8, 8, 6)


def test_frames_are_cut_out_of_a_stream_wherever_it_breaks() -> None:
    frames = [bytes.fromhex(golden["frame_hex"]) for golden in FRAMES]
    stream = b"".join(frames)
    reader = FrameReader()
    commands = [command for at in range(0, len(stream), 97) for command in reader.feed(stream[at : at + 97])]
    assert reader.broken is None
    assert commands == [read(frame) for frame in frames]
