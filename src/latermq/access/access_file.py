"""The file with users and policies: docs/formats/access.md. It is always replaced as a whole."""

import base64
import hashlib
from typing import NamedTuple

import msgspec

from latermq.access.policies import Acl, Entry, parse_entry
from latermq.access.secret_box import SALT_BYTES, RandomBytes, SecretBox, Unsealable, stretched_key
from latermq.access.users import AccessState, User
from latermq.errors import ConfigError, CorruptStore, LaterMQError
from latermq.redaction import without_secrets

ACCESS_PATH = "config/latermq.access"
_MAGIC = b"latermq-access 1 "
_CHECK = b"latermq"  # sealed in the file, so that a wrong key is recognized


class _EntryJson(msgspec.Struct, kw_only=True):
    resource: str
    actions: list[str]
    sources: list[str] = msgspec.field(default_factory=list)
    decision: str


class _UserJson(msgspec.Struct, kw_only=True):
    name: str
    secrets: list[str]  # base64 of the sealed secrets if the file has a seal
    super: bool = False
    enabled: bool = True

    def __repr__(self) -> str:
        return without_secrets(self, "secrets")


class _AclJson(msgspec.Struct, kw_only=True):
    user: str
    custom: list[_EntryJson] = msgspec.field(default_factory=list)
    default: list[_EntryJson] = msgspec.field(default_factory=list)


class _SealJson(msgspec.Struct, kw_only=True):
    salt: str
    check: str


class _FileJson(msgspec.Struct, kw_only=True):
    revision: str
    init_user: str = ""
    seal: _SealJson | None = None
    users: list[_UserJson] = msgspec.field(default_factory=list)
    acls: list[_AclJson] = msgspec.field(default_factory=list)


class Seal(NamedTuple):
    """The key of a file, and the salt by which it was derived from the operator's text."""

    box: SecretBox
    salt: bytes


class StoredAccess(NamedTuple):
    """The content of a file."""

    state: AccessState
    seal: Seal | None  # to write the file with
    init_user: str  # the user of access.init_user that a start has created, or found


def new_seal(key_text: str, random_bytes: RandomBytes) -> Seal:
    """A seal for a new file."""
    salt = random_bytes(SALT_BYTES)
    return Seal(SecretBox(stretched_key(key_text, salt), random_bytes), salt)


def encode_access(state: AccessState, seal: Seal | None, init_user: str = "") -> bytes:
    """Encode users and policies. Without a seal, the secrets are written in plain text."""

    def written(user: User) -> list[str]:
        if seal is None:
            return list(user.secrets)
        return [_text(seal.box.seal(secret.encode(), user.name.encode())) for secret in user.secrets]

    content = msgspec.json.encode(
        _FileJson(
            revision=state.revision,
            init_user=init_user,
            seal=None if seal is None else _SealJson(salt=_text(seal.salt), check=_text(seal.box.seal(_CHECK, b""))),
            users=[
                _UserJson(name=user.name, secrets=written(user), super=user.is_super, enabled=user.is_enabled)
                for user in state.users.values()
            ],
            acls=[
                _AclJson(user=name, custom=_entries_json(acl.custom), default=_entries_json(acl.default))
                for name, acl in state.acls.items()
            ],
        )
    )
    return _MAGIC + hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def decode_access(data: bytes, key_text: str, random_bytes: RandomBytes) -> StoredAccess:
    """Decode users and policies. `key_text` is empty if the operator gave no key."""
    head, _, content = data.partition(b"\n")
    if head != _MAGIC + hashlib.sha256(content).hexdigest().encode():
        raise _damaged("its checksum does not match")
    try:
        file = msgspec.json.decode(content, type=_FileJson)
        seal = None if file.seal is None else _opened_seal(file.seal, key_text, random_bytes)
        users = {one.name: _user(one, seal) for one in file.users}
        acls = {one.user: Acl(_entries(one.custom), _entries(one.default)) for one in file.acls}
    except ConfigError:
        raise
    except (msgspec.DecodeError, ValueError, LaterMQError) as error:
        raise _damaged(str(error)) from None
    return StoredAccess(AccessState(users, acls, file.revision), seal, file.init_user)


def _opened_seal(written: _SealJson, key_text: str, random_bytes: RandomBytes) -> Seal:
    if not key_text:
        raise ConfigError(
            f"the secrets in {ACCESS_PATH} are encrypted, and there is no key",
            hint="Set LATERMQ_SECRET_KEY, or access.key_file to the file with the key",
        )
    salt = base64.b64decode(written.salt)
    box = SecretBox(stretched_key(key_text, salt), random_bytes)
    try:
        box.open(base64.b64decode(written.check), b"")
    except Unsealable:
        raise ConfigError(
            f"the secrets in {ACCESS_PATH} are encrypted with another key",
            hint="Set LATERMQ_SECRET_KEY or access.key_file to the key that the file was written with",
        ) from None
    return Seal(box, salt)


def _user(written: _UserJson, seal: Seal | None) -> User:
    secrets = written.secrets
    if seal is not None:
        secrets = [seal.box.open(base64.b64decode(one), written.name.encode()).decode() for one in secrets]
    secret, previous_secret = secrets[0], secrets[1] if len(secrets) > 1 else ""
    return User(
        name=written.name,
        secret=secret,
        previous_secret=previous_secret,
        is_super=written.super,
        is_enabled=written.enabled,
    )


def _entries_json(entries: tuple[Entry, ...]) -> list[_EntryJson]:
    return [
        _EntryJson(
            resource=str(entry.pattern),
            actions=entry.action_names,
            sources=entry.source_texts,
            decision="Allow" if entry.is_allow else "Deny",
        )
        for entry in entries
    ]


def _entries(written: list[_EntryJson]) -> list[Entry]:
    return [parse_entry(one.resource, one.actions, one.sources, one.decision) for one in written]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _damaged(reason: str) -> CorruptStore:
    return CorruptStore(
        f"{ACCESS_PATH} is damaged: {reason}",
        hint="Restore it from a backup; or remove it, and the next start creates only the user of access.init_user",
    )
