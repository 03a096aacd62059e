"""Apache's mqadmin with the credentials in `tools.yml`, without them, and with those of an ordinary user."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.mqadmin import MqAdmin
from tests.interop.ports import free_port
from tests.interop.programs import start_java
from tests.interop.target import IS_APACHE, ROOT, ROOT_SECRET, Cluster, running_cluster_with_users
from tests.support.serving import another_broker

REFUSED = "CODE: 16 "


class Credentials:
    """The file that mqadmin reads before each command."""

    def __init__(self, home: Path) -> None:
        (home / "conf").mkdir(parents=True)
        self._file = home / "conf" / "tools.yml"
        self.use(ROOT, ROOT_SECRET)

    def use(self, user: str, secret: str) -> None:
        self._file.write_text(f"accessKey: {user}\nsecretKey: {secret}\n")

    def remove(self) -> None:
        self._file.unlink()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster_with_users(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mqadmin")


@pytest.fixture(scope="module")
def credentials_file(home: Path) -> Credentials:
    return Credentials(home)


@pytest.fixture
def credentials(credentials_file: Credentials) -> Iterator[Credentials]:
    """Those of the super user, again after the test."""
    yield credentials_file
    credentials_file.use(ROOT, ROOT_SECRET)


@pytest.fixture(scope="module")
def admin(cluster: Cluster, home: Path, credentials_file: Credentials) -> Iterator[MqAdmin]:
    options = (f"-Drocketmq.home.dir={home}",)
    with start_java(home / "java.log", {}, log_level="OFF", options=options) as program:
        yield MqAdmin(program, cluster.namesrv)


def test_a_user_is_created_listed_changed_and_deleted(admin: MqAdmin, cluster: Cluster) -> None:
    at = ("-b", cluster.address)
    assert f"create user to {cluster.address} success" in admin.run("createUser", *at, "-u", "ann", "-p", "a1")
    admin.run("createUser", "-c", cluster.name, "-u", "annabel", "-p", "a2", "-t", "Super")
    [row] = admin.rows("getUser", *at, "-u", "ann")
    assert row == ["ann", "a1", "Normal", "enable"]
    users = {row[0]: row[1:] for row in admin.rows("listUser", *at, "-f", "ann") if len(row) == 4}
    assert users == {"ann": ["a1", "Normal", "enable"], "annabel": ["a2", "Super", "enable"]}
    admin.run("updateUser", *at, "-u", "ann", "-p", "a3")
    admin.run("updateUser", *at, "-u", "ann", "-s", "disable")
    admin.run("updateUser", *at, "-u", "annabel", "-t", "Normal")
    assert admin.rows("getUser", *at, "-u", "ann") == [["ann", "a3", "Normal", "disable"]]
    assert admin.rows("getUser", *at, "-u", "annabel") == [["annabel", "a2", "Normal", "enable"]]
    assert "The user is existed" in admin.refused("createUser", *at, "-u", "ann", "-p", "a1")
    assert "The user is not exist" in admin.refused("updateUser", *at, "-u", "nobody", "-p", "x")
    for name in ("ann", "annabel", "nobody"):
        admin.run("deleteUser", *at, "-u", name)
    assert [row for row in admin.rows("listUser", *at, "-f", "ann") if len(row) == 4] == []


def test_an_acl_is_created_listed_changed_and_deleted(admin: MqAdmin, cluster: Cluster) -> None:
    at, subject = ("-b", cluster.address), ("-s", "User:bob")
    admin.run("createUser", *at, "-u", "bob", "-p", "b1")
    rights = ("-r", "Topic:orders,Group:ord*", "-a", "Pub,Sub", "-i", "10.0.0.0/8,127.0.0.1", "-d", "Allow")
    assert f"create acl to {cluster.address} success" in admin.run("createAcl", *at, *subject, *rights)

    def shown(command: str, *options: str) -> set[tuple[str, ...]]:
        rows = [re.split(r"\s+", " ".join(row)) for row in admin.rows(command, *at, *options)]
        return {tuple(row[2:]) for row in rows if row[0] == "User:bob"}

    first = {
        ("Topic:orders", "[Pub,", "Sub]", "[10.0.0.0/8,", "127.0.0.1]", "Allow"),
        ("Group:ord*", "[Pub,", "Sub]", "[10.0.0.0/8,", "127.0.0.1]", "Allow"),
    }
    assert shown("getAcl", *subject) == first == shown("listAcl", "-s", "bob")
    admin.run("updateAcl", *at, *subject, "-r", "Topic:orders", "-a", "All", "-d", "Deny")
    changed = shown("getAcl", *subject)
    assert {row[-1] for row in changed if row[0] == "Topic:orders"} == {"Deny"}
    assert len(shown("listAcl", "-r", "orders")) == 1
    admin.run("deleteAcl", *at, *subject, "-r", "Topic:orders")
    assert {row[0] for row in shown("getAcl", *subject)} == {"Group:ord*"}
    for wrong, remark in (
        (("-r", "Topic:x", "-a", "Pub", "-d", "Maybe"), "The decision is null or illegal."),
        (("-r", "Topic:x", "-a", "Any", "-d", "Allow"), "The actions can not be Any."),
        (("-r", "Topic:x", "-a", "Pub", "-d", "Allow", "-i", "10.0.0.300"), "The source ip is invalid."),
    ):
        assert remark in admin.refused("createAcl", *at, *subject, *wrong)
    admin.run("deleteAcl", *at, *subject)
    assert shown("getAcl", *subject) == set()
    admin.run("deleteUser", *at, "-u", "bob")


def test_without_credentials_or_with_wrong_ones_nothing_is_done(
    admin: MqAdmin, cluster: Cluster, credentials: Credentials
) -> None:
    at = ("-b", cluster.address)
    commands = (
        ("createUser", *at, "-u", "eve", "-p", "x"),
        ("deleteUser", *at, "-u", ROOT),
        ("listUser", *at),
        ("createAcl", *at, "-s", "User:eve", "-r", "*", "-a", "All", "-d", "Allow"),
        ("updateTopic", *at, "-t", "orders"),
        ("updateSubGroup", *at, "-g", "readers"),
        ("getBrokerConfig", *at),
        ("brokerStatus", *at),
    )
    credentials.remove()
    for command in commands:
        assert "username cannot be null." in admin.refused(*command), command
    credentials.use(ROOT, "guessed")
    for command in commands:
        assert "check signature failed." in admin.refused(*command), command
    credentials.use(ROOT, ROOT_SECRET)
    assert {row[0] for row in admin.rows("listUser", *at) if len(row) == 4} >= {ROOT}
    assert not any(row[0] == "eve" for row in admin.rows("listUser", *at))


def test_an_ordinary_user_may_do_what_it_was_granted(
    admin: MqAdmin, cluster: Cluster, credentials: Credentials
) -> None:
    at = ("-b", cluster.address)
    admin.run("createUser", *at, "-u", "cleo", "-p", "c1")
    rights = ("-r", "Topic:cleo*,Group:cleo*", "-a", "Create,Update,Delete,Get", "-d", "Allow")
    admin.run("createAcl", *at, "-s", "User:cleo", *rights)
    credentials.use("cleo", "c1")
    admin.run("updateTopic", *at, "-t", "cleo_topic", "-r", "2", "-w", "2")
    admin.run("updateSubGroup", *at, "-g", "cleo_group")
    assert REFUSED in admin.refused("updateTopic", *at, "-t", "orders")
    assert REFUSED in admin.refused("createUser", *at, "-u", "friend", "-p", "x")
    assert REFUSED in admin.refused("listUser", *at)
    assert REFUSED in admin.refused("createAcl", *at, "-s", "User:cleo", "-r", "*", "-a", "All", "-d", "Allow")
    if not IS_APACHE:  # whose broker serves these for every user
        assert REFUSED in admin.refused("updateSubGroup", *at, "-g", "readers")
        assert REFUSED in admin.refused("getBrokerConfig", *at)
        assert REFUSED in admin.refused("setConsumeMode", *at, "-t", "orders", "-g", "readers", "-m", "POP", "-q", "1")


@pytest.mark.skipif(IS_APACHE, reason="the target has one broker")
def test_users_and_acls_are_copied_to_another_broker(admin: MqAdmin, cluster: Cluster, home: Path) -> None:
    assert cluster.server is not None
    port = free_port()
    source, target = ("-b", cluster.address), ("-b", f"127.0.0.1:{port}")
    admin.run("createUser", *source, "-u", "dan", "-p", "d1")
    admin.run("createAcl", *source, "-s", "User:dan", "-r", "Topic:orders", "-a", "Pub", "-d", "Allow")
    settings = (
        "access.enabled=true",
        f"access.init_user={ROOT}:{ROOT_SECRET}",
        f"access.inner_file={cluster.inner_file}",
    )
    options = [word for setting in settings for word in ("--set", setting)]
    with another_broker(cluster.server, home / "second", port, *options):
        between = ("-f", cluster.address, "-t", target[1])
        assert "copy user of dan" in admin.run("copyUser", *between, "-u", "dan")
        assert "copy acl of User:dan" in admin.run("copyAcl", *between, "-s", "User:dan")
        assert admin.rows("getUser", *target, "-u", "dan") == [["dan", "d1", "Normal", "enable"]]
        [row] = admin.rows("getAcl", *target, "-s", "User:dan")
        assert row[0] == "User:dan"
        assert "Topic:orders" in " ".join(row)
        admin.run("copyUser", *between)
        assert "dan" in {row[0] for row in admin.rows("listUser", *target)}
