"""Policies: which entry decides, in Apache's order."""

import ipaddress
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latermq.access.policies import Acl, Decision, Entry, parse_entry
from latermq.access.resources import GET, PUB, SUB, Kind, Match
from latermq.errors import NoPermission

TOPIC, GROUP = Kind.TOPIC, Kind.GROUP


def allow(resource: str, *actions: str, sources: tuple[str, ...] = ()) -> Entry:
    return parse_entry(resource, actions or ("All",), sources, "Allow")


def deny(resource: str, *actions: str) -> Entry:
    return parse_entry(resource, actions or ("All",), (), "Deny")


def decide(acl: Acl, name: str = "orders", source: str = "10.0.0.7") -> Decision:
    return acl.decide(TOPIC, name, (PUB,), source)


def test_without_a_matching_entry_nothing_is_permitted() -> None:
    assert decide(Acl()) == Decision(is_allowed=False)
    acl = Acl([allow("Group:orders"), allow("Topic:bills"), allow("Topic:orders", "Sub")])
    assert decide(acl) == Decision(is_allowed=False)


@pytest.mark.parametrize(
    ("entries", "decisive"),
    [
        ([allow("*"), deny("Topic:*")], 2),  # a kind before every kind
        ([deny("Topic:*"), allow("Topic:ord*")], 2),  # a prefix before all names
        ([deny("Topic:ord*"), allow("Topic:order*")], 2),  # the longer prefix
        ([deny("Topic:orders*"), allow("Topic:orders")], 2),  # a name before a prefix
        ([allow("Topic:orders"), deny("Topic:orders")], 2),  # Deny before Allow
        ([deny("Topic:orders", "Sub"), allow("Topic:ord*")], 2),  # an entry about other actions does not count
        ([allow("topic:orders", "pub")], 1),  # without regard to case
    ],
)
def test_the_most_specific_entry_decides(entries: list[Entry], decisive: int) -> None:
    decision = decide(Acl(entries))
    assert decision == Decision(entries[decisive - 1].is_allow, decisive)


def test_the_default_policy_counts_only_where_no_custom_entry_matches() -> None:
    acl = Acl([allow("*", "Pub")], [deny("Topic:orders")])
    assert decide(acl) == Decision(is_allowed=True, entry=1)
    assert acl.decide(TOPIC, "orders", (SUB,), "") == Decision(is_allowed=False, entry=2)


def test_one_of_several_actions_is_enough() -> None:
    acl = Acl([allow("Topic:orders", "Get")])
    assert acl.decide(TOPIC, "orders", (SUB, GET), "").is_allowed
    assert not acl.decide(TOPIC, "orders", (SUB, PUB), "").is_allowed


@pytest.mark.parametrize(
    ("sources", "source", "is_allowed"),
    [
        (("10.0.0.7",), "10.0.0.7", True),
        (("10.0.0.7",), "10.0.0.8", False),
        (("192.168.0.0/16", "10.0.0.0/8"), "10.9.9.9", True),
        (("10.0.0.7/8",), "10.1.1.1", True),  # host bits are ignored
        (("2001:db8::/32",), "2001:db8::1", True),
        (("2001:db8::/32",), "10.0.0.7", False),
        (("0.0.0.0/0",), "not an address", False),
        ((), "not an address", True),
    ],
)
def test_an_entry_may_require_an_address(sources: tuple[str, ...], source: str, is_allowed: bool) -> None:
    assert decide(Acl([allow("Topic:orders", sources=sources)]), source=source).is_allowed == is_allowed


@pytest.mark.parametrize(
    ("entry", "remark"),
    [
        (("", ["Pub"], [], "Allow"), "The resource is null."),
        (("Queue:x", ["Pub"], [], "Allow"), "The resource is null."),
        (("Topic:", ["Pub"], [], "Allow"), "The resource is null."),
        (("Topic:a", ["Any"], [], "Allow"), "The actions can not be Any."),
        (("Topic:a", [], [], "Allow"), "The actions is empty."),
        (("Topic:a", ["Fly"], [], "Allow"), "The actions is empty."),
        (("Topic:a", ["Pub"], ["300.1.1.1"], "Allow"), "The source ip is invalid."),
        (("Topic:a", ["Pub"], [], "Maybe"), "The decision is null or illegal."),
    ],
)
def test_an_invalid_entry_is_refused_with_apaches_remark(
    entry: tuple[str, list[str], list[str], str], remark: str
) -> None:
    with pytest.raises(NoPermission) as refused:
        parse_entry(*entry)
    assert refused.value.remark == remark


