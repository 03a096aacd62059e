"""`latermq user` and `latermq acl` against real brokers: what they print, how they end, and what is then in effect."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from latermq.access.inner_credentials import FILE_NAME
from tests.integration.command_line import Cli
from tests.integration.test_completions import press_tab
from tests.interop.ports import free_port
from tests.support.serving import Server, another_broker, serving

ROOT = {"LATERMQ_USER": "root", "LATERMQ_SECRET": "r00t"}
ON = {"LATERMQ_ACCESS_ENABLED": "true", "LATERMQ_ACCESS_INIT_USER": "root:r00t"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access") / "data"


@pytest.fixture(scope="module")
def inner_file(data: Path) -> Path:
    """The secret of the server's own processes."""
    return data / FILE_NAME


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[Server]:
    with serving(data, "--set", "store.segment=64MiB", environment=ON) as server:
        yield server


@pytest.fixture
def cli(server: Server, monkeypatch: pytest.MonkeyPatch) -> Cli:
    become(monkeypatch, "root", "r00t")
    return Cli(server)


def become(monkeypatch: pytest.MonkeyPatch, user: str, secret: str) -> None:
    monkeypatch.setenv("LATERMQ_USER", user)
    monkeypatch.setenv("LATERMQ_SECRET", secret)


def test_a_user_with_a_generated_secret_may_do_what_it_is_granted(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    printed, note = cli.run("user", "create", "alice")
    secret = printed.strip()
    assert len(secret) >= 32
    assert "it may do nothing yet" in note
    cli.run("acl", "grant", "alice", "Topic:ord*", "Pub")
    become(monkeypatch, "alice", secret)
    cli.run("send", "orders", "hello")
    assert "User:alice has no permission to access Topic:bills" in cli.error("send", "bills", "hello")
    become(monkeypatch, "root", "r00t")
    assert secret not in "".join(cli.run("user", "show", "alice", "--json") + cli.run("user", "list"))
    cli.run("acl", "revoke", "alice", "Topic:ord*")
    become(monkeypatch, "alice", secret)
    assert "no permission" in cli.error("send", "orders", "hello")


def test_users_are_listed_shown_disabled_enabled_and_deleted(cli: Cli) -> None:
    cli.run("user", "create", "bob", "--new-secret-file", "-", "--disabled", stdin=b"b0b\n")
    [row] = [row for row in cli.rows("user", "list") if row["user"] == "bob"]
    assert row == {
        "user": "bob", "type": "normal", "status": "disabled", "secrets": 1, "entries": 0, "missing_at": [],
    }  # fmt: skip
    cli.run("user", "enable", "bob")
    assert cli.rows("user", "show", "bob")[0]["status"] == "enabled"
    cli.run("user", "disable", "bob")
    assert cli.rows("acl", "test", "bob", "Topic:orders", "Pub", code=1)[0]["reason"] == "the user is disabled"
    cli.run("user", "delete", "bob")
    assert "has no user bob" in cli.error("user", "show", "bob")
    assert "has no user bob" in cli.error("user", "delete", "bob")


def test_a_repeated_creation_is_accepted_and_another_one_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("first\n")
    (tmp_path / "two").write_text("second\n")
    for _ in range(2):
        cli.run("user", "create", "carol", "--new-secret-file", str(tmp_path / "one"))
    error = cli.error("user", "create", "carol", "--new-secret-file", str(tmp_path / "two"))
    assert "already has a user carol" in error
    assert "user rotate carol" in error


def test_two_secrets_are_valid_while_one_is_rotated(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = [tmp_path / name for name in ("1.secret", "2.secret")]
    cli.run("user", "create", "dora", "--save", str(saved[0]))
    cli.run("acl", "grant", "dora", "Topic:orders", "Pub")
    cli.run("user", "rotate", "dora", "--save", str(saved[1]))
    assert saved[1].stat().st_mode & 0o777 == 0o600
    old, new = (file.read_text().strip() for file in saved)
    for secret in (old, new):
        become(monkeypatch, "dora", secret)
        cli.run("send", "orders", "hello")
    become(monkeypatch, "root", "r00t")
    assert cli.rows("user", "show", "dora")[0]["secrets"] == 2
    assert "two valid secrets" in cli.error("user", "rotate", "dora")
    cli.run("user", "rotate", "dora", "--new-secret-file", str(saved[1]))  # the same rotation again
    cli.run("user", "rotate", "dora", "--finish")
    become(monkeypatch, "dora", new)
    cli.run("send", "orders", "hello")
    become(monkeypatch, "dora", old)
    assert "check signature failed" in cli.error("send", "orders", "hello")


def test_a_secret_that_no_broker_has_is_not_left_in_a_file(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    cli.error("user", "rotate", "nobody", "--save", str(file))
    assert not file.exists()
    file.write_text("mine")
    assert "is not overwritten" in cli.run("user", "rotate", "nobody", "--save", str(file), code=2)[1]
    assert file.read_text() == "mine"


def test_the_last_super_user_stays(cli: Cli) -> None:
    for command in ("disable", "delete"):
        assert "the only enabled super user" in cli.error("user", command, "root")
    cli.run("user", "create", "root2", "--super", "--new-secret-file", "-", stdin=b"s")
    cli.run("user", "disable", "root2")
    for command in ("disable", "delete"):
        assert "the only enabled super user" in cli.error("user", command, "root")
    cli.run("user", "delete", "root2")


def test_actions_are_added_to_the_entry_of_a_resource_and_taken_from_it(cli: Cli) -> None:
    cli.run("user", "create", "erin")
    cli.run("acl", "grant", "erin", "Topic:orders", "Pub")
    cli.run("acl", "grant", "erin", "Topic:orders", "Sub,Get")
    cli.run("acl", "grant", "erin", "Group:*", "All", "--from", "10.0.0.0/8,192.168.1.7", "--deny", "--default")
    assert cli.rows("acl", "show", "erin") == [
        {
            "user": "erin", "entry": 1, "decision": "Allow", "actions": ["Pub", "Sub", "Get"],
            "resource": "Topic:orders", "from": ["everywhere"], "policy": "custom",
        },
        {
            "user": "erin", "entry": 2, "decision": "Deny", "actions": ["All"], "resource": "Group:*",
            "from": ["10.0.0.0/8", "192.168.1.7"], "policy": "default",
        },
    ]  # fmt: skip
    other = cli.error("acl", "grant", "erin", "Topic:orders", "Pub", "--deny")
    assert "has another entry for this resource: Allow Pub,Sub,Get on Topic:orders" in other
    assert "--replace" in other
    cli.run("acl", "grant", "erin", "Topic:orders", "Pub", "--deny", "--replace")
    cli.run("acl", "revoke", "erin", "Group:*", "Sub", "--default")
    cli.run("acl", "revoke", "erin", "Topic:orders")
    [row] = [row for row in cli.rows("acl", "list", "--resource", "Group:") if row["user"] == "erin"]
    assert row["actions"] == ["Pub", "Create", "Update", "Delete", "Get", "List"]
    assert "no entry for Topic:orders" in cli.error("acl", "revoke", "erin", "Topic:orders")


def test_a_permission_is_explained_by_the_entry_that_decides(cli: Cli) -> None:
    cli.run("user", "create", "fred")
    cli.run("acl", "grant", "fred", "Group:audit", "Sub")
    cli.run("acl", "grant", "fred", "Topic:ord*", "Pub", "--from", "10.0.0.0/8")
    cli.run("acl", "grant", "fred", "Topic:orders-secret", "All", "--deny")
    asked = ("acl", "test", "fred", "Topic:orders", "Pub", "--from")
    assert cli.text(*asked, "10.0.0.7") == (
        "may fred publish to Topic:orders from 10.0.0.7? yes, by entry 2: Allow Pub on Topic:ord* from 10.0.0.0/8\n"
    )
    assert cli.run(*asked, "127.0.0.1", code=1)[0] == (
        "may fred publish to Topic:orders from 127.0.0.1? no, no entry allows it\n"
    )
    assert cli.run("acl", "test", "fred", "Topic:orders-secret", "Sub", "--from", "10.0.0.7", code=1)[0] == (
        "may fred consume Topic:orders-secret from 10.0.0.7? no, by entry 3: Deny All on Topic:orders-secret\n"
    )
    out, note = cli.run("acl", "test", "fred", "Topic:orders", "Pub", code=1)
    assert "no, no entry allows it" in out
    assert "--from" in note
    rows = cli.rows("acl", "test", "fred", "Topic:%RETRY%audit", "Sub,Delete", code=1)
    assert [(row["action"], row["allowed"], row["entry"]) for row in rows] == [
        ("Sub", True, 1),
        ("Delete", False, None),
    ]
    assert "yes, as a super user" in cli.text("acl", "test", "root", "Cluster:DefaultCluster", "Update")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("acl", "grant", "root", "orders", "Pub"), "The resource is null"),
        (("acl", "grant", "root", "Topic:orders", "Eat"), "not valid actions"),
        (("acl", "grant", "root", "Topic:orders", "Pub", "--from", "here"), "The source ip is invalid"),
        (("acl", "grant", "nobody", "Topic:orders", "Pub"), "has no user nobody"),
        (("acl", "test", "root", "Topic:*", "Pub"), "is not the name of a resource"),
        (("acl", "test", "root", "Topic:orders", "All"), "All is not one action"),
        (("acl", "test", "root", "Topic:orders", "Pub", "--from", "10.0.0.0/8"), "is not an address"),
        (("acl", "test", "root", "Topic:rmq_sys_wheel_timer", "Sub"), "it takes a right to the cluster"),
        (("acl", "test", "nobody", "Topic:orders", "Pub"), "has no user nobody"),
        (("user", "create", "a:b"), "The username must have"),
    ],
)
def test_what_is_not_possible_is_one_error_with_a_hint(cli: Cli, arguments: tuple[str, ...], problem: str) -> None:
    assert problem in cli.error(*arguments)


