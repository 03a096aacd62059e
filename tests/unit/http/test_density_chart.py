"""Bars of pending timers: where they stand, how high they are, and what they say."""

from latermq.http.api.density import EDGES_MS, Bucket, DensityReport
from latermq.http.console.density_chart import density_chart, far_by_bucket

NOW_MS = 1_800_000_000_000
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
NOTHING_FAR = [0] * len(EDGES_MS)


def density(counts: dict[int, int]) -> DensityReport:
    edges = (0, *EDGES_MS)
    buckets = [Bucket(edges[at], edges[at + 1], counts.get(at, 0)) for at in range(len(EDGES_MS))]
    return DensityReport("", NOW_MS, sum(counts.values()), 0, 0, 0, buckets)


def test_a_span_without_timers_has_no_bar_and_a_single_timer_can_be_seen() -> None:
    few, many = density_chart(density({0: 1, 40: 1_000_000}), NOTHING_FAR).bars
    assert (few.near, many.near) == (1, 1_000_000)
    assert few.height > 1
    assert 80 < many.height <= 100
    assert few.x < many.x < 100


def test_timers_on_spark_stand_on_those_of_brokers() -> None:
    (bar,) = density_chart(density({50: 30}), [10 * (at == 50) for at in range(len(EDGES_MS))]).bars
    assert (bar.near, bar.far) == (30, 10)
    assert bar.far_y + bar.far_height == bar.y
    assert bar.label.startswith("40 timers (30 on brokers, 10 on Spark) due in ")


def test_a_bar_covers_its_span_of_time() -> None:
    (bar,) = density_chart(density({1: 1}), NOTHING_FAR).bars
    assert (bar.from_ms, bar.until_ms) == (NOW_MS + 1_000, NOW_MS + EDGES_MS[1])
    assert bar.label == "1 timer due in 1 s to 1.3 s"


def test_ticks_are_in_order_and_within_the_axis() -> None:
    at = [tick.at for tick in density_chart(density({}), NOTHING_FAR).ticks]
    assert at == sorted(at)
    assert 0 < at[0] < at[-1] < 100


def test_far_timers_are_divided_among_the_spans_that_their_count_crosses() -> None:
    counts = far_by_bucket(
        NOW_MS, [(NOW_MS - HOUR_MS, NOW_MS + HOUR_MS, 100), (NOW_MS + 3 * DAY_MS, NOW_MS + 4 * DAY_MS, 7)]
    )
    assert sum(counts) == 107
    edges = (0, *EDGES_MS)
    assert sum(count for count, edge in zip(counts, edges, strict=False) if edge >= 2 * DAY_MS) == 7


def test_an_empty_cluster_has_axes_and_no_bars() -> None:
    chart = density_chart(density({}), NOTHING_FAR)
    assert (chart.bars, chart.levels) == ([], [])
