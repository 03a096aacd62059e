"""Filters that the source accepts from Spark: queues, offsets and due times."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

LOWEST, HIGHEST = -(1 << 63), 1 << 63
_RANGED = ("queue_offset", "due_ms")
_CHOSEN = ("broker", "queue_id")
_NEVER_NULL = ("broker", "topic", "queue_id", "queue_offset", "kind", "born_ms", "store_ms", "body", "properties")


@dataclass
class PushedFilters:
    """The accepted filters: ranges [low, high) of numeric columns, and the chosen brokers and queue ids."""

    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    chosen: dict[str, frozenset[object]] = field(default_factory=dict)

    def range_of(self, column: str) -> tuple[int, int]:
        return self.ranges.get(column, (LOWEST, HIGHEST))

    def allows(self, column: str, value: object) -> bool:
        return column not in self.chosen or value in self.chosen[column]

    def accept(self, filters: Iterable[Filter]) -> list[Filter]:
        """Accept the filters that can be applied exactly, and return the rest, which Spark applies itself."""
        return [filter_ for filter_ in filters if not self._accept(filter_)]

    def _accept(self, filter_: Filter) -> bool:
        column = ".".join(getattr(filter_, "attribute", ()))
        if isinstance(filter_, IsNotNull):
            if column == "due_ms":  # any range, even an open one, excludes rows without a due time
                self.ranges[column] = self.range_of(column)
            return column in (*_NEVER_NULL, "due_ms")
        value = getattr(filter_, "value", None)
        if isinstance(filter_, EqualTo | In) and column in _CHOSEN:
            values = frozenset(value if isinstance(filter_, In) else (value,))  # type: ignore[arg-type]
            self.chosen[column] = self.chosen.get(column, values) & values
            return True
        if column not in _RANGED or not isinstance(value, int):
            return False
        return self._narrow(column, filter_, value)

    def _narrow(self, column: str, filter_: Filter, value: int) -> bool:
        low, high = self.range_of(column)
        match filter_:
            case EqualTo():
                low, high = max(low, value), min(high, value + 1)
            case GreaterThan():
                low = max(low, value + 1)
            case GreaterThanOrEqual():
                low = max(low, value)
            case LessThan():
                high = min(high, value)
            case LessThanOrEqual():
                high = min(high, value + 1)
            case _:
                return False
        self.ranges[column] = (low, high)
        return True