def secret_file(folder: Path, secret: str) -> str:
    file = folder / "secret"
    file.write_text(secret)
    file.chmod(0o600)
    return str(file)


def tools_file(folder: Path, text: str) -> None:
    (folder / "conf").mkdir()
    (folder / "conf" / "tools.yml").write_text(text)


@pytest.fixture
def nobody(server: Server, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Commands without a user. Options set variables, which are restored afterwards."""
    for name in ("LATERMQ_USER", "LATERMQ_SECRET", "LATERMQ_SECRET_FILE", "ROCKETMQ_HOME"):
        monkeypatch.setenv(name, "")
    return Cli(server)


def test_a_command_without_a_user_is_told_how_to_name_one(nobody: Cli) -> None:
    error = nobody.error("topic", "create", "orders")
    assert error.startswith("error: username cannot be null\nhint: ")
    assert "--user NAME --secret-file FILE" in error


def test_the_user_of_a_command_may_come_before_and_after_its_name(nobody: Cli, tmp_path: Path) -> None:
    options = ("--user", "root", "--secret-file", secret_file(tmp_path, "r00t\n"))
    for arguments in ((*options, "user", "list"), ("user", "list", *options), ("send", "orders", "x", *options)):
        nobody.run(*arguments)


def test_options_come_before_variables_and_these_before_tools_yml(
    nobody: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    tools_file(tmp_path, "accessKey: root\nsecretKey: r00t\n")
    nobody.run("user", "list")
    become(monkeypatch, "root", "guess")
    assert "check signature failed" in nobody.error("user", "list")
    nobody.run("user", "list", "--secret-file", secret_file(tmp_path, "r00t"))
    monkeypatch.delenv("LATERMQ_SECRET_FILE")
    monkeypatch.setenv("LATERMQ_SECRET", "r00t")
    assert "User:ghost is not found" in nobody.error("user", "list", "--user", "ghost")


@pytest.mark.parametrize(("text", "code"), [("", 1), ("accessKey: root", 1), ("- a\n- b", 2), ("a: {b", 2)])
def test_a_tools_yml_without_a_user_is_left_out_and_a_damaged_one_is_an_error(
    nobody: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int
) -> None:
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    tools_file(tmp_path, text)
    error = nobody.run("user", "list", code=code)[1]
    assert ("username cannot be null" if code == 1 else "tools.yml is not YAML") in error


def test_a_refusal_names_the_command_that_would_permit_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.run("user", "create", "ivan", "--new-secret-file", "-", stdin=b"1v4n")
    become(monkeypatch, "ivan", "1v4n")
    assert "hint: An administrator can change this: `latermq user` and `latermq acl`" in cli.error(
        "send", "orders", "x"
    )
    assert "hint: " in cli.error("user", "list")


def test_users_are_completed_with_the_credentials_on_the_line(server: Server, nobody: Cli, tmp_path: Path) -> None:
    file = secret_file(tmp_path, "r00t")
    assert press_tab(server.namesrv, "--user", "root", "--secret-file", file, "acl", "show", "roo") == ["root"]
    assert press_tab(server.namesrv, "acl", "show", "roo") == []


def test_every_broker_gets_a_change_and_differences_are_shown(
    server: Server, cli: Cli, inner_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ON.items():
        monkeypatch.setenv(name, value)
    cli.run("user", "create", "gina")  # before broker-b is there
    cli.run("acl", "grant", "gina", "Topic:orders", "Pub")
    inner = f"access.inner_file={inner_file}"  # the name server checks who registers
    options = ("--set", "store.segment=64MiB", "--set", "store.reserve_step=1MiB", "--set", inner)
    with another_broker(server, tmp_path / "b", free_port(), *options):
        rows = {row["user"]: row["missing_at"] for row in cli.rows("user", "list")}
        assert (rows["gina"], rows["root"]) == (["broker-b"], [])
        assert "broker-b has no user gina" in cli.error("user", "disable", "gina")
        cli.run("user", "create", "hugo")
        cli.run("acl", "grant", "hugo", "Topic:orders", "Pub")
        assert len(cli.rows("acl", "show", "hugo")) == 1
        assert "broker-b has no user gina" in cli.error("acl", "grant", "gina", "Topic:orders", "Pub")
        places = {row["user"]: row.get("broker") for row in cli.rows("acl", "list", "--resource", "Topic:orders")}
        assert (places["gina"], places["hugo"]) == ("broker-a", None)
        secret = tmp_path / "gina.secret"
        secret.write_text("another")
        assert "already has a user gina" in cli.error("user", "create", "gina", "--new-secret-file", str(secret))
        cli.run("acl", "grant", "hugo", "Topic:more", "Sub")
        cli.run("user", "disable", "hugo")
        changes = {(row["user"], row["change"]) for row in cli.rows("user", "sync", "broker-a")}
        assert {("gina", "created"), ("gina", "entries replaced")} <= changes
        assert not {change for user, change in changes if user in ("root", "hugo")}
        assert not any(row["missing_at"] for row in cli.rows("user", "list"))
        assert not any("broker" in row for row in cli.rows("acl", "list"))
        assert cli.rows("user", "sync", "broker-a") == []
        assert "The brokers are broker-a, broker-b" in cli.error("user", "sync", "broker-c")
        cli.run("user", "delete", "gina")
