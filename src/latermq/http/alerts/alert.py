"""An alert as the API, the pages and webhooks show it, and what a rule says about its condition."""

import hashlib
from typing import Literal, NamedTuple

import msgspec

from latermq.visible_text import visible

MAX_NAME_CHARS = 255  # names come from clients of the brokers


class Alert(msgspec.Struct, frozen=True):
    """A condition that holds, or held. `since` is when it entered its state, `started` when it began to fire."""

    id: str
    rule: str
    state: Literal["firing", "resolved"]
    severity: Literal["warning", "critical"]
    since: str
    since_ms: int
    started_ms: int
    subject: dict[str, str]
    value: float
    threshold: float
    text: str
    hint: str


class Finding(NamedTuple):
    """A condition that a rule has examined and that is true, or not clearly false.

    With `is_bad` false the value lies between the threshold and where the condition ends: an alert keeps its state.
    """

    rule: str
    subject: dict[str, str]
    value: float
    threshold: float
    text: str
    hint: str
    is_bad: bool = True
    for_s: float = 0.0  # how long the condition must hold before it is an alert
    is_critical: bool = False

    @property
    def id(self) -> str:
        """The same for the same rule and subject, at every console and after every restart."""
        names = [self.rule, *(f"{key}={value}" for key, value in sorted(self.subject.items()))]
        return hashlib.sha256("\0".join(names).encode("utf-8", "surrogatepass")).hexdigest()[:16]


class Findings(NamedTuple):
    """What one round of all rules found, and which rules had what they need to know, by broker.

    An alert of a rule that could not be examined keeps its state. Rules on no single broker have the broker "".
    """

    found: list[Finding]
    examined: set[tuple[str, str]]


def shown(name: str) -> str:
    """A name for texts, which an untrusted client may have chosen."""
    return visible(name[:MAX_NAME_CHARS])
