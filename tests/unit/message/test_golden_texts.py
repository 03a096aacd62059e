"""What Java makes of texts: hash codes, tags codes, property strings, batch bodies and message ids."""

import ipaddress
from datetime import UTC, datetime
from typing import Any

import pytest

from latermq.clock import SimulatedClock
from latermq.message.batch import BatchMember, decode_batch, encode_batch
from latermq.message.ids import UniqueKeys, offset_message_id, pack_host, parse_offset_message_id
from latermq.message.properties import decode_properties, encode_properties
from latermq.message.tags import java_string_hash, tags_code
from tests.golden.files import golden_json

TEXTS = golden_json("texts.json")
IDS = golden_json("ids.json")
BATCH = golden_json("batch-body.json")


@pytest.mark.parametrize("known", TEXTS["hashes"], ids=lambda known: ascii(known["text"][:24]))
def test_a_text_hashes_as_in_java(known: dict[str, Any]) -> None:
    assert java_string_hash(known["text"]) == known["hash_code"]
    assert tags_code(known["text"]) == known["tags_code"]


@pytest.mark.parametrize("known", TEXTS["subscriptions"], ids=lambda known: ascii(known["expression"]))
def test_the_tags_of_a_subscription_have_the_codes_that_apache_gives_them(known: dict[str, Any]) -> None:
    assert {tags_code(tag) for tag in known["tags"]} == set(known["codes"])


@pytest.mark.parametrize("known", TEXTS["property_strings"], ids=lambda known: ascii(known["string"]))
def test_a_property_string_is_read_as_apache_reads_it(known: dict[str, Any]) -> None:
    assert decode_properties(known["string"]) == known["properties"]


@pytest.mark.parametrize("known", TEXTS["property_strings"], ids=lambda known: ascii(known["string"]))
def test_properties_survive_being_written_and_read(known: dict[str, Any]) -> None:
    assert decode_properties(encode_properties(known["properties"])) == known["properties"]


def test_a_batch_body_is_read_and_written_as_apache_does() -> None:
    body = bytes.fromhex(BATCH["body_hex"])
    members = [BatchMember(*member) for member in decode_batch(body)]
    assert members == [
        BatchMember(
            known["flag"],
            bytes.fromhex(known["body_hex"]),
            encode_properties({"TAGS": known["tags"], "KEYS": known["keys"]}).encode(),
        )
        for known in BATCH["messages"]
    ]
    assert encode_batch(members).hex() == body.hex()


@pytest.mark.parametrize("known", IDS["message_ids"], ids=lambda known: known["message_id"])
def test_an_offset_id_names_host_and_offset_as_apaches_does(known: dict[str, Any]) -> None:
    ip = str(ipaddress.ip_address(bytes.fromhex(known["ip_hex"])))
    assert offset_message_id(pack_host(ip, known["port"]), known["offset"]) == known["message_id"]
    assert parse_offset_message_id(known["message_id"]) == (ip, known["port"], known["offset"])


@pytest.mark.parametrize("known", IDS["unique_keys"], ids=lambda known: known["unique_key"])
def test_a_unique_key_of_java_is_made_of_the_parts_we_say_it_is(known: dict[str, Any]) -> None:
    key = bytes.fromhex(known["unique_key"])
    ip, pid, instance, elapsed, counter = key[:-12], key[-12:-10], key[-10:-6], key[-6:-2], key[-2:]
    assert (ip.hex(), instance.hex()) == (known["ip_hex"], known["instance_hex"])
    assert int.from_bytes(pid, "big") == known["pid"]
    assert int.from_bytes(counter, "big") == known["counter"]
    created_ms = known["month_start_ms"] + int.from_bytes(elapsed, "big")
    assert known["created_from_ms"] <= created_ms <= known["created_to_ms"]
    month_start = datetime.fromtimestamp(known["month_start_ms"] / 1000, UTC)
    assert (month_start.day, month_start.hour, month_start.minute, month_start.second) == (1, 0, 0, 0)


def test_our_unique_keys_have_the_length_of_javas() -> None:
    keys = UniqueKeys(SimulatedClock(), bytes((192, 168, 1, 10)), 1234, lambda count: bytes(count))
    ours = keys.next()
    assert len(ours) == len(IDS["unique_keys"][0]["unique_key"])
    assert ours.startswith("C0A8010A04D2")
    assert ours != keys.next()
