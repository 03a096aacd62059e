"""Users and permissions at the brokers of a cluster. Each broker keeps its own, so a change goes to all of them."""

from collections.abc import Awaitable, Callable

from latermq.access.changes import SUBJECT_PREFIX, KnownUser, UserChange
from latermq.access.policies import Acl
from latermq.client.session.cluster import ClusterClient
from latermq.client.session.credentials import Credentials, chosen_credentials
from latermq.client.session.retry import SAFE_TO_REPEAT
from latermq.client.session.session import Session
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command
from latermq.protocol.remoting.json_body import decode_body, encode_body
from latermq.protocol.remoting.users import (
    CUSTOM,
    DEFAULT,
    AclInfo,
    UserInfo,
    read_acl,
    write_acl,
)
from latermq.tls.client import ClientTls

Call = Callable[[int, dict[str, str], bytes], Awaitable[Command]]


class BrokerUsers:
    """The users of one broker."""

    def __init__(self, name: str, call: Call) -> None:
        """`name` is that of the broker."""
        self.name = name
        self._call = call

    async def users(self) -> dict[str, KnownUser]:
        """All users by their names."""
        body = (await self._call(Request.AUTH_LIST_USER, {}, b"")).body
        infos = decode_body(body, list[UserInfo]) if body else []
        return {user.name: user for user in map(_read_user, infos)}

    async def acls(self) -> dict[str, Acl]:
        """The entries of all users that have some."""
        body = (await self._call(Request.AUTH_LIST_ACL, {}, b"")).body
        infos = decode_body(body, list[AclInfo]) if body else []
        return {(info.subject or "").removeprefix(SUBJECT_PREFIX): read_acl(info) for info in infos}

    async def create_user(self, name: str, change: UserChange) -> None:
        """Add a user."""
        await self._call(Request.AUTH_CREATE_USER, {"username": name}, encode_body(_write_change(name, change)))

    async def update_user(self, name: str, change: UserChange) -> None:
        """Change a user. What the change does not name stays."""
        await self._call(Request.AUTH_UPDATE_USER, {"username": name}, encode_body(_write_change(name, change)))

    async def delete_user(self, name: str) -> None:
        """Remove a user and its entries."""
        await self._call(Request.AUTH_DELETE_USER, {"username": name}, b"")

    async def merge_acl(self, name: str, acl: Acl) -> None:
        """Add entries. An entry replaces that of the same resource."""
        fields = {"subject": SUBJECT_PREFIX + name}
        await self._call(Request.AUTH_CREATE_ACL, fields, encode_body(write_acl(name, acl)))

    async def delete_entry(self, name: str, resource: str, *, is_default: bool) -> None:
        """Remove the entry of a resource."""
        policy = DEFAULT if is_default else CUSTOM
        fields = {"subject": SUBJECT_PREFIX + name, "policyType": policy, "resource": resource}
        await self._call(Request.AUTH_DELETE_ACL, fields, b"")


class UserAdmin(ClusterClient):
    """Finds the brokers of a cluster and their users."""

    def __init__(
        self,
        namesrv: str = "127.0.0.1:9876",
        *,
        tls: ClientTls | bool | None = None,
        credentials: Credentials | bool | None = None,
        request_timeout_s: float = 5.0,
    ) -> None:
        chosen = chosen_credentials(credentials)
        # Only LaterMQ's servers are asked here, and a server in between must not change users with these requests.
        bound = False if chosen is None else chosen.bound()
        self._session = Session(namesrv, tls=tls, credentials=bound, request_timeout_s=request_timeout_s)

    async def everywhere(self) -> list[BrokerUsers]:
        """The users of each broker."""
        return [self.at(address, name) for name, address in sorted((await self._masters()).items())]

    def at(self, address: str, name: str) -> BrokerUsers:
        """The users of the broker at an address."""
        return BrokerUsers(name, lambda code, fields, body: self._send(address, code, fields, body))

    async def _send(self, address: str, code: int, fields: dict[str, str], body: bytes) -> Command:
        # A repeated creation would find the user that the first one made.
        return await self._call(address, code, fields, body, retry_on=SAFE_TO_REPEAT)


def _read_user(info: UserInfo) -> KnownUser:
    return KnownUser(
        name=info.username or "",
        is_super=(info.userType or "").lower() == "super",
        is_enabled=(info.userStatus or "").lower() != "disable",
        has_previous=info.hasPrevious,
        secret=info.password,
    )


def _write_change(name: str, change: UserChange) -> UserInfo:
    return UserInfo(
        username=name,
        password=change.secret,
        userType=None if change.is_super is None else "Super" if change.is_super else "Normal",
        userStatus=None if change.is_enabled is None else "enable" if change.is_enabled else "disable",
        keepPrevious=change.keeps_previous,
        dropPrevious=change.drops_previous,
    )
