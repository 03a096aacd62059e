"""The resources that a request touches and the actions on them, in the terms of RocketMQ's ACL 2.0."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from latermq.access.resources import (
    CREATE,
    DELETE,
    GET,
    LIST,
    PUB,
    SUB,
    UPDATE,
    Access,
    Action,
    Actions,
    Kind,
)
from latermq.model.topic_access import topic_access
from latermq.protocol.remoting.frames import Command

__all__ = [
    "CREATE", "DELETE", "GET", "LIST", "OPEN", "PUB", "SUB", "UPDATE", "Access", "Action", "Kind", "Rule",
    "on_cluster", "on_group", "on_group_if_named", "on_groups", "on_topic", "on_topic_if_named", "on_topics",
    "topic_access",
]  # fmt: skip

Names = Callable[[Command, Any], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Rule:
    """The resources of one kind that a request touches. `fallback` replaces them if the request names none.

    Without `fallback`, an empty name is a resource like any other, and no user has permission for it.
    """

    kind: Kind
    actions: Actions
    names: Names
    fallback: tuple[Access, ...] | None = None

    def accesses(self, command: Command, content: Any) -> Iterator[Access]:
        has_name = False
        for name in self.names(command, content):
            if name or self.fallback is None:
                has_name = True
                yield (
                    topic_access(name, self.actions)
                    if self.kind is Kind.TOPIC
                    else Access(self.kind, name, self.actions)
                )
        if not has_name and self.fallback is not None:
            yield from self.fallback

    def __str__(self) -> str:
        *others, last = [action.value for action in self.actions]
        return f"{self.kind.value}: {', '.join(others) + ' or ' if others else ''}{last}"


def _field(name: str) -> Names:
    """Read the name from a field of the decoded request."""

    def names(_: Command, content: Any) -> tuple[str]:
        return (getattr(content, name) or "",)

    return names


def on_topic(name: str, *actions: Action) -> Rule:
    """The topic in this field of the header."""
    return Rule(Kind.TOPIC, actions, _field(name))


def on_group(name: str, *actions: Action) -> Rule:
    """The group in this field of the header."""
    return Rule(Kind.GROUP, actions, _field(name))


def on_topic_if_named(name: str, *actions: Action, otherwise: Iterable[Action] = ()) -> Rule:
    """The topic in this field, which may be empty. The request then touches the cluster if `otherwise` has actions."""
    cluster_actions = tuple(otherwise)
    fallback = (Access(Kind.CLUSTER, "", cluster_actions),) if cluster_actions else ()
    return Rule(Kind.TOPIC, actions, _field(name), fallback)


def on_group_if_named(name: str, *actions: Action) -> Rule:
    """The group in this field, which may be empty."""
    return Rule(Kind.GROUP, actions, _field(name), ())


def on_topics(names: Names, *actions: Action) -> Rule:
    """All of these topics. A request that names no topic touches none."""
    return Rule(Kind.TOPIC, actions, names)


def on_groups(names: Names, *actions: Action) -> Rule:
    """All of these groups."""
    return Rule(Kind.GROUP, actions, names)


def on_cluster(*actions: Action) -> tuple[Rule, ...]:
    """The cluster that this server belongs to."""
    return (Rule(Kind.CLUSTER, actions, lambda _, __: ("",)),)


OPEN: tuple[Rule, ...] = ()  # the request touches nothing
