"""Changes of users that cannot be saved, or whose broker dies: each is in effect as a whole, or not at all."""

import contextlib
import errno
import os
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from latermq.store.files.memory_disk import MemoryDisk, SimulatedCrash
from tests.support.signed_requests import SECRETS
from tests.support.users_in_memory import Asked, UsersScene, open_table, shown

PATH = "config/latermq.access"
CALLS = ("open", "write", "sync", "rename", "sync_folder")
CHANGES: dict[str, Callable[[UsersScene], Asked]] = {
    "create": lambda scene: scene.create("carol"),
    "delete": lambda scene: scene.delete("alice"),
    "grant": lambda scene: scene.grant("alice", "Topic:orders"),
}


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("carol", "dave", "eve"):
        monkeypatch.setitem(SECRETS, name, f"{name}-secret")


def with_alice(disk: MemoryDisk | None = None) -> UsersScene:
    scene = UsersScene(disk or MemoryDisk())
    assert scene.create("alice").remark == ""
    assert scene.grant("alice", "Topic:bills").remark == ""
    return scene


def fail(scene: UsersScene, call: str, times: int = 1) -> None:
    """Let the next calls of this kind fail; one that makes names durable fails after it was made."""
    calls: Any = scene.disk.calls
    made = getattr(calls, call)
    left = times

    def failing(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        if left and not options.get("read_only"):
            left -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return made(*arguments, **options)

    setattr(calls, call, failing)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_that_cannot_be_saved_is_not_in_effect(kind: str, call: str) -> None:
    scene = with_alice()
    before, revision = shown(scene.table.state), scene.table.state.revision
    fail(scene, call)
    refused = CHANGES[kind](scene)
    assert "cannot write config/latermq.access" in refused.remark
    assert shown(scene.table.state) == before
    assert scene.table.state.revision == revision
    assert shown(open_table(scene.disk.after_process_crash()).state) == before
    assert shown(open_table(scene.disk.after_machine_crash(Random(1))).state) == before
    assert CHANGES[kind](scene).remark == ""
    after = shown(scene.table.state)
    assert after != before
    assert shown(open_table(scene.disk.after_process_crash()).state) == after


def test_a_change_on_a_full_disk_is_not_in_effect() -> None:
    scene = with_alice()
    before = shown(scene.table.state)
    capacity, scene.disk.capacity_bytes = scene.disk.capacity_bytes, scene.disk.used_bytes
    for change in CHANGES.values():
        assert "No space left on device" in change(scene).remark
        assert shown(scene.table.state) == before
    scene.disk.capacity_bytes = capacity
    assert shown(open_table(scene.disk.after_process_crash()).state) == before
    assert scene.create("carol").remark == ""


@pytest.mark.parametrize("halfway", [False, True])
@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_whose_broker_dies_is_there_as_a_whole_or_not_at_all(kind: str, halfway: bool) -> None:
    before, outcomes = shown(with_alice().table.state), set()
    changed = with_alice()
    CHANGES[kind](changed)
    after = shown(changed.table.state)
    for calls in range(20):
        for seed in range(4):
            scene = with_alice()
            scene.disk.crash_after(calls, halfway=halfway)
            is_confirmed = False
            with contextlib.suppress(SimulatedCrash):
                is_confirmed = CHANGES[kind](scene).remark == ""
            for disk in (scene.disk.after_process_crash(), scene.disk.after_machine_crash(Random(seed))):
                found = shown(open_table(disk).state)
                assert found in ((after,) if is_confirmed else (before, after)), f"after {calls} calls"
                outcomes.add((is_confirmed, found == after))
    assert outcomes >= {(False, False), (False, True), (True, True)}


def test_a_file_that_cannot_be_restored_at_once_is_restored_later() -> None:
    scene = with_alice()
    before = shown(scene.table.state)
    fail(scene, "sync_folder", times=2)  # of the change, and of its undoing
    assert "a restart may bring this change into effect" in scene.create("carol").remark
    assert shown(scene.table.state) == before
    needs_mending = [scene.table.has_failed_undo]
    scene.table.mend()
    needs_mending.append(scene.table.has_failed_undo)
    assert needs_mending == [True, False]
    assert shown(open_table(scene.disk.after_machine_crash(Random(2))).state) == before


def test_the_first_user_of_a_directory_leaves_no_file_if_it_cannot_be_saved() -> None:
    disk = MemoryDisk()
    made = disk.calls.sync_folder
    disk.calls.sync_folder = lambda path: (_ for _ in ()).throw(OSError(errno.EIO, "x"))  # type: ignore[method-assign]
    with pytest.raises(Exception, match="cannot write"):
        open_table(disk)
    disk.calls.sync_folder = made  # type: ignore[method-assign]
    assert disk.read(PATH) is None
    assert list(open_table(disk).state.users) == ["root"]


# Several changes in one round


def test_changes_that_wait_for_the_disk_are_not_in_effect_yet() -> None:
    scene = with_alice()
    before = shown(scene.table.state)
    scene.holds = True
    one, two = scene.create("carol"), scene.grant("carol", "Topic:orders")
    assert shown(scene.table.state) == before
    assert one.reply is None and two.reply is None  # noqa: PT018
    scene.release()
    assert one.remark == two.remark == ""
    assert scene.table.state.acl("carol").custom
    assert shown(open_table(scene.disk.after_process_crash()).state) == shown(scene.table.state)


def test_what_was_derived_from_a_change_that_cannot_be_saved_is_refused_with_it() -> None:
    scene = with_alice()
    before = shown(scene.table.state)
    scene.holds = True
    first = scene.create("carol")
    later = [scene.create("dave"), scene.grant("carol", "Topic:orders")]  # of the next round
    fail(scene, "write")
    scene.held.pop(0)()
    assert "cannot write" in first.remark
    after_failure = scene.create("eve")  # derived from what is in effect
    scene.release()
    assert all("cannot write" in one.remark for one in later)
    assert after_failure.remark == ""
    assert set(scene.table.state.users) - set(before) == {"eve"}
    assert shown(open_table(scene.disk.after_process_crash()).state) == shown(scene.table.state)


def test_an_administrator_whose_removal_waits_for_the_disk_can_change_nothing_more() -> None:
    scene = with_alice()
    assert scene.create("eve", userType="Super").remark == ""
    scene.holds = True
    removed = scene.delete("eve")
    attempts = [scene.create("mallory", by="eve"), scene.grant("alice", "*", by="eve"), scene.delete("root", by="eve")]
    assert [one.remark for one in attempts] == ["User:eve is not found."] * 3
    scene.release()
    assert removed.remark == ""
    assert set(scene.table.state.users) == {"root", "alice"}


def test_random_changes_with_failures_leave_file_and_state_alike() -> None:
    """Whatever fails when: what is in effect is what was confirmed, and the next start finds it."""
    for seed in range(40):
        chance = Random(seed)
        scene, names = with_alice(), {"root", "alice"}
        for step in range(30):
            scene.holds = chance.random() < 0.5
            if chance.random() < 0.3:
                fail(scene, chance.choice(CALLS))
            name = f"u{step}"
            asked = [(name, scene.create(name)), (f"{name}b", scene.create(f"{name}b"))]
            scene.holds = False
            scene.release()
            names |= {name for name, one in asked if one.remark == ""}
            assert set(scene.table.state.users) == names, (seed, step)
            assert shown(open_table(scene.disk.after_process_crash()).state) == shown(scene.table.state), (seed, step)
