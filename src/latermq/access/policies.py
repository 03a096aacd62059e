"""Policies: which users may do what on which resources, and which entry decides.

The order is Apache's: the custom policy before the default one, resources of a kind before `*`, names before prefixes
before all names, longer prefixes before shorter ones, and Deny before Allow. The first entry that matches decides.
"""

import ipaddress
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from latermq.access.resources import (
    ANY_PATTERN,
    Action,
    Actions,
    Kind,
    Match,
    Pattern,
    action_name,
    parse_action,
    parse_pattern,
)
from latermq.errors import NoPermission

MAX_SOURCES = 64  # addresses and networks of one entry

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Entry(NamedTuple):
    """One entry of a policy."""

    pattern: Pattern
    actions: frozenset[Action] | None  # None: all of them
    sources: tuple[Network, ...]  # where the request may come from; empty: everywhere
    is_allow: bool

    def is_about(self, actions: Actions) -> bool:
        """Whether the entry is about one of these actions."""
        return self.actions is None or not self.actions.isdisjoint(actions)

    def matches(self, actions: Actions, source: Address | None) -> bool:
        """Whether the entry is about one of these actions, by a client at this address."""
        if not self.is_about(actions):
            return False
        return not self.sources or (source is not None and any(source in network for network in self.sources))

    def __str__(self) -> str:
        names = "All" if self.actions is None else ",".join(self.action_names)
        sources = f" from {','.join(self.source_texts)}" if self.sources else ""
        return f"{'Allow' if self.is_allow else 'Deny'} {names} on {self.pattern}{sources}"

    @property
    def action_names(self) -> list[str]:
        """The actions with RocketMQ's names, in a fixed order."""
        if self.actions is None:
            return [action_name(None)]
        return [action_name(action) for action in Action if action in self.actions]

    @property
    def source_texts(self) -> list[str]:
        """The networks as written in requests. A single address has no prefix length."""
        return [
            str(network.network_address if network.prefixlen == network.max_prefixlen else network)
            for network in self.sources
        ]


def parse_entry(resource: str, actions: Iterable[str], sources: Iterable[str], decision: str) -> Entry:
    """Build an entry from its texts. The errors are those of Apache's broker."""
    pattern = parse_pattern(resource)
    parsed = [parse_action(action.strip()) for action in actions]
    if not parsed:
        raise NoPermission("The actions is empty.")
    networks = tuple(_parse_network(source.strip()) for source in sources)
    if len(networks) > MAX_SOURCES:
        raise NoPermission(f"The entry has {len(networks)} source ips; the limit is {MAX_SOURCES}.")
    verdict = decision.lower()
    if verdict not in ("allow", "deny"):
        raise NoPermission("The decision is null or illegal.")
    chosen = None if None in parsed else frozenset(action for action in parsed if action is not None)
    return Entry(pattern, chosen, networks, verdict == "allow")


def _parse_network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise NoPermission("The source ip is invalid.") from None


