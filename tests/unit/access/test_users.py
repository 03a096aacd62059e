"""Users: changes by administrators, and the file that keeps them."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from latermq.access.access_file import ACCESS_PATH, decode_access, encode_access, new_seal
from latermq.access.changes import Editor, KnownUser, Limits, UserChange
from latermq.access.imports import ImportedUser
from latermq.access.inner_credentials import load_inner_secret, load_or_create_inner_secret
from latermq.access.policies import NO_ACL, Acl, parse_entry
from latermq.access.users import NO_USERS, AccessState, User
from latermq.client.session.credentials import Credentials
from latermq.errors import ConfigError, CorruptStore, LaterMQError, NoPermission

SHOWN_NOWHERE = "s3cr3t"
KEY = "correct horse battery staple"
ACL = Acl([parse_entry("Topic:orders", ["Pub"], ["10.0.0.0/8"], "Allow")], [parse_entry("*", ["All"], [], "Deny")])


def counted_bytes(size: int) -> bytes:
    return next(_numbers).to_bytes(size, "big")


_numbers = count(1)


@pytest.fixture
def editor() -> Editor:
    revisions = count(1)
    return Editor(Limits(max_users=3, max_entries=3), lambda: str(next(revisions)))


@pytest.fixture
def state(editor: Editor) -> AccessState:
    state = editor.create_user(NO_USERS, "root", UserChange(secret="r", is_super=True), by_super=True)
    state = editor.create_user(state, "alice", UserChange(secret="s3cret"), by_super=True)
    return editor.merge_acl(state, "User:alice", ACL, by_super=True)


@pytest.mark.parametrize("key", ["", KEY])
def test_users_and_policies_survive_the_file(state: AccessState, editor: Editor, key: str) -> None:
    change = UserChange(secret="next", is_enabled=False, keeps_previous=True)
    state = editor.update_user(state, "alice", change, by_super=True)
    data = encode_access(state, new_seal(key, counted_bytes) if key else None)
    assert (b"s3cret" in data) == (not key)
    read, seal, _ = decode_access(data, key, counted_bytes)
    assert (read.users, read.acls, read.revision) == (state.users, state.acls, state.revision)
    assert read.users["alice"].secrets == ("next", "s3cret")
    again = decode_access(encode_access(read, seal), key, counted_bytes).state
    assert again.users == state.users


def test_a_repeated_rotation_keeps_the_secret_that_the_first_one_replaced(state: AccessState, editor: Editor) -> None:
    rotation = UserChange(secret="next", keeps_previous=True)
    for _ in range(2):
        state = editor.update_user(state, "alice", rotation, by_super=True)
    assert state.users["alice"].secrets == ("next", "s3cret")
    state = editor.update_user(state, "alice", UserChange(drops_previous=True), by_super=True)
    assert state.users["alice"].secrets == ("next",)


def test_sealed_secrets_need_their_key(state: AccessState) -> None:
    data = encode_access(state, new_seal(KEY, counted_bytes))
    with pytest.raises(ConfigError, match="there is no key"):
        decode_access(data, "", counted_bytes)
    with pytest.raises(ConfigError, match="with another key"):
        decode_access(data, KEY + "!", counted_bytes)


def test_a_damaged_file_is_refused_at_every_byte(state: AccessState) -> None:
    data = encode_access(state, None)
    for at in range(len(data)):
        with pytest.raises(CorruptStore, match=ACCESS_PATH):
            decode_access(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "", counted_bytes)
        with pytest.raises(CorruptStore):
            decode_access(data[:at], "", counted_bytes)


Change = Callable[[Editor, AccessState], AccessState]


@pytest.mark.parametrize(
    ("change", "code", "remark"),
    [
        (lambda e, s: e.create_user(s, "", UserChange(secret="x"), by_super=True), 29, "The username is blank"),
        (lambda e, s: e.create_user(s, "bob", UserChange(), by_super=True), 16, "password can not be blank"),
        (lambda e, s: e.create_user(s, "alice", UserChange(secret="x"), by_super=True), 16, "The user is existed"),
        (
            lambda e, s: e.create_user(s, "bob", UserChange(secret="x", is_super=True), by_super=False),
            1,
            "The super user can only be create by super user",
        ),
        (lambda e, s: e.update_user(s, "bob", UserChange(), by_super=True), 16, "The user is not exist"),
        (
            lambda e, s: e.update_user(s, "root", UserChange(secret="x"), by_super=False),
            1,
            "The super user can only be update by super user",
        ),
        (
            lambda e, s: e.update_user(s, "alice", UserChange(is_super=True), by_super=False),
            1,
            "The super user can only be update by super user",
        ),
        (
            lambda e, s: e.delete_user(s, "root", by_super=False),
            1,
            "The super user can only be update by super user",
        ),
        (lambda e, s: e.merge_acl(s, "", ACL, by_super=True), 16, "The subject is not exist."),
        (lambda e, s: e.merge_acl(s, "User:zz", ACL, by_super=True), 16, "The subject of User:zz is not exist."),
        (lambda e, s: e.merge_acl(s, "User:alice", Acl(), by_super=True), 16, "The policies is empty."),
        (
            lambda e, s: e.delete_acl(s, "User:zz", "", is_default=False, by_super=True),
            16,
            "The subject is not exist.",
        ),
        (
            lambda e, s: e.delete_user(s, "root", by_super=True),
            16,
            "User:root is the only super user. Create another one first",
        ),
        (
            lambda e, s: e.update_user(s, "root", UserChange(is_super=False), by_super=True),
            16,
            "User:root is the only super user. Create another one first",
        ),
        (
            lambda e, s: e.update_user(s, "root", UserChange(secret="x", is_enabled=False), by_super=True),
            16,
            "User:root is the only super user. Create another one first",
        ),
        (lambda e, s: e.delete_user(s, " ", by_super=True), 16, "username can not be blank"),
    ],
)
def test_a_wrong_change_is_refused_with_apaches_remark(
    state: AccessState, editor: Editor, change: Change, code: int, remark: str
) -> None:
    with pytest.raises(LaterMQError) as refused:
        change(editor, state)
    assert (refused.value.code, refused.value.remark) == (code, remark)


@pytest.mark.parametrize("change", [UserChange(is_super=False), UserChange(is_enabled=False), None])
def test_a_disabled_super_user_does_not_replace_an_enabled_one(
    state: AccessState, editor: Editor, change: UserChange | None
) -> None:
    def end(state: AccessState, name: str) -> AccessState:
        if change is None:
            return editor.delete_user(state, name, by_super=True)
        return editor.update_user(state, name, change, by_super=True)

    other = UserChange(secret="o", is_super=True, is_enabled=False)
    state = editor.create_user(state, "other", other, by_super=True)
    with pytest.raises(NoPermission, match=r"^User:root is the only enabled super user"):
        end(state, "root")
    state = end(editor.update_user(state, "other", UserChange(is_enabled=True), by_super=True), "root")
    assert [user.name for user in state.users.values() if user.is_super and user.is_enabled] == ["other"]


def test_super_users_that_are_all_disabled_stay_one_at_least(state: AccessState, editor: Editor) -> None:
    """As an earlier version could leave them."""
    users = {name: User(name=name, secret="s", is_super=True, is_enabled=False) for name in ("root", "other")}
    state = editor.delete_user(AccessState(users, {}, "0"), "other", by_super=True)
    with pytest.raises(NoPermission, match="only super user"):
        editor.delete_user(state, "root", by_super=True)


@pytest.mark.parametrize("name", ["a:b", "a/b", "a\n", "x" * 129, "latermq-inner", " alice"])
def test_a_name_that_a_signature_or_a_log_line_could_not_hold_is_refused(
    state: AccessState, editor: Editor, name: str
) -> None:
    with pytest.raises(NoPermission):
        editor.create_user(state, name, UserChange(secret="x"), by_super=True)


def test_users_and_entries_are_bounded(state: AccessState, editor: Editor) -> None:
    state = editor.create_user(state, "bob", UserChange(secret="x"), by_super=True)
    with pytest.raises(NoPermission, match=r"access\.max_users"):
        editor.create_user(state, "carol", UserChange(secret="x"), by_super=True)
    entries = Acl([parse_entry(f"Topic:{n}", ["Pub"], [], "Allow") for n in range(2)])
    with pytest.raises(NoPermission, match=r"access\.max_entries"):
        editor.merge_acl(state, "User:alice", entries, by_super=True)


def test_a_rotated_secret_stays_valid_until_it_is_dropped(state: AccessState, editor: Editor) -> None:
    state = editor.update_user(state, "alice", UserChange(secret="two", keeps_previous=True), by_super=True)
    assert state.users["alice"].secrets == ("two", "s3cret")
    state = editor.update_user(state, "alice", UserChange(drops_previous=True), by_super=True)
    assert state.users["alice"].secrets == ("two",)
    state = editor.update_user(state, "alice", UserChange(secret="three"), by_super=True)
    assert state.users["alice"].secrets == ("three",)


def test_a_deleted_user_leaves_no_permissions_to_a_new_one(state: AccessState, editor: Editor) -> None:
    state = editor.delete_user(state, "alice", by_super=True)
    assert editor.delete_user(state, "alice", by_super=True) is state
    state = editor.create_user(state, "alice", UserChange(secret="x"), by_super=True)
    assert len(state.acl("alice")) == 0


def test_every_change_has_a_revision_of_its_own(state: AccessState, editor: Editor) -> None:
    changed = editor.delete_acl(state, "User:alice", "Topic:orders", is_default=False, by_super=True)
    assert changed.revision != state.revision
    assert changed.acl("alice") == Acl(default=ACL.default)
    assert "alice" not in editor.delete_acl(changed, "User:alice", "", is_default=False, by_super=True).acls


def test_a_user_is_shown_without_its_secret(state: AccessState) -> None:
    assert "s3cret" not in repr(state.users["alice"])


def test_the_inner_secret_is_created_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "latermq.inner"
    secret = load_or_create_inner_secret(path)
    assert load_or_create_inner_secret(path) == secret == load_inner_secret(path)
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("short")
    with pytest.raises(ConfigError, match="letters and digits"):
        load_inner_secret(path)
    with pytest.raises(ConfigError, match="cannot read"):
        load_inner_secret(tmp_path / "missing")


@pytest.mark.parametrize(
    "shown",
    [
        User(name="alice", secret=SHOWN_NOWHERE, previous_secret=SHOWN_NOWHERE),
        UserChange(secret=SHOWN_NOWHERE),
        KnownUser("alice", is_super=False, is_enabled=True, has_previous=False, secret=SHOWN_NOWHERE),
        ImportedUser("alice", SHOWN_NOWHERE, is_super=False, is_enabled=True, acl=NO_ACL),
        Credentials("alice", SHOWN_NOWHERE),
    ],
    ids=lambda shown: type(shown).__name__,
)
def test_no_secret_is_shown(shown: object) -> None:
    assert SHOWN_NOWHERE not in f"{shown} {shown!r}"
