"""How many takers the entries of a tail become, which decides what a query compares timers with."""

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa


def _entries(*rows: tuple[int, int, str, str | None]) -> pa.Table:
    offsets, timers, kinds, takes = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.table(
        {
            "queue_offset": pa.array(offsets, pa.int64()),
            "timer_id": pa.array(timers, pa.int64()),
            "kind": pa.array(kinds, pa.string()),
            "takes": pa.array(takes, pa.string()),
        }
    )


@pytest.mark.parametrize(
    ("rows", "counts"),
    [
        ([], (0, 0, 0)),
        ([(1, 1, "timer", None), (2, 2, "timer", "")], (0, 0, 0)),
        ([(3, 1, "timer", None)], (0, 1, 0)),
        ([(3, 3, "cancel", "5"), (4, 4, "cancel", "5,6,7")], (4, 0, 0)),
        ([(3, 1, "move", "5"), (4, 4, "cancel", None)], (1, 0, 1)),
        # Unclear due times, which no broker writes: both joins are kept.
        ([(3, 3, "cancel", "x,5")], (2, 0, 1)),
        ([(3, 3, "cancel", "")], (1, 0, 1)),
    ],
)
def test_takers_are_counted_by_kind(rows: list[tuple[int, int, str, str | None]], counts: tuple[int, int, int]) -> None:
    from latermq.pipeline.query.tails import count_takers

    assert tuple(count_takers(_entries(*rows))) == counts
