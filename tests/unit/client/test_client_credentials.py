"""Credentials of clients: where they come from, what is refused, and the signatures of sends."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from latermq.access.inner_credentials import FILE_NAME, load_or_create_inner_secret
from latermq.access.signatures import BOUND, SIGNATURE, bound_content, sign, signed_content
from latermq.client.producer.outgoing import SendFrames
from latermq.client.session.credentials import (
    VARIABLES,
    Credentials,
    as_variables,
    chosen_credentials,
    credentials_from_environment,
    own_credentials,
    read_secret,
)
from latermq.client.session.failures import AccessRefused, error_from_wire
from latermq.config import AccessConfig
from latermq.errors import ConfigError, NoPermission
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import BINARY, JSON, FrameReader

ALICE = Credentials("alice", "s3cret")


def secret_file(folder: Path, content: bytes = b"s3cret\n", mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_the_secret_is_not_shown() -> None:
    assert repr(ALICE) == "Credentials('alice')"
    assert "s3cret" not in f"{ALICE} {[ALICE]}"


@pytest.mark.parametrize("encoding", [JSON, BINARY])
@pytest.mark.parametrize(
    ("code", "oneway"),
    [(Request.SEND_MESSAGE_V2, False), (Request.SEND_MESSAGE_V2, True), (Request.SEND_BATCH_MESSAGE, False)],
)
def test_a_send_has_the_signature_of_its_fields_and_body(encoding: int, code: Request, oneway: bool) -> None:
    frames = SendFrames("größe", "orders", 4, encoding, ALICE)
    data = frames.frame(7, 3, 1, 1_800_000_000_123, 9, 'TAGS\x01"日本"\x02', b"b\x00dy", code=code, oneway=oneway)
    [command] = FrameReader().feed(data)
    fields = command.signed_texts()
    assert fields["AccessKey"] == "alice"
    assert fields[SIGNATURE] == sign("s3cret", signed_content(fields, command.body))
    assert fields["a"] == "größe"


@pytest.mark.parametrize("encoding", [JSON, BINARY])
@pytest.mark.parametrize("code", [Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE])
def test_a_bound_signature_of_a_send_covers_its_code_and_every_field(encoding: int, code: Request) -> None:
    frames = SendFrames("größe", "orders", 4, encoding, ALICE.bound())
    data = frames.frame(7, 3, 1, 1_800_000_000_123, 9, 'TAGS\x01"日本"\x02', b"b\x00dy", code=code)
    [command] = FrameReader().feed(data)
    fields = command.signed_texts()
    assert fields[SIGNATURE] == BOUND + sign("s3cret", bound_content(code, fields, command.body))
    assert fields == Credentials("alice", "s3cret", is_bound=True).signed(fields, command.body, code)


def test_the_signature_of_a_short_key_a_long_one_and_an_empty_body_is_the_standard_one() -> None:
    for secret in ("s", "s" * 64, "s" * 65, "größe" * 30):
        for body in (b"", b"hello"):
            fields = Credentials("alice", secret).signed({"topic": "orders"}, body, 17)
            assert fields[SIGNATURE] == sign(secret, b"aliceorders" + body)


def test_a_secret_file_is_read_without_the_space_around_it(tmp_path: Path) -> None:
    path = secret_file(tmp_path, b" s3cret \r\n")
    assert read_secret(path) == "s3cret"
    assert Credentials.from_file("alice", path).signed({}, b"x", 17) == ALICE.signed({}, b"x", 17)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602])
def test_a_secret_file_that_others_may_open_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="other users") as caught:
        read_secret(secret_file(tmp_path, mode=mode))
    assert caught.value.hint.startswith("chmod 600 ")


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe", b"x" * 4097])
def test_a_secret_file_without_a_usable_secret_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigError, match="empty, not text, or longer"):
        read_secret(secret_file(tmp_path, content))
    with pytest.raises(ConfigError, match="No such file"):
        read_secret(tmp_path / "none")


def test_the_environment_gives_a_secret_or_a_file(tmp_path: Path) -> None:
    path = str(secret_file(tmp_path))
    assert credentials_from_environment({}) is None
    for given in ({"LATERMQ_SECRET": "s3cret"}, {"LATERMQ_SECRET_FILE": path, "LATERMQ_SECRET": ""}):
        credentials = credentials_from_environment({"LATERMQ_USER": "alice", **given})
        assert credentials is not None
        assert credentials.signed({}, b"x", 17) == ALICE.signed({}, b"x", 17)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"LATERMQ_USER": "alice"}, "no secret"),
        ({"LATERMQ_SECRET": "s3cret"}, "LATERMQ_USER is not"),
        ({"LATERMQ_SECRET_FILE": "file"}, "LATERMQ_USER is not"),
        ({"LATERMQ_USER": "alice", "LATERMQ_SECRET": "s", "LATERMQ_SECRET_FILE": "f"}, "both set"),
        ({"LATERMQ_USER": " ", "LATERMQ_SECRET": "s"}, "name of the user is empty"),
        ({"LATERMQ_USER": "alice", "LATERMQ_SECRET": " "}, "secret of user 'alice' is empty"),
    ],
)
def test_half_of_the_variables_is_an_error(variables: Mapping[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        credentials_from_environment(variables)
    assert caught.value.hint
    assert "s3cret" not in str(caught.value)


def test_without_a_choice_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATERMQ_USER", "bob")
    monkeypatch.setenv("LATERMQ_SECRET", "b0b")
    assert chosen_credentials(ALICE) is ALICE
    assert chosen_credentials(False) is None
    chosen = chosen_credentials(None)
    assert chosen is not None
    assert chosen.user == "bob"


@pytest.mark.parametrize(
    ("remark", "hint"),
    [
        ("username cannot be null.", "LATERMQ_USER"),
        ("check signature failed.", "Check the secret"),
        ("User:a.b is not found.", "latermq user"),
        ("User:alice is disabled.", "latermq user"),
        ("User:a has no permission to access Topic:t from 10.0.0.7, no matched policies.", "latermq acl"),
    ],
)
def test_a_refusal_says_what_to_do(remark: str, hint: str) -> None:
    error = error_from_wire(Response.NO_PERMISSION, remark)
    assert isinstance(error, AccessRefused)
    assert hint in error.hint
    assert error.message == remark.removesuffix(".")


def test_a_refusal_that_is_not_about_users_stays_as_it_is() -> None:
    error = error_from_wire(Response.NO_PERMISSION, "the topic [t] sending message is forbidden")
    assert type(error) is NoPermission
    assert not error.hint


def test_a_server_process_signs_with_the_inner_secret_if_it_checks_users_or_has_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / FILE_NAME
    load_or_create_inner_secret(path)
    assert own_credentials(AccessConfig(), tmp_path) is None
    for config in (AccessConfig(enabled=True), AccessConfig(inner_file=str(path))):
        found = own_credentials(config, tmp_path)
        assert found is not None
        assert found.user == "latermq-inner"
    monkeypatch.setenv("LATERMQ_USER", "console")
    monkeypatch.setenv("LATERMQ_SECRET", "c0nsole")
    found = own_credentials(AccessConfig())
    assert found is not None
    assert found.user == "console"


def test_processes_that_a_server_starts_get_the_path_and_not_the_secret(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    secret = load_or_create_inner_secret(path)
    variables = as_variables(AccessConfig(inner_file=str(path)))
    assert secret not in "".join(variables.values())
    found = credentials_from_environment({"LATERMQ_SECRET": "of the operator", **variables})
    assert found is not None
    assert found.signed({}, b"x", 17) == Credentials("latermq-inner", secret).signed({}, b"x", 17)
    assert as_variables(AccessConfig()) == {}


def test_an_inner_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    load_or_create_inner_secret(path)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="other users") as caught:
        own_credentials(AccessConfig(inner_file=str(path)))
    assert caught.value.hint == f"chmod 600 {path}"
