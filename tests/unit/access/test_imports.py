"""Users and entries from RocketMQ's files: what they become, and what is left out."""

import json

import pytest
import yaml

from latermq.access.imports import Imported, from_plain_acl, from_records
from latermq.access.resources import PUB, SUB, Kind
from latermq.cli.access.plain_yaml import PlainLoader

# The sample that RocketMQ 4.9 is distributed with, and accounts that need a closer look.
PLAIN = """
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*
accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      - groupA=DENY
      - groupB=PUB|SUB
      - groupC=SUB
  - accessKey: rocketmq2
    secretKey: "12345678"
    whiteRemoteAddress: 192.168.1.*
    admin: true
  - accessKey: odd
    secretKey: s3cretsecret
    note: keep
    topicPerms: [ord*=PUB, "orders", "=PUB", bills=EAT, bills2 = PUB]
  - accessKey: rocketmq2
    secretKey: another
  - accessKey: "a:b"
    secretKey: 12345678
  - accessKey: nosecret
"""


def plain(text: str) -> Imported:
    return from_plain_acl({"plain_acl.yml": yaml.load(text, PlainLoader)})


def test_accounts_become_users_with_the_same_rights() -> None:
    first, second, odd = plain(PLAIN).users
    assert (first.name, first.secret, first.is_super, first.is_enabled) == ("RocketMQ", "12345678", False, True)
    assert [str(entry) for entry in first.acl.custom] == [
        "Deny All on Topic:topicA", "Allow Pub,Sub on Topic:topicB", "Allow Sub on Topic:topicC",
        "Deny All on Group:groupA", "Allow Pub,Sub on Group:groupB", "Allow Sub on Group:groupC",
    ]  # fmt: skip
    assert [str(entry) for entry in first.acl.default] == ["Deny All on Topic:*", "Allow Sub on Group:*"]
    assert second.is_super
    assert [str(entry) for entry in odd.acl.custom] == ["Deny All on Topic:bills", "Allow Pub on Topic:bills2"]
    for topic, action, expected in (("topicB", PUB, True), ("topicC", PUB, False), ("other", SUB, False)):
        assert first.acl.decide(Kind.TOPIC, topic, (action,), "10.0.0.1").is_allowed == expected


def test_what_has_no_counterpart_is_listed() -> None:
    assert [one.what for one in plain(PLAIN).left_out] == [
        "globalWhiteRemoteAddresses 10.10.103.*", "globalWhiteRemoteAddresses 192.168.0.*",
        "rocketmq2: whiteRemoteAddress 192.168.1.*", "odd: note", "odd: ord*=PUB", "odd: orders", "odd: =PUB",
        "odd: bills=EAT", "rocketmq2 in plain_acl.yml", "account 5 in plain_acl.yml", "account 6 in plain_acl.yml",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "- a", "accounts: 7", "accounts: [7, [], null]", "accounts: {a: b}"])
def test_files_without_accounts_have_no_users(text: str) -> None:
    assert plain(text).users == []


@pytest.mark.parametrize("secret", ["0123456", "12:30:45", "1_000_000", "yes", "1e5", "0x1F", "2020-01-01", "3.10"])
def test_names_and_secrets_are_the_texts_of_the_file(secret: str) -> None:
    [user] = plain(f"accounts: [{{accessKey: 007, secretKey: {secret}}}]").users
    assert (user.name, user.secret) == ("007", secret)


@pytest.mark.parametrize(
    ("text", "expected"), [("true", True), ("Yes", True), ("on", True), ("no", False), ("", False)]
)
def test_an_administrator_is_recognized_in_all_spellings_of_yaml(text: str, expected: bool) -> None:
    [user] = plain(f"accounts: [{{accessKey: ops, secretKey: s3cret, admin: {text}}}]").users
    assert user.is_super == expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("topicPerms: [{salaries: DENY}, orders=PUB]", "shop: topicPerms, number 1"),
        ("groupPerms: {salaries: DENY}", "shop: groupPerms, number 1"),
        ("defaultTopicPerm: [PUB]", "shop: defaultTopicPerm, number 1"),
        ("admin: [true]", "shop: admin, number 1"),
        ("whiteRemoteAddress: [10.0.0.1]", "shop: whiteRemoteAddress 10.0.0.1"),
    ],
)
def test_nothing_of_an_account_is_dropped_silently(text: str, what: str) -> None:
    imported = plain(f"accounts: [{{accessKey: shop, secretKey: s3cret, {text}}}]")
    assert [one.what for one in imported.left_out] == [what]
    assert not imported.users[0].is_super


@pytest.mark.parametrize("text", ["{}", "accounts: {accessKey: shop}", "accounts:"])
def test_a_file_without_a_list_of_accounts_is_listed(text: str) -> None:
    assert [one.what for one in plain(text).left_out] == ["accounts in plain_acl.yml"]


def test_a_key_that_occurs_twice_is_an_error() -> None:
    with pytest.raises(yaml.YAMLError, match="'topicPerms' occurs twice"):
        plain("accounts: [{accessKey: shop, secretKey: s, topicPerms: [a=PUB], topicPerms: [b=PUB]}]")


def test_the_permission_of_a_retry_topic_is_that_of_its_group() -> None:
    [user] = plain(
        "accounts: [{accessKey: shop, secretKey: s, defaultGroupPerm: SUB, topicPerms: ['%RETRY%audit=DENY']}]"
    ).users
    assert not user.acl.decide(Kind.GROUP, "audit", (SUB,), "10.0.0.1").is_allowed


def record(name: str, **fields: object) -> tuple[bytes, bytes]:
    return name.encode(), json.dumps(fields).encode()


def test_records_that_are_not_understood_are_listed_and_grant_nothing() -> None:
    topic = {"resourceName": "orders", "resourcePattern": 2, "resourceType": 4}
    entries = [
        {"resource": {**topic, "resourceName": "a*"}, "actions": [3], "decision": 1},
        {"resource": {**topic, "resourcePattern": 9}, "actions": [3], "decision": 1},
        {"resource": {**topic, "resourceType": 9}, "actions": [3], "decision": 1},
        {"resource": topic, "actions": [3, 2], "decision": 1},
        {"resource": topic, "actions": [3], "decision": 0},
        {"resource": topic, "actions": [3], "decision": 1, "environment": {"sourceIps": ["here"]}},
    ]
    policies = [{"policyType": 1, "entries": entries}, {"policyType": 3, "entries": [
        {"resource": topic, "actions": [3], "decision": 1}]}]  # fmt: skip
    imported = from_records(
        [
            record("alice", username="alice", password="s"),
            record("bob", username="bob", password="s", userType=3),
            record("carol", username="carol"),
            (b"\xff", b"?"),
        ],
        [record("User:alice", policies=policies), record("User:gone", policies=[]), record("Role:x"), (b"User:y", b"")],
    )
    assert [user.name for user in imported.users] == ["alice"]
    assert len(imported.users[0].acl) == 0
    whats = [one.what for one in imported.left_out]
    assert sum("alice: entry" in what for what in whats) == 7
    for what in (
        "user bob",
        "user carol",
        "the entries of Role:x",
        "the entries of User:y",
        "the entries of User:gone",
    ):
        assert what in whats
