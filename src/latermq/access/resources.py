"""Resources, the actions on them, and the patterns by which policies name them."""

from enum import Enum
from typing import NamedTuple

from latermq.errors import NoPermission

MAX_NAME_CHARS = 255
ANY = "*"


class Kind(Enum):
    """Kinds of resources. Requests never touch a namespace as such; policies may name one."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"
    NAMESPACE = "namespace"

    __hash__ = object.__hash__  # of a member: Enum's own takes ten times as long


class Action(Enum):
    """Actions on a resource."""

    PUB = "pub"
    SUB = "sub"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    GET = "get"
    LIST = "list"

    __hash__ = object.__hash__


PUB, SUB, CREATE, UPDATE = Action.PUB, Action.SUB, Action.CREATE, Action.UPDATE
DELETE, GET, LIST = Action.DELETE, Action.GET, Action.LIST
Actions = tuple[Action, ...]


class Access(NamedTuple):
    """One resource and a set of actions. One of the actions must be permitted. It is the cache key of verdicts."""

    kind: Kind
    name: str  # empty for the cluster
    actions: Actions


class Match(Enum):
    """How a pattern selects names, from the most specific."""

    LITERAL = 0
    PREFIX = 1
    ANY = 2

    __hash__ = object.__hash__


class Pattern(NamedTuple):
    """The resources that an entry of a policy is about."""

    kind: Kind | None  # None: every kind
    match: Match
    name: str  # the name or its prefix; empty for ANY

    def __str__(self) -> str:
        if self.kind is None:
            return ANY
        return f"{self.kind.value.capitalize()}:{self.name}{'' if self.match is Match.LITERAL else ANY}"


ANY_PATTERN = Pattern(None, Match.ANY, "")
_KINDS = {kind.value: kind for kind in Kind}
_ACTIONS = {action.value: action for action in Action}


def parse_pattern(text: str) -> Pattern:
    """Parse `Topic:orders`, `Group:eu-*`, `Topic:*` or `*`. Kinds are not case-sensitive."""
    if text == ANY:
        return ANY_PATTERN
    kind_name, colon, name = text.partition(":")
    kind = _KINDS.get(kind_name.lower())
    if not text or kind is None or not colon or not name:
        raise NoPermission("The resource is null.")
    if len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise NoPermission(f"The resource has more than {MAX_NAME_CHARS} characters, or a control character.")
    if name == ANY:
        return Pattern(kind, Match.ANY, "")
    if name.endswith(ANY):
        return Pattern(kind, Match.PREFIX, name[:-1])
    return Pattern(kind, Match.LITERAL, name)


def parse_action(text: str) -> Action | None:
    """Parse `Pub`, `Sub` and so on. `All` is None. Actions are not case-sensitive."""
    name = text.lower()
    if name == "all":
        return None
    if name == "any":
        raise NoPermission("The actions can not be Any.")
    action = _ACTIONS.get(name)
    if action is None:
        raise NoPermission("The actions is empty.")
    return action


def action_name(action: Action | None) -> str:
    """The name of an action in RocketMQ's bodies. None is `All`."""
    return "All" if action is None else action.value.capitalize()
