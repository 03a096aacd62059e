"""Signatures, against vectors of Apache's 5.5.0 classes."""

import random
from collections.abc import Callable

import pytest

from latermq.access.signatures import (
    GrpcCredential,
    bound_content,
    grpc_header,
    is_grpc_signed,
    is_recent,
    is_signed,
    parse_grpc_credential,
    sign,
    signed_content,
    signed_fields,
)

FIELDS = {
    "a": "pg", "b": "orders", "e": "0", "i": "KEYS\x01k\x02", "Z": "zed", "é": "ü",
    "AccessKey": "alice", "SecurityToken": "tok",
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "body", "signature"),
    [
        (FIELDS, b"hello", "K0vIvJ7DN34oLQoz+PVxS3oYChA="),
        ({"topic": "orders", "AccessKey": "alice"}, b"", "Q66kCjxVDqx8iFHQHm+IiwjB25s="),
    ],
)
def test_signatures_are_those_of_apaches_classes(fields: dict[str, str], body: bytes, signature: str) -> None:
    assert sign("s3cret", signed_content(fields, body)) == signature
    shuffled = dict(reversed(fields.items())) | {"Signature": signature}
    assert is_signed(["other", "s3cret"], signed_content(shuffled, body), signature)


def test_signed_fields_verify_and_any_change_does_not() -> None:
    fields = signed_fields("alice", "s3cret", {"topic": "orders"}, b"body")
    signature = fields["Signature"]
    assert is_signed(["s3cret"], signed_content(fields, b"body"), signature)
    changes: list[Callable[[], bool]] = [
        lambda: is_signed(["s3cret"], signed_content(fields, b"bodx"), signature),
        lambda: is_signed(["s3cret"], signed_content({**fields, "topic": "bills"}, b"body"), signature),
        lambda: is_signed(["s3cret"], signed_content({**fields, "extra": "1"}, b"body"), signature),
        lambda: is_signed(["s3crex"], signed_content(fields, b"body"), signature),
        lambda: is_signed(["s3cret"], signed_content(fields, b"body"), ""),
        lambda: is_signed(["s3cret"], signed_content(fields, b"body"), "ü\ud800"),
        lambda: is_signed([], signed_content(fields, b"body"), signature),
    ]
    assert not any(change() for change in changes)


def test_names_are_in_the_order_of_java() -> None:
    # U+1F600 is a pair of surrogates, which Java orders before U+FF01; Python does not.
    assert signed_content({"\uff01": "last", "\U0001f600": "first"}, b"") == b"firstlast"


def test_a_field_that_old_clients_add_after_signing_is_left_out() -> None:
    fields = {"topic": "orders", "_UNIQUE_KEY_QUERY": "true"}
    assert signed_content(fields, b"", version=399) == b"orders"  # V4_9_3
    assert signed_content(fields, b"", version=400) == b"trueorders"


def test_a_grpc_credential_is_parsed_and_verified() -> None:
    header = grpc_header("alice", "s3cret", "20261119T013812Z")
    credential = parse_grpc_credential(header)
    assert credential is not None
    assert credential.user == "alice"
    assert is_grpc_signed(["old", "s3cret"], "20261119T013812Z", credential.signature)
    assert is_grpc_signed(["s3cret"], "20261119T013812Z", credential.signature.lower())
    assert not is_grpc_signed(["s3cret"], "20261119T013813Z", credential.signature)
    assert not is_grpc_signed(["s3cret"], "20261119T013812Z", "not hex")


def test_a_region_after_the_user_of_a_grpc_credential_is_ignored() -> None:
    header = "MQv2-HMAC-SHA1 Credential=alice/eu/RocketMQ, SignedHeaders=x-mq-date-time, Signature=AB"
    assert parse_grpc_credential(header) == GrpcCredential("alice", "AB")


@pytest.mark.parametrize("header", ["", "Bearer token", "MQv2-HMAC-SHA1", "MQv2-HMAC-SHA1 Signature=AB", "x" * 9999])
def test_other_authorization_headers_name_nobody(header: str) -> None:
    assert parse_grpc_credential(header) is None


def test_the_age_of_a_call_is_checked_in_every_time_zone() -> None:
    now_ms = 1_795_052_292_000  # 2026-11-19T01:38:12Z
    assert is_recent("20261119T013812Z", now_ms, 60_000)
    assert is_recent("20261119T093812Z", now_ms, 60_000)  # local time at +08:00
    assert is_recent("20261118T200912Z", now_ms, 60_000)  # -05:30, a minute ahead
    assert not is_recent("20261119T013000Z", now_ms, 60_000)
    assert not is_recent("20261121T013812Z", now_ms, 60_000)
    assert not is_recent("yesterday", now_ms, 60_000)


# Bound signatures


def test_a_bound_content_belongs_to_one_request_only() -> None:
    """Requests whose values are alike when joined: all that RocketMQ's signature covers."""
    alike: list[tuple[int, dict[str, str], bytes]] = [
        (17, {"AccessKey": "ann", "topic": "orders"}, b"5:body"),
        (215, {"AccessKey": "ann", "topic": "orders"}, b"5:body"),
        (17, {"AccessKey": "ann", "name": "orders"}, b"5:body"),
        (17, {"AccessKey": "annor", "topic": "ders"}, b"5:body"),
        (17, {"AccessKey": "ann", "topic": "orders5:body"}, b""),
        (17, {"AccessKey": "ann", "topic": "ord", "topid": "ers"}, b"5:body"),
        (17, {"AccessKey": "ann", "topic": "orders", "z": ""}, b"5:body"),
        (17, {"AccessKey": "ann"}, b"orders5:body"),
        (17, {"AccessKey": "ann6:orders5:topic"}, b"5:body"),
        (17, {"AccessKey": "ann", "topic": "orders"}, b"5:bodx"),
    ]
    assert len({signed_content(fields, body) for _, fields, body in alike[:9]}) == 2
    assert len({bound_content(*request) for request in alike}) == len(alike)


def test_random_requests_with_the_same_bound_content_are_the_same() -> None:
    chance = random.Random(7)
    seen: dict[bytes, tuple[int, dict[str, str], bytes]] = {}
    for _ in range(20_000):
        text = "".join(chance.choices("1:2a ", k=chance.randrange(12)))
        cuts = sorted(chance.choices(range(len(text) + 1), k=4))
        fields = {text[: cuts[0]]: text[cuts[0] : cuts[1]], text[cuts[1] : cuts[2]]: text[cuts[2] : cuts[3]]}
        request = chance.choice((1, 11)), fields, text[cuts[3] :].encode()
        assert seen.setdefault(bound_content(*request), request) == request
    assert len(seen) > 5_000
