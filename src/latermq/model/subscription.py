"""Subscriptions of consumer groups."""

from msgspec import Struct, field


class Subscription(Struct, kw_only=True):
    """A group's subscription to one topic."""

    topic: str
    expression: str = "*"
    expression_type: str | None = "TAG"
    tags: list[str] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)  # tags codes of `tags`
    version: int = 0
    is_class_filter: bool = False
