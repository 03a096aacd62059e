"""A clock that leaps, a machine that sleeps, and a broker that is started again in the middle of it."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from latermq.client import OutgoingMessage, Producer
from latermq.errors import StoreError
from latermq.handover.checked_file import decode_checked, encode_checked
from latermq.timer.delivery.clock_guard import HOLD_S, PATH, ClockState
from tests.interop.waiting import wait_until
from tests.support.brokers_in_memory import bodies, run_until_quiet
from tests.support.serving import Server, serving
from tests.unit.timer.test_timers import Scene

HOLD_MS = int(HOLD_S * 1_000)
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def scene() -> Iterator[Scene]:
    """A timer and a delayed message wait for half an hour more."""
    scene = Scene("wheel")
    scene.send(b"timer", HOUR_MS // 2)
    scene.broker.writer.send("orders", 0, b"level", "DELAY\x0116\x02", 1_700_000_000_000, bytes(8))
    scene.checkpoint()
    yield scene
    scene.broker.timers.engine.close()


def delivered(scene: Scene) -> list[bytes]:
    return sorted(bodies(scene.broker))


BOTH = [b"level", b"timer"]


@pytest.mark.parametrize("noticed", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_the_hold_of_a_leap_outlives_a_restart(scene: Scene, noticed: bool, clean: bool) -> None:
    scene.pass_time(2_000)
    scene.clock.step(2 * HOUR_MS)
    if noticed:
        scene.pass_time(10_000)
        assert scene.broker.timers.guard.is_holding
    scene.restart(clean=clean)
    assert scene.broker.timers.guard.is_holding
    assert "jumped forward by 7200 s" in scene.broker.timers.guard.alarm
    scene.pass_time(HOLD_MS - 10_001)
    assert delivered(scene) == []
    scene.pass_time(10_002)
    assert delivered(scene) == BOTH
    assert not scene.broker.timers.guard.is_holding


@pytest.mark.parametrize("noticed", [True, False])
def test_a_leap_that_is_set_right_after_a_restart_delivers_nothing_early(scene: Scene, noticed: bool) -> None:
    scene.pass_time(1_000)
    scene.clock.step(2 * HOUR_MS)
    if noticed:
        scene.pass_time(5_000)
    scene.restart()
    scene.pass_time(20_000)
    scene.clock.step(-2 * HOUR_MS)
    scene.pass_time(2_000)
    assert not scene.broker.timers.guard.is_holding
    assert delivered(scene) == []
    scene.pass_time(HOUR_MS // 2)
    assert delivered(scene) == BOTH


def test_a_leap_that_is_set_right_while_the_broker_is_down_is_forgotten(scene: Scene) -> None:
    scene.pass_time(1_000)
    scene.clock.step(2 * HOUR_MS)
    scene.pass_time(5_000)
    scene.clock.step(-2 * HOUR_MS)
    scene.restart()
    assert not scene.broker.timers.guard.is_holding
    scene.pass_time(1_000)
    assert delivered(scene) == []


def test_a_broker_that_dies_again_and_again_holds_for_a_minute_in_all(scene: Scene) -> None:
    scene.pass_time(1_000)
    scene.clock.step(2 * HOUR_MS)
    for _ in range(5):
        scene.pass_time(10_000)
        scene.restart()
        assert delivered(scene) == []
    scene.pass_time(11_000)
    assert delivered(scene) == BOTH


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("rebooted", [True, False])
def test_what_fell_due_while_the_broker_was_off_for_a_day_arrives_at_its_start(
    scene: Scene, rebooted: bool, clean: bool
) -> None:
    scene.pass_time(1_000)
    if clean:
        scene.broker.close()
    if rebooted:
        scene.clock.reboot(DAY_MS)
    else:
        scene.clock.advance(DAY_MS)
    scene.restart()
    run_until_quiet(scene.broker)
    assert delivered(scene) == BOTH


def test_a_machine_that_slept_has_not_leapt(scene: Scene) -> None:
    scene.pass_time(1_000)
    scene.clock.sleep(3 * HOUR_MS)
    run_until_quiet(scene.broker)
    assert scene.broker.timers.guard.alarm == ""
    assert delivered(scene) == BOTH


def test_a_machine_that_sleeps_and_then_leaps_is_held(scene: Scene) -> None:
    scene.pass_time(1_000)
    scene.clock.sleep(HOUR_MS // 4)
    scene.clock.step(2 * HOUR_MS)
    scene.pass_time(1_000)
    assert scene.broker.timers.guard.is_holding
    assert delivered(scene) == []


def test_the_rest_of_a_hold_outlives_a_reboot(scene: Scene) -> None:
    scene.pass_time(1_000)
    scene.clock.step(2 * HOUR_MS)
    scene.pass_time(10_000)
    scene.clock.reboot(20_000)
    scene.restart()
    assert scene.broker.timers.guard.is_holding
    scene.pass_time(25_000)
    assert delivered(scene) == []
    scene.pass_time(6_000)
    assert delivered(scene) == BOTH


def test_a_hold_that_ended_while_the_machine_was_off_is_over(scene: Scene) -> None:
    scene.pass_time(1_000)
    scene.clock.step(2 * HOUR_MS)
    scene.pass_time(10_000)
    scene.clock.reboot(2 * HOLD_MS)
    scene.restart()
    run_until_quiet(scene.broker)
    assert delivered(scene) == BOTH


def test_a_step_back_is_remembered_so_that_what_follows_is_judged_by_it(scene: Scene) -> None:
    scene.pass_time(1_000)
    scene.clock.step(-2 * HOUR_MS)
    scene.pass_time(1_000)
    scene.restart()
    scene.clock.step(2 * HOUR_MS)
    scene.restart()
    assert scene.broker.timers.guard.is_holding


@pytest.mark.parametrize("content", [b"", b"{}\n00000000\n", None])
def test_a_broker_starts_without_a_memory_of_the_clock(scene: Scene, content: bytes | None) -> None:
    scene.pass_time(HOUR_MS // 4)
    scene.disk.remove(PATH)
    if content is not None:
        scene.disk.replace(PATH, content)
    scene.restart()
    scene.pass_time(HOUR_MS // 4 + 1_000)
    assert delivered(scene) == BOTH


def test_a_hold_that_cannot_be_written_holds_all_the_same_and_is_written_later(scene: Scene) -> None:
    scene.pass_time(1_000)

    def refuse(operation: str, path: str) -> None:
        if path.startswith(PATH):
            raise StoreError("injected")

    scene.disk.before_step = refuse
    scene.clock.step(2 * HOUR_MS)
    scene.pass_time(5_000)
    assert scene.broker.timers.guard.is_holding
    scene.disk.before_step = lambda operation, path: None
    scene.pass_time(5_000)
    scene.clock.reboot(1_000)
    scene.restart()
    assert scene.broker.timers.guard.is_holding


def test_a_clock_that_goes_on_as_ever_writes_nothing(scene: Scene) -> None:
    scene.pass_time(1_000)
    touched: list[str] = []
    scene.disk.before_step = lambda operation, path: touched.append(path)
    for _ in range(5):
        scene.pass_time(2_000)
        scene.clock.step(5)
    assert not [path for path in touched if path.startswith(PATH)]


# A real process


async def send_timer(server: Server, body: bytes, delay_ms: int) -> None:
    async with Producer(server.namesrv) as producer:
        await producer.send(OutgoingMessage("orders", body, properties={"TIMER_DELAY_MS": str(delay_ms)}))


def delivered_bytes(data: Path, body: bytes) -> int:
    """How often a body is in the log: once while it waits, twice when it was delivered."""
    return sum(file.read_bytes().count(body) for file in (data / "commitlog").iterdir())


@pytest.mark.real
def test_a_broker_that_was_killed_after_a_leap_holds_when_it_starts_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = ("--set", "store.segment=8MiB")
    with serving(data, *options) as server:
        asyncio.run(send_timer(server, b"held-back", 3_000))
        wait_until((data / PATH).exists, 10, "the broker has written down what it believes")
        server.kill()
    state = decode_checked((data / PATH).read_bytes(), ClockState, PATH, "")
    assert state.boot_id
    assert state.hold is None
    # As if the clock had leapt by two hours since.
    leapt = msgspec.structs.replace(state, offset_ms=state.offset_ms - 2 * HOUR_MS)
    (data / PATH).write_bytes(encode_checked(leapt))
    with serving(data, *options) as server:
        wait_until(lambda: "jumped forward by 7200 s" in server.log(), 20, "the hold is told")
        time.sleep(4)
        assert delivered_bytes(data, b"held-back") == 1
        server.kill()
    (data / PATH).write_bytes(encode_checked(state))
    with serving(data, *options):
        wait_until(lambda: delivered_bytes(data, b"held-back") == 2, 20, "the timer was delivered")
