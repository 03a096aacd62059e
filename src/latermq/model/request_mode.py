"""How the members of a group get a topic's messages: they pull their own queues, or pop from shared ones."""

from typing import Literal

from msgspec import Struct, field

Mode = Literal["PULL", "POP"]
SHARE_ALL = -1  # the default of `shared_with`


class RequestMode(Struct, kw_only=True, frozen=True):
    """The mode of one group in one topic."""

    topic: str
    group: str
    mode: Mode = "PULL"
    # For POP: each member also pops from the queues of this many members after it. 0 or less: all pop from all queues.
    shared_with: int = 0


class RequestModeTable(Struct, kw_only=True):
    """Topic → group → mode."""

    modes: dict[str, dict[str, RequestMode]] = field(default_factory=dict)
