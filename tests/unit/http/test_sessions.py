"""Sessions of browsers: who gets in, how long, and which requests come from a page of theirs."""

import asyncio
from pathlib import Path

import pytest

from latermq.clock import SimulatedClock
from latermq.errors import ConfigError
from latermq.http.problems import HttpError
from latermq.http.security.roles import Identity, Role
from latermq.http.security.sessions import MAX_CLOCK_STEP_MS, Sessions
from latermq.http.security.sign_outs import MAX_ENDED

SECRET = "0123456789abcdef"
ADMIN = Identity("admin", Role.ADMIN)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def sessions(clock: SimulatedClock) -> Sessions:
    return Sessions(SECRET, 60_000, clock)


async def sign_out(sessions: Sessions, cookie: str) -> None:
    assert identify(sessions, cookie) is not None
    await sessions.end([f"{sessions.cookie_name}={cookie}"])


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
    asyncio.run(sign_out(sessions, first))
    assert identify(sessions, first) is None
    assert identify(sessions, second) is not None


def test_more_sign_outs_than_are_remembered_end_older_sessions_instead_of_reviving_one(
    sessions: Sessions, clock: SimulatedClock
) -> None:
    async def scenario() -> None:
        old, ended = sessions.open(ADMIN), sessions.open(ADMIN)
        await sign_out(sessions, ended)
        clock.advance(1_000)
        for number in range(MAX_ENDED):
            await sessions.sign_outs.add(str(number), clock.now_ms() + 60_000)
        assert len(sessions.sign_outs) == MAX_ENDED
        assert identify(sessions, ended) is None
        assert identify(sessions, old) is None
        assert identify(sessions, sessions.open(ADMIN)) is not None

    asyncio.run(scenario())


def restarted(clock: SimulatedClock, path: Path | None) -> Sessions:
    return Sessions(SECRET, 60_000, clock, str(path or ""))


def test_a_restart_does_not_revive_a_session_that_was_signed_out(clock: SimulatedClock, tmp_path: Path) -> None:
    path = tmp_path / "sign-outs"
    sessions = restarted(clock, path)
    clock.advance(1)
    ended, other = sessions.open(ADMIN), sessions.open(ADMIN)
    asyncio.run(sign_out(sessions, ended))
    for _ in range(2):
        sessions = restarted(clock, path)
        assert identify(sessions, ended) is None
        assert identify(sessions, other) is not None
    assert path.stat().st_mode & 0o777 == 0o600
    clock.advance(60_000)
    asyncio.run(sessions.sign_outs.add("another", clock.now_ms() + 60_000))
    sessions = restarted(clock, path)
    assert len(sessions.sign_outs) == 1  # the first one has expired
    clock.step(-60_000)  # and does not come back with the time
    assert identify(sessions, ended) is None


@pytest.mark.parametrize("content", [None, b"", b"nonsense\n", b"latermq-sign-outs 1 0\nx\n", b"\xff", "none"])
def test_a_restart_that_does_not_know_what_was_signed_out_ends_all_sessions(
    clock: SimulatedClock, tmp_path: Path, content: bytes | str | None
) -> None:
    path = None if content == "none" else tmp_path / "sign-outs"
    before = restarted(clock, path)
    clock.advance(1)
    cookie = before.open(ADMIN)
    if isinstance(content, bytes):
        (tmp_path / "sign-outs").write_bytes(content)
    elif path is not None:
        path.unlink()
    clock.advance(1)
    sessions = restarted(clock, path)
    assert identify(sessions, cookie) is None
    assert identify(sessions, sessions.open(ADMIN)) is not None


def test_a_line_that_was_not_written_completely_costs_no_other(clock: SimulatedClock, tmp_path: Path) -> None:
    path = tmp_path / "sign-outs"
    sessions = restarted(clock, path)
    clock.advance(1)
    ended, other = sessions.open(ADMIN), sessions.open(ADMIN)
    asyncio.run(sign_out(sessions, ended))
    with path.open("ab") as file:
        file.write(b"0123456789")
    sessions = restarted(clock, path)
    assert (identify(sessions, ended), identify(sessions, other) is None) == (None, False)


def test_a_sign_out_that_cannot_be_saved_is_in_effect_and_saved_with_the_next(
    clock: SimulatedClock, tmp_path: Path
) -> None:
    async def scenario() -> None:
        path = tmp_path / "folder" / "sign-outs"
        path.parent.mkdir()
        sessions = restarted(clock, path)
        clock.advance(1)
        first, second = sessions.open(ADMIN), sessions.open(ADMIN)
        path.parent.rename(tmp_path / "gone")
        with pytest.raises(HttpError, match="cannot be saved: No such file"):
            await sign_out(sessions, first)
        assert identify(sessions, first) is None
        (tmp_path / "gone").rename(path.parent)
        await sign_out(sessions, second)
        sessions = restarted(clock, path)
        assert identify(sessions, first) is identify(sessions, second) is None
        assert len(sessions.sign_outs) == 2

    asyncio.run(scenario())


def test_a_file_that_cannot_be_written_is_refused_at_the_start(clock: SimulatedClock, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write"):
        restarted(clock, tmp_path / "missing" / "sign-outs")


def test_a_csrf_token_is_valid_for_its_session_only_and_differs_each_time(sessions: Sessions) -> None:
    one, other = sessions.csrf_token("a"), sessions.csrf_token("a")
    assert one != other
    assert sessions.is_csrf_token("a", one)
    assert sessions.is_csrf_token("a", other)
    for wrong in ("", ".", one[:-1], one + "x", one.replace(".", ""), "é", sessions.csrf_token("b")):
        assert not sessions.is_csrf_token("a", wrong), wrong
    assert sessions.csrf_token("") == ""
