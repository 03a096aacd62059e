"""Requests about users and their policies, with the bodies and remarks of Apache's broker."""

from collections.abc import Callable
from typing import Any, Protocol

from latermq.access.changes import SUBJECT_PREFIX, Editor, UserChange, subject_name
from latermq.access.users import INNER_USER, AccessState, User
from latermq.broker.tables.access_table import AccessTable
from latermq.errors import LaterMQError, NoPermission, UnsupportedRequest
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.json_body import decode_body, encode_body
from latermq.protocol.remoting.users import (
    AccessStateHeader,
    AclFilterHeader,
    AclInfo,
    DeleteAclHeader,
    SubjectHeader,
    UserFilterHeader,
    UserHeader,
    UserInfo,
    is_default_policy,
    read_acl,
    write_acl,
)
from latermq.server.change_log import MAX_NAMES, Change
from latermq.server.handlers.admin.access_changes import AccessChanges
from latermq.server.handlers.admin.access_copies import AccessCopies
from latermq.server.handlers.admin.context import TableSaves
from latermq.server.handlers.async_replies import answer
from latermq.server.remoting.access import GET, UPDATE, Access, Kind, on_cluster
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import Endpoint

CODES = (*range(Request.AUTH_CREATE_USER, Request.AUTH_LIST_ACL + 1), Request.ACCESS_STATE)
_UPDATES_USERS = Access(Kind.CLUSTER, "", (UPDATE,))
_TYPES = {"super": True, "normal": False}
_STATUSES = {"enable": True, "disable": False}


class KnowsUsers(Protocol):
    """Tells which user sent a request that was checked."""

    def user_of(self, connection: Connection, command: Command) -> User: ...

    def check_in(self, state: AccessState, connection: Connection, command: Command, access: Access) -> User: ...

    def on_failure(
        self, connection: Connection, endpoint: Endpoint, command: Command, content: Any
    ) -> Callable[[LaterMQError], None]: ...