def test_entries_are_merged_by_resource() -> None:
    acl = Acl([allow("Topic:a", "Pub"), allow("Topic:b", "Pub")], [allow("Topic:*", "Sub")])
    merged = acl.merged(Acl([deny("Topic:a", "Sub"), allow("Topic:c")]))
    assert merged == Acl([deny("Topic:a", "Sub"), allow("Topic:b", "Pub"), allow("Topic:c")], [allow("Topic:*", "Sub")])
    assert merged.without(allow("Topic:b").pattern, is_default=False) == Acl(
        [deny("Topic:a", "Sub"), allow("Topic:c")], [allow("Topic:*", "Sub")]
    )
    assert merged.without(allow("Topic:*").pattern, is_default=True).default == ()


def test_added_entries_replace_all_of_their_resource_and_none_of_them_is_lost() -> None:
    both = [allow("Topic:a", "Pub", "Sub"), deny("Topic:a", "Pub")]
    acl = Acl().merged(Acl(both))
    assert acl == Acl(both)
    assert not acl.decide(Kind.TOPIC, "a", (PUB,), "10.0.0.7").is_allowed
    assert acl.decide(Kind.TOPIC, "a", (SUB,), "10.0.0.7").is_allowed
    assert acl.merged(Acl([allow("Topic:a", "Get")])) == Acl([allow("Topic:a", "Get")])
    assert acl.merged(Acl(both)) == acl
    assert Acl([allow("Topic:b")]).merged(Acl(both)) == Acl([allow("Topic:b"), *both])


def slow_decision(acl: Acl, kind: Kind, name: str, actions: tuple[object, ...]) -> Decision:
    """The same by sorting all entries that match, as Apache does."""
    for first, entries in ((1, acl.custom), (1 + len(acl.custom), acl.default)):
        found = []
        for number, entry in enumerate(entries, first):
            pattern = entry.pattern
            fits = {
                Match.LITERAL: name == pattern.name,
                Match.PREFIX: name.startswith(pattern.name),
                Match.ANY: True,
            }[pattern.match]
            if fits and pattern.kind in (None, kind) and (entry.actions is None or entry.actions & set(actions)):
                rank = (pattern.kind is None, pattern.match.value, -len(pattern.name), entry.is_allow)
                found.append((rank, number, entry.is_allow))
        if found:
            _, number, is_allow = min(found)
            return Decision(is_allow, number)
    return Decision(is_allowed=False)


NAMES = st.sampled_from(["a", "ab", "abc", "b"])
RESOURCES = st.one_of(
    st.just("*"),
    st.builds(lambda kind, name, star: f"{kind}:{name}{star}", st.sampled_from(["Topic", "Group"]), NAMES,
              st.sampled_from(["", "*"])),
    st.sampled_from(["Topic:*", "Group:*"]),
)  # fmt: skip
ENTRIES = st.lists(
    st.builds(
        lambda resource, actions, decision: parse_entry(resource, actions, (), decision),
        RESOURCES,
        st.lists(st.sampled_from(["Pub", "Sub", "Get", "All"]), min_size=1, max_size=2),
        st.sampled_from(["Allow", "Deny"]),
    ),
    max_size=6,
)


@given(ENTRIES, ENTRIES, st.sampled_from([TOPIC, GROUP]), NAMES, st.sampled_from([(PUB,), (SUB, GET)]))
def test_the_index_decides_as_a_sorted_list_does(
    custom: list[Entry], default: list[Entry], kind: Kind, name: str, actions: tuple[object, ...]
) -> None:
    acl = Acl(custom, default)
    assert acl.decide(kind, name, actions, "") == slow_decision(acl, kind, name, actions)  # type: ignore[arg-type]


def test_an_address_matches_the_networks_that_contain_it() -> None:
    chance = random.Random(11)
    for _ in range(300):
        networks = [
            f"10.{chance.randrange(2)}.{chance.randrange(4)}.{chance.randrange(4)}/{chance.choice((0, 8, 23, 30, 32))}"
            for _ in range(chance.randrange(1, 4))
        ] + [f"2001:db8::{chance.randrange(4)}/{chance.choice((64, 126, 128))}"]
        acl = Acl([parse_entry("Topic:orders", ["Pub"], networks, "Allow")])
        for text in ("10.0.1.2", "10.1.3.3", "11.0.0.1", "2001:db8::1", "2001:db8:1::", "::ffff:10.0.1.2", "nowhere"):
            address = None if text == "nowhere" else ipaddress.ip_address(text)
            expected = any(
                address is not None and address in ipaddress.ip_network(network, strict=False) for network in networks
            )
            assert acl.decide(Kind.TOPIC, "orders", (PUB,), text).is_allowed == expected, (text, networks)
