"""`latermq acl import` with the files of RocketMQ: databases that its own classes wrote, and accounts of 4.x."""

import json
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from tests.golden.files import DATA, unpack
from tests.integration.test_access_lockout import STOPPED

ACCOUNTS = """
globalWhiteRemoteAddresses: [10.10.103.*]
accounts:
  - {accessKey: shop, secretKey: 12345678, topicPerms: [orders=PUB], defaultTopicPerm: DENY}
  - {accessKey: ops, secretKey: s3cretsecret, admin: true}
"""


@pytest.fixture
def apache(tmp_path: Path) -> Path:
    """A store of Apache's broker with three users."""
    unpack(DATA / "apache-access.tar.gz", tmp_path / "store")
    return tmp_path / "store"


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_users_of_an_apache_broker_are_taken_over(apache: Path, tmp_path: Path) -> None:
    before, data = files_of(apache), tmp_path / "data"
    STOPPED.run("user", "create", "root", "--super", "--new-secret-file", "-", "--data", str(data), stdin=b"mine")
    rows = STOPPED.rows("acl", "import", str(apache), "--data", str(data))
    assert [(row["action"], row["user"], row["what"]) for row in rows] == [
        ("create", "alice", "user"),
        ("grant", "alice", "Allow Pub,Sub on Topic:ord* from 10.0.0.0/8,192.168.1.7"),
        ("grant", "alice", "Allow Sub on Group:readers"),
        ("grant", "alice", "Deny All on Topic:orders-secret"),
        ("grant", "alice", "Allow Get on Cluster:DefaultCluster"),
        ("grant", "alice", "Deny All on Topic:* (default)"),
        ("grant", "alice", "Allow List on * (default)"),
        ("create", "bob", "disabled user"),
        ("left out", "root", "a user of this name exists, with another secret or type"),
    ]
    assert files_of(apache) == before
    users = {row["user"]: (row["type"], row["status"]) for row in STOPPED.rows("user", "list", "--data", str(data))}
    assert users == {
        "alice": ("normal", "enabled"), "bob": ("normal", "disabled"), "root": ("super", "enabled"),
    }  # fmt: skip
    shown = STOPPED.rows("acl", "show", "alice", "--data", str(data))
    assert [row["policy"] for row in shown] == ["custom"] * 4 + ["default"] * 2
    STOPPED.run("acl", "import", str(apache / "config"), "--data", str(data))
    assert STOPPED.rows("acl", "show", "alice", "--data", str(data)) == shown


def test_a_repeated_import_keeps_all_entries_of_a_resource(tmp_path: Path) -> None:
    data, config = tmp_path / "data", tmp_path / "config"
    topic = {"resourceName": "salaries", "resourcePattern": 2, "resourceType": 4}
    entries = [
        {"resource": topic, "actions": [1], "decision": 2, "environment": {"sourceIps": ["10.0.0.0/8"]}},
        {"resource": topic, "actions": [1], "decision": 1},
    ]
    records = {
        "users": (b"alice", {"username": "alice", "password": "s3cret", "userType": 2, "userStatus": 1}),
        "acls": (b"User:alice", {"policies": [{"policyType": 1, "entries": entries}]}),
    }
    for name, (key, value) in records.items():
        database = Rdict(str(config / name), options=Options(raw_mode=True))
        database[key] = json.dumps(value).encode()
        database.close()
    data.mkdir()
    for _ in range(2):
        STOPPED.run("acl", "import", str(config), "--data", str(data))
        shown = STOPPED.rows("acl", "show", "alice", "--data", str(data))
        assert [row["decision"].lower() for row in shown] == ["deny", "allow"]


def test_accounts_of_4x_are_taken_over_with_a_rehearsal_before(tmp_path: Path) -> None:
    data, conf = tmp_path / "data", tmp_path / "home" / "conf"
    (conf / "acl").mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(ACCOUNTS)
    (conf / "tools.yml").write_text("accessKey: tool\nsecretKey: s")
    (conf / "acl" / "more.yaml").write_text("accounts: [{accessKey: shop, secretKey: first, groupPerms: [audit=SUB]}]")
    data.mkdir()
    command = ("acl", "import", str(tmp_path / "home"), "--data", str(data))
    out, note = STOPPED.run(*command, "--dry-run")
    assert "s3cretsecret" not in out
    assert note.endswith("2 users and 1 entry would be imported; 2 left out\n")
    assert STOPPED.rows("user", "list", "--data", str(data)) == []
    assert STOPPED.rows(*command) == STOPPED.rows(*command, "--dry-run")
    assert [(row["user"], row["type"]) for row in STOPPED.rows("user", "list", "--data", str(data))] == [
        ("ops", "super"), ("shop", "normal"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "cannot read"), ("a: {b", "not valid YAML"), ("accounts: !!python/object:os.system []", "not valid YAML")],
)
def test_files_that_cannot_be_read_are_one_error(tmp_path: Path, content: str | None, problem: str) -> None:
    file = tmp_path / "plain_acl.yml"
    if content is not None:
        file.write_text(content)
    command = ("acl", "import", str(file), "--data", str(tmp_path / "data"))
    assert problem in STOPPED.run(*command, code=2)[1]


def test_a_folder_without_files_and_a_damaged_database_are_one_error(apache: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    data = ("--data", str(tmp_path / "data"))
    assert "has neither plain_acl.yml nor" in STOPPED.run("acl", "import", str(tmp_path / "empty"), *data, code=2)[1]
    (apache / "config" / "users" / "CURRENT").write_text("MANIFEST-999999\n")
    error = STOPPED.run("acl", "import", str(apache), *data, code=2)[1]
    assert "cannot read the database users" in error
