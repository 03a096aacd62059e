"""The user of `access.init_user`: created once, and not again after it was deleted."""

import hashlib
from typing import Any

import msgspec
import pytest

from latermq.access.access_file import ACCESS_PATH
from latermq.config import AccessConfig
from latermq.errors import ConfigError
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.signed_requests import SECRETS
from tests.support.users_in_memory import CONFIG, UsersScene, open_table

OTHER = AccessConfig(enabled=True, init_user="first:f1rst")


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SECRETS, "admin", "admin-secret")


def with_admin() -> UsersScene:
    scene = UsersScene(MemoryDisk())
    assert scene.create("admin", userType="Super").remark == ""
    return scene


def restarted(scene: UsersScene, config: AccessConfig = CONFIG) -> UsersScene:
    return UsersScene(scene.disk.after_process_crash(), config)


def stored(scene: UsersScene) -> dict[str, Any]:
    """The content of the file."""
    content = (scene.disk.read(ACCESS_PATH) or b"").partition(b"\n")[2]
    file: dict[str, Any] = msgspec.json.decode(content)
    return file


def write(scene: UsersScene, file: dict[str, Any]) -> None:
    """Replace the file."""
    content = msgspec.json.encode(file)
    head = b"latermq-access 1 " + hashlib.sha256(content).hexdigest().encode()
    scene.disk.replace(ACCESS_PATH, head + b"\n" + content)


def test_it_is_created_at_the_first_start_and_then_left_alone() -> None:
    scene = UsersScene(MemoryDisk())
    assert scene.table.state.users["root"].secret == "r00t"
    assert scene.table.state.users["root"].is_super
    again = restarted(scene, AccessConfig(enabled=True, init_user="root:another"))
    assert again.table.state.users["root"].secret == "r00t"
    assert again.table.state.revision == scene.table.state.revision


def test_it_stays_deleted_through_all_starts() -> None:
    scene = with_admin()
    assert scene.delete("root", by="admin").remark == ""
    for _ in range(3):
        scene = restarted(scene)
        assert list(scene.table.state.users) == ["admin"]
        assert scene.table.deleted_init_user == "root"
        assert scene.call("root", 3005, {"filter": ""}).remark == "User:root is not found."
    assert scene.create("root", by="admin").remark == ""
    scene = restarted(scene)
    assert scene.table.state.users["root"].secret == "root-secret"
    assert scene.table.deleted_init_user == ""


def test_one_that_was_there_before_the_setting_stays_deleted_too() -> None:
    scene = UsersScene(MemoryDisk(), OTHER)
    assert scene.call("first", 3001, {"username": "root"}, b'{"password":"x"}', "f1rst").remark == ""
    scene = restarted(scene)  # with the setting
    assert scene.call("first", 3003, {"username": "root"}, secret="f1rst").remark == ""
    assert list(restarted(scene).table.state.users) == ["first"]


def test_another_name_is_created_once_too() -> None:
    scene = restarted(with_admin(), OTHER)
    assert set(scene.table.state.users) == {"root", "admin", "first"}
    assert scene.delete("first", by="root").remark == ""
    assert set(restarted(scene, OTHER).table.state.users) == {"root", "admin"}


def test_without_a_super_user_it_is_created_again() -> None:
    scene = with_admin()
    assert scene.delete("root", by="admin").remark == ""
    file = stored(scene)
    assert file["init_user"] == "root"
    for user in file["users"]:
        user["super"] = False  # no request can do that
    write(scene, file)
    again = restarted(scene)
    assert again.table.state.users["root"].is_super
    assert again.table.deleted_init_user == ""
    with pytest.raises(ConfigError, match="there is no super user"):
        open_table(scene.disk.after_process_crash(), AccessConfig(enabled=True))


def test_a_file_of_an_earlier_version_names_no_such_user() -> None:
    scene = with_admin()
    file = stored(scene)
    del file["init_user"]
    write(scene, file)
    scene = restarted(scene)
    assert scene.delete("root", by="admin").remark == ""
    assert list(restarted(scene).table.state.users) == ["admin"]