class AccessRequests:
    """Serves these requests. Without a table, because `access.enabled` is off, all of them are unsupported."""

    def __init__(
        self, table: AccessTable | None, saves: TableSaves, guard: KnowsUsers | None, copies: AccessCopies | None
    ) -> None:
        """Without a table there are neither a guard nor copies."""
        self._table_or_none = table
        self._saves = saves
        self._copies_or_none = copies
        self._changes: AccessChanges | None = None
        if table is not None:
            self._changes = AccessChanges(table, saves, self._copies.prepare, self._copies.on_changed)
        self._guard = guard
        self._rows: dict[int, Endpoint] = {row.code: row for row in self._endpoints()}

    @property
    def endpoints(self) -> list[Endpoint]:
        """The rows of these requests."""
        return list(self._rows.values())

    def _endpoints(self) -> list[Endpoint]:
        code, update, get = Request, on_cluster(UPDATE), on_cluster(GET)
        created = Change("user created", ("username",), more=_shown_user)
        changed = Change("user changed", ("username",), more=_shown_user)
        deleted = Change("user deleted", ("username",))
        acl_changed = Change("ACL changed", ("subject",), more=_shown_acl)
        acl_deleted = Change("ACL deleted", ("subject", "policyType", "resource"))
        return [
            Endpoint(code.AUTH_CREATE_USER, self._create_user, update, UserHeader, body=UserInfo, change=created),
            Endpoint(code.AUTH_UPDATE_USER, self._update_user, update, UserHeader, body=UserInfo, change=changed),
            Endpoint(code.AUTH_DELETE_USER, self._delete_user, update, UserHeader, change=deleted),
            Endpoint(code.AUTH_GET_USER, self._get_user, get, UserHeader),
            Endpoint(code.AUTH_LIST_USER, self._list_users, get, UserFilterHeader),
            Endpoint(code.AUTH_CREATE_ACL, self._merge_acl, update, SubjectHeader, body=AclInfo, change=acl_changed),
            Endpoint(code.AUTH_UPDATE_ACL, self._merge_acl, update, SubjectHeader, body=AclInfo, change=acl_changed),
            Endpoint(code.AUTH_DELETE_ACL, self._delete_acl, update, DeleteAclHeader, change=acl_deleted),
            Endpoint(code.AUTH_GET_ACL, self._get_acl, get, SubjectHeader),
            Endpoint(code.AUTH_LIST_ACL, self._list_acls, get, AclFilterHeader),
            Endpoint(code.ACCESS_STATE, self._copy, update, AccessStateHeader),
        ]

    @property
    def _table(self) -> AccessTable:
        if self._table_or_none is None:
            raise _unsupported()
        return self._table_or_none

    @property
    def _copies(self) -> AccessCopies:
        if self._copies_or_none is None:
            raise _unsupported()
        return self._copies_or_none

    def _user(self, connection: Connection, command: Command) -> User:
        assert self._guard is not None, "without a guard there is no table"
        return self._guard.user_of(connection, command)

    def _change(
        self,
        connection: Connection,
        command: Command,
        header: object,
        change: Callable[[Editor, AccessState, bool], AccessState],
    ) -> None:
        """Bring a change into effect once it is saved, and reply when the copies have it."""
        editor, changes, guard = self._table.editor, self._changes, self._guard
        assert changes is not None, "they come with a table"
        assert guard is not None, "without a guard there is no table"
        self._saves.check_room()
        # Changes that are waiting count already: one of them may take the right to this one away.
        user = guard.check_in(changes.newest, connection, command, _UPDATES_USERS)
        state = change(editor, changes.newest, user.is_super)
        reply = encode_response(command, fields={})
        on_failure = guard.on_failure(connection, self._rows[command.code], command, header)

        def when_copied() -> None:
            self._saves.waiting -= 1
            answer(connection, command, reply)

        def when_done(error: LaterMQError | None) -> None:
            if error is None:
                self._saves.waiting += 1  # for the copies
                self._copies.when_copied(when_copied)
            else:
                on_failure(error)
                answer(connection, command, connection.refuse(command, error))

        changes.make(state, when_done, len(reply))

    def _create_user(self, connection: Connection, command: Command, header: UserHeader) -> None:
        change = _read_user(command)
        self._change(
            connection,
            command,
            header,
            lambda editor, state, by_super: editor.create_user(state, header.username, change, by_super=by_super),
        )

    def _update_user(self, connection: Connection, command: Command, header: UserHeader) -> None:
        change = _read_user(command)
        self._change(
            connection,
            command,
            header,
            lambda editor, state, by_super: editor.update_user(state, header.username, change, by_super=by_super),
        )

    def _delete_user(self, connection: Connection, command: Command, header: UserHeader) -> None:
        self._change(
            connection,
            command,
            header,
            lambda editor, state, by_super: editor.delete_user(state, header.username, by_super=by_super),
        )

    def _get_user(self, connection: Connection, command: Command, header: UserHeader) -> bytes:
        user = self._table.state.users.get(header.username)
        if user is None:
            return encode_response(command, fields={})
        info = _write_user(user, with_secret=self._user(connection, command).is_super)
        return encode_response(command, fields={}, body=encode_body(info))

    def _list_users(self, connection: Connection, command: Command, header: UserFilterHeader) -> bytes:
        users = self._table.state.users.values()
        is_super = self._user(connection, command).is_super
        infos = [_write_user(user, with_secret=is_super) for user in users if (header.filter or "") in user.name]
        return encode_response(command, fields={}, body=encode_body(infos) if infos else b"")

    def _merge_acl(self, connection: Connection, command: Command, header: SubjectHeader) -> None:
        self._change(
            connection,
            command,
            header,
            lambda editor, state, by_super: editor.merge_acl(
                state, header.subject, read_acl(decode_body(command.body, AclInfo)), by_super=by_super
            ),
        )

    def _delete_acl(self, connection: Connection, command: Command, header: DeleteAclHeader) -> None:
        is_default = is_default_policy(header.policyType)
        self._change(
            connection,
            command,
            header,
            lambda editor, state, by_super: editor.delete_acl(
                state, header.subject, header.resource or "", is_default=is_default, by_super=by_super
            ),
        )

    def _get_acl(self, _: Connection, command: Command, header: SubjectHeader) -> bytes:
        name = subject_name(header.subject)
        state = self._table.state
        if name not in state.users:
            raise NoPermission("The subject is not exist.")
        acl = state.acl(name)
        return encode_response(command, fields={}, body=encode_body(write_acl(name, acl)) if len(acl) else b"")

    def _list_acls(self, _: Connection, command: Command, header: AclFilterHeader) -> bytes:
        infos = []
        for name, acl in self._table.state.acls.items():
            if (header.subjectFilter or "") in SUBJECT_PREFIX + name:
                info = write_acl(name, acl, header.resourceFilter or "")
                if info.policies:
                    infos.append(info)
        return encode_response(command, fields={}, body=encode_body(infos) if infos else b"")

    def _copy(self, connection: Connection, command: Command, header: AccessStateHeader) -> bytes | None:
        """Return all users and their secrets to one of LaterMQ's own processes, encrypted, or wait for a change."""
        copies = self._copies
        if self._user(connection, command).name != INNER_USER:
            raise NoPermission("only LaterMQ's own processes may copy the users")
        return copies.ask(connection, command, header)


def _unsupported() -> UnsupportedRequest:
    return UnsupportedRequest("users are not supported here", hint="Set access.enabled to true")


def _read_user(command: Command) -> UserChange:
    info = decode_body(command.body, UserInfo)
    return UserChange(
        secret=info.password or None,
        is_super=_TYPES.get((info.userType or "").lower()),
        is_enabled=_STATUSES.get((info.userStatus or "").lower()),
        keeps_previous=info.keepPrevious,
        drops_previous=info.dropPrevious,
    )


def _shown_user(command: Command) -> dict[str, str]:
    """What a change of a user is about, without the password."""
    try:
        info = decode_body(command.body, UserInfo)
    except LaterMQError:  # the handler refuses it
        return {}
    secret = "new" if info.password else "the previous one ends" if info.dropPrevious else None
    shown = {"type": info.userType, "status": info.userStatus, "secret": secret}
    return {key: value for key, value in shown.items() if value}


def _shown_acl(command: Command) -> dict[str, str]:
    """The entries that are added or replaced."""
    try:
        acl = read_acl(decode_body(command.body, AclInfo))
    except LaterMQError:
        return {}
    entries = [*map(str, acl.custom), *(f"{entry} (default)" for entry in acl.default)]
    more = [f"and {len(entries) - MAX_NAMES} more"] if len(entries) > MAX_NAMES else []
    return {"entries": "; ".join([*entries[:MAX_NAMES], *more])}


def _write_user(user: User, *, with_secret: bool) -> UserInfo:
    return UserInfo(
        username=user.name,
        password=user.secret if with_secret else None,
        userType="Super" if user.is_super else "Normal",
        userStatus="enable" if user.is_enabled else "disable",
        hasPrevious=bool(user.previous_secret),
    )
