"""Sessions of browsers: who gets in, how long, and which requests come from a page of theirs."""

import pytest

from latermq.clock import SimulatedClock
from latermq.http.security.roles import Identity, Role
from latermq.http.security.sessions import MAX_CLOCK_STEP_MS, MAX_ENDED, Sessions

SECRET = "0123456789abcdef"
ADMIN = Identity("admin", Role.ADMIN)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def sessions(clock: SimulatedClock) -> Sessions:
    return Sessions(SECRET, 60_000, clock)


def identify(sessions: Sessions, cookie: str) -> Identity | None:
    return sessions.identity_of([f"other=1; {sessions.cookie_name}={cookie}"])


def test_a_session_is_recognised_until_it_expires(sessions: Sessions, clock: SimulatedClock) -> None:
    cookie = sessions.open(ADMIN)
    found = identify(sessions, cookie)
    assert found is not None
    assert (found.name, found.role, bool(found.session)) == ("admin", Role.ADMIN, True)
    clock.advance(59_999)
    assert identify(sessions, cookie) == found
    clock.advance(1)
    assert identify(sessions, cookie) is None


def test_a_clock_that_is_set_back_does_not_make_sessions_last_longer(sessions: Sessions, clock: SimulatedClock) -> None:
    cookie = sessions.open(ADMIN)
    clock.step(-MAX_CLOCK_STEP_MS)
    assert identify(sessions, cookie) is not None
    clock.step(-1)
    assert identify(sessions, cookie) is None


def test_a_shorter_timeout_ends_sessions_that_were_opened_for_longer(clock: SimulatedClock) -> None:
    cookie = Sessions(SECRET, 12 * 3_600_000, clock).open(ADMIN)
    assert identify(Sessions(SECRET, 3_600_000, clock), cookie) is None


def test_another_console_with_the_same_token_accepts_a_session_and_one_with_another_token_does_not(
    sessions: Sessions, clock: SimulatedClock
) -> None:
    cookie = sessions.open(ADMIN)
    twin, stranger = Sessions(SECRET, 60_000, clock), Sessions(SECRET + "x", 60_000, clock)
    assert identify(twin, cookie) == identify(sessions, cookie)
    assert stranger.cookie_name != sessions.cookie_name
    assert identify(stranger, cookie) is None


@pytest.mark.parametrize("changed", [0, 5, -1, -20])
def test_a_changed_cookie_is_refused(sessions: Sessions, changed: int) -> None:
    cookie = sessions.open(ADMIN)
    letters = list(cookie)
    letters[changed] = "A" if letters[changed] != "A" else "B"
    assert identify(sessions, "".join(letters)) is None


@pytest.mark.parametrize("cookie", ["", ".", "x", "a.b.c", "é.é", "=" * 100, "x" * 5_000, '"; x="'])
def test_what_is_no_session_is_refused(sessions: Sessions, cookie: str) -> None:
    assert identify(sessions, cookie) is None


def test_an_ended_session_is_refused_and_others_remain(sessions: Sessions) -> None:
    first, second = sessions.open(ADMIN), sessions.open(ADMIN)
    found = identify(sessions, first)
    assert found is not None
    sessions.end(found.session)
    assert identify(sessions, first) is None
    assert identify(sessions, second) is not None


def test_the_memory_of_ended_sessions_is_bounded(sessions: Sessions) -> None:
    for number in range(MAX_ENDED + 10):
        sessions.end(str(number))
    assert sessions.ended == MAX_ENDED


def test_a_csrf_token_is_valid_for_its_session_only_and_differs_each_time(sessions: Sessions) -> None:
    one, other = sessions.csrf_token("a"), sessions.csrf_token("a")
    assert one != other
    assert sessions.is_csrf_token("a", one)
    assert sessions.is_csrf_token("a", other)
    for wrong in ("", ".", one[:-1], one + "x", one.replace(".", ""), "é", sessions.csrf_token("b")):
        assert not sessions.is_csrf_token("a", wrong), wrong
    assert sessions.csrf_token("") == ""