@lru_cache(4096)
def parse_address(text: str) -> Address | None:
    """Parse the address of a client. None if it is not one."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


class Decision(NamedTuple):
    """Whether an access is permitted, and the number of the entry that decided, or None if none matches."""

    is_allowed: bool
    entry: int | None = None


class _Sources:
    """The addresses and networks of an entry, by the number of their host bits: one look-up for each number."""

    __slots__ = ("_by_host_bits",)

    def __init__(self, networks: Iterable[Network]) -> None:
        self._by_host_bits: dict[tuple[int, int], set[int]] = {}
        for network in networks:
            host_bits = network.max_prefixlen - network.prefixlen
            found = self._by_host_bits.setdefault((network.version, host_bits), set())
            found.add(int(network.network_address) >> host_bits)

    def include(self, source: Address | None) -> bool:
        """Whether a client is at one of them. Without any, it may be everywhere."""
        if not self._by_host_bits:
            return True
        if source is None:
            return False
        version, number = source.version, int(source)
        return any(number >> bits in found for (kind, bits), found in self._by_host_bits.items() if kind == version)


class _Policy:
    """An index over the entries of one policy, so that the cost of a decision does not grow with their number."""

    def __init__(self, numbered: Iterable[tuple[int, Entry]]) -> None:
        self._by_pattern: dict[Pattern, list[tuple[int, Entry, _Sources]]] = {}
        lengths: dict[Kind, set[int]] = {}
        for number, entry in numbered:
            self._by_pattern.setdefault(entry.pattern, []).append((number, entry, _Sources(entry.sources)))
            if entry.pattern.match is Match.PREFIX and entry.pattern.kind is not None:
                lengths.setdefault(entry.pattern.kind, set()).add(len(entry.pattern.name))
        for entries in self._by_pattern.values():
            entries.sort(key=lambda one: one[1].is_allow)  # Deny first
        self._prefix_lengths = {kind: sorted(found, reverse=True) for kind, found in lengths.items()}

    def decide(self, kind: Kind, name: str, actions: Actions, source: Address | None) -> Decision | None:
        if not self._by_pattern:
            return None
        for pattern in self._candidates(kind, name):
            for number, entry, sources in self._by_pattern.get(pattern, ()):
                if entry.is_about(actions) and sources.include(source):
                    return Decision(entry.is_allow, number)
        return None

    def _candidates(self, kind: Kind, name: str) -> Iterator[Pattern]:
        """Yield the patterns that match a name, the most specific first."""
        yield Pattern(kind, Match.LITERAL, name)
        for length in self._prefix_lengths.get(kind, ()):
            if length <= len(name):
                yield Pattern(kind, Match.PREFIX, name[:length])
        yield Pattern(kind, Match.ANY, "")
        yield ANY_PATTERN


class Acl:
    """The policies of one user. Entries are numbered from 1, those of the custom policy first."""

    def __init__(self, custom: Iterable[Entry] = (), default: Iterable[Entry] = ()) -> None:
        self.custom = tuple(custom)
        self.default = tuple(default)
        self._custom = _Policy(enumerate(self.custom, 1))
        self._default = _Policy(enumerate(self.default, 1 + len(self.custom)))

    def __len__(self) -> int:
        return len(self.custom) + len(self.default)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Acl) and (self.custom, self.default) == (other.custom, other.default)

    __hash__ = None  # type: ignore[assignment]

    def entry(self, number: int) -> Entry:
        """The entry with this number."""
        return (*self.custom, *self.default)[number - 1]

    def decide(self, kind: Kind, name: str, actions: Actions, source: str) -> Decision:
        """Decide about an access by a client at this address. Without a matching entry it is refused."""
        address = parse_address(source)
        for policy in (self._custom, self._default):
            decision = policy.decide(kind, name, actions, address)
            if decision is not None:
                return decision
        return Decision(is_allowed=False)

    def merged(self, other: "Acl") -> "Acl":
        """These entries with those of another ACL added, which replace all of the same resources.

        RocketMQ keeps only the last of several that are added for one resource, unless they are the first of a policy:
        of an Allow and a Deny that an import repeats, one would be lost.
        """
        return Acl(_merged(self.custom, other.custom), _merged(self.default, other.default))

    def without(self, pattern: Pattern, *, is_default: bool) -> "Acl":
        """These entries without those of a resource, in one of the policies."""
        policies = {False: self.custom, True: self.default}
        policies[is_default] = tuple(entry for entry in policies[is_default] if entry.pattern != pattern)
        return Acl(policies[False], policies[True])


NO_ACL = Acl()


def _merged(entries: tuple[Entry, ...], added: tuple[Entry, ...]) -> Iterator[Entry]:
    groups: dict[Pattern, list[Entry]] = {}
    for entry in added:
        groups.setdefault(entry.pattern, []).append(entry)
    replaced = set(groups)
    for entry in entries:
        if entry.pattern not in replaced:
            yield entry
        elif entry.pattern in groups:
            yield from groups.pop(entry.pattern)
    for group in groups.values():
        yield from group
