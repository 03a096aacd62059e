"""The queueing model of predictions: against arithmetic, and against a simulation message by message."""

from random import Random

import pytest

from latermq.client import Density
from latermq.http.what_if.fluid_queue import Piece, lateness_s, serve
from latermq.http.what_if.scenario import Addition, Rates, pieces_of

NOW_S = 1_800_000_000.0


def test_a_burst_is_as_late_as_it_takes_to_serve_it() -> None:
    pieces = pieces_of(Addition(10_000, NOW_S + 30, 0), NOW_S, lambda at_s: 0.0)
    served = serve(pieces, 1_000)
    assert lateness_s(served.pieces, (0.5, 0.99, 1.0)) == pytest.approx([5, 9.9, 10], rel=0.001)
    assert served.drained_s == pytest.approx(NOW_S + 40)
    assert served.longest == pytest.approx(10_000)


def test_timers_that_are_slower_than_the_rate_are_not_late() -> None:
    pieces = pieces_of(Addition(10_000, NOW_S + 30.5, 100), NOW_S, lambda at_s: 50.0)
    served = serve(pieces, 200)
    assert lateness_s(served.pieces, (0.5, 1.0)) == pytest.approx([0, 0], abs=1e-6)
    assert served.drained_s == pytest.approx(NOW_S + 130.5, abs=1)
    assert sum(piece.marked for piece in pieces) == pytest.approx(10_000)


def test_a_queue_that_gets_more_than_it_serves_is_never_empty() -> None:
    served = serve(pieces_of(Addition(10, NOW_S, 0), NOW_S, lambda at_s: 300.0), 200)
    assert served.drained_s is None


def test_consumers_process_their_backlog_first() -> None:
    pieces = pieces_of(Addition(1_000, NOW_S + 2, 0), NOW_S, lambda at_s: 0.0)
    delivered = serve(pieces, 1e6)
    consumed = serve(delivered.pieces, 100, backlog=500)
    assert lateness_s(consumed.pieces, (0.5, 1.0)) == pytest.approx([3 + 5, 3 + 10], rel=0.01)
    assert consumed.drained_s == pytest.approx(NOW_S + 15, abs=0.01)


def test_the_fluid_agrees_with_messages_one_by_one() -> None:
    chance = Random(1)
    for _ in range(20):
        rates, at_s = (chance.uniform(50, 500), chance.uniform(50, 500)), NOW_S
        pieces: list[Piece] = []
        for _ in range(12):
            following_s = at_s + chance.choice((0.0, 1.0, 3.0))
            count = chance.randrange(1_200)
            pieces.append(Piece(at_s, following_s, count, count))
            at_s = following_s + chance.choice((0.0, 2.0))
        late: list[float] = []
        free = [NOW_S, NOW_S]
        for piece in pieces:
            for number in range(int(piece.messages)):
                due_s = piece.begin_s + (piece.end_s - piece.begin_s) * (number + 1) / piece.messages
                ready_s = due_s
                for queue, rate in enumerate(rates):
                    free[queue] = ready_s = max(free[queue], ready_s - 1 / rate) + 1 / rate
                late.append(max(0.0, ready_s - due_s))
        late.sort()
        found = lateness_s(serve(serve(pieces, rates[0]).pieces, rates[1]).pieces, (0.5, 0.99, 1.0))
        expected = [late[len(late) // 2], late[len(late) * 99 // 100], late[-1]]
        assert found == pytest.approx(expected, rel=0.1, abs=0.1)


def test_the_rate_of_what_is_due_anyway_is_that_of_its_span() -> None:
    start_ms = int(NOW_S * 1000)
    density = Density(start_ms, [0] * 3_600, [0] * 1_380, [0] * 24)
    density.seconds[5], density.minutes[2], density.hours[3] = 40, 120, 7_200
    rates = Rates(density, start_ms // 60_000 * 60_000, 60_000, {0: 600, 10_000: 60})
    assert rates.at(NOW_S + 5.5) == pytest.approx(40 + (10 if start_ms % 60_000 < 54_000 else 0))
    assert rates.at(NOW_S + 3_600 + 130) == pytest.approx(2)
    assert rates.at(NOW_S + 86_400 + 3 * 3_600 + 7) == pytest.approx(2)
    assert rates.at(start_ms // 60_000 * 60 + 10_000 * 60 + 1) == pytest.approx(1)
    assert rates.at(NOW_S + 10**9) == 0
