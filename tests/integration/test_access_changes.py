"""Users and policies change at random while several connections are open: a plain model says what each may do.

After the reply to a change, the next request of every connection follows it. Requests that are on their way at the same
time may be decided before or after it.
"""

import asyncio
import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from latermq.access import failed_attempts
from latermq.protocol.remoting.codes import Request, Response
from latermq.server.access import guard
from latermq.server.broker.process import BrokerProcess
from tests.integration.brokers import run_with_broker, send_fields
from tests.integration.raw_client import RawClient, connect
from tests.integration.test_access import ON
from tests.support.needs import LONG
from tests.support.signed_requests import signed

CHANGES = 2_000 if LONG else 120
USERS = ("ann", "ben", "cy")
TOPICS = ("orders", "orders-eu", "bills")
GROUPS = ("readers", "others")
RESOURCES = (
    "Topic:orders", "Topic:orders-eu", "Topic:ord*", "Topic:o*", "Topic:*", "Topic:bills", "Group:readers", "Group:r*",
    "Group:*", "*",
)  # fmt: skip
ACTIONS = (["Pub"], ["Sub"], ["Pub", "Sub"], ["All"], ["Get"])
Resource = tuple[str, str, str]  # kind, name and action


@dataclass
class ModelUser:
    secret: str
    previous: str = ""
    is_enabled: bool = True
    entries: dict[str, tuple[list[str], bool]] = field(default_factory=dict)

    def may(self, kind: str, name: str, action: str) -> tuple[bool, str]:
        """Whether the most specific entry allows it, and the end of the remark if not."""
        patterns = [f"{kind}:{name}", *(f"{kind}:{name[:length]}*" for length in range(len(name), -1, -1)), "*"]
        for pattern in patterns:
            if pattern in self.entries:
                actions, is_allow = self.entries[pattern]
                if action in actions or "All" in actions:
                    return is_allow, "the decision is deny."
        return False, "no matched policies."


class Model:
    """What the broker should know."""

    def __init__(self) -> None:
        self.users: dict[str, ModelUser] = {}

    def remark(self, user: str, secret: str, touches: list[Resource]) -> str:
        """Why a request that is checked in full is refused; empty if it is served."""
        known = self.users.get(user)
        if known is None:
            return f"User:{user} is not found."
        if not known.is_enabled:
            return f"User:{user} is disabled."
        if secret not in (known.secret, known.previous):
            return "check signature failed."
        for kind, name, action in touches:
            allowed, reason = known.may(kind, name, action)
            if not allowed:
                return f"User:{user} has no permission to access {kind}:{name} from 127.0.0.1, {reason}"
        return ""


@dataclass
class Asked:
    """A request of a client."""

    user: str
    secret: str
    code: Request
    fields: dict[str, str]
    touches: list[Resource]


class ModelConnection:
    """A connection, and what the page about security says that its broker remembers of it."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self._user = ""
        self._permitted: set[Resource] = set()

    def forget(self) -> None:
        self._permitted.clear()

    def is_remembered(self, asked: Asked) -> bool:
        return asked.user == self._user and self._permitted.issuperset(asked.touches)

    def remember(self, asked: Asked) -> None:
        if asked.user != self._user:
            self._user = asked.user
            self._permitted = set()
        self._permitted.update(asked.touches)

    async def ask(self, asked: Asked) -> str:
        """The remark of a refusal; empty if the request was served."""
        reply = await self._client.call(asked.code, signed(asked.user, asked.fields, b"x", asked.secret), b"x")
        return (reply.remark or "") if reply.code == Response.NO_PERMISSION else ""


class Play:
    """Random changes and requests."""

    def __init__(self, seed: int, root: RawClient, connections: list[ModelConnection]) -> None:
        self._random = random.Random(seed)
        self._root = root
        self._connections = connections
        self._secrets = 0
        self.model = Model()
        self.served = self.refused = self.remembered = 0

    async def step(self) -> None:
        """Change something while all connections are in use, then ask again on each."""
        before = copy.deepcopy(self.model)
        change, what = self._change()
        meanwhile = [(one, self._asked()) for one in self._connections]
        changed, *remarks = await asyncio.gather(change, *(one.ask(asked) for one, asked in meanwhile))
        assert changed.code == Response.SUCCESS, (what, changed.remark)
        for (one, asked), remark in zip(meanwhile, remarks, strict=True):
            expected = {model.remark(asked.user, asked.secret, asked.touches) for model in (before, self.model)}
            assert remark in expected | ({""} if one.is_remembered(asked) else set()), (what, asked)
            one.forget()
        for one, asked in meanwhile:
            await self._check(one, asked, what)
        for one, asked in meanwhile:
            await self._check(one, replace(asked, secret="guessed"), what)
            await self._check(one, self._asked(), what)

    async def _check(self, one: ModelConnection, asked: Asked, what: str) -> None:
        expected = self.model.remark(asked.user, asked.secret, asked.touches)
        if expected and one.is_remembered(asked):
            assert expected == "check signature failed."
            self.remembered += 1
            expected = ""
        assert await one.ask(asked) == expected, (what, asked)
        if expected:
            self.refused += 1
        else:
            self.served += 1
            one.remember(asked)

    def _asked(self) -> Asked:
        user, topic, group = (self._random.choice(some) for some in (USERS, TOPICS, GROUPS))
        known = self.model.users.get(user)
        secret = "guessed"
        if known is not None and self._random.random() < 0.85:
            secret = known.previous if known.previous and self._random.random() < 0.3 else known.secret
        if self._random.random() < 0.6:
            return Asked(user, secret, Request.SEND_MESSAGE_V2, send_fields(topic), [("Topic", topic, "Pub")])
        pull = {
            "consumerGroup": group, "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*",
        }  # fmt: skip
        return Asked(user, secret, Request.PULL_MESSAGE, pull, [("Topic", topic, "Sub"), ("Group", group, "Sub")])

    def _change(self) -> tuple[Any, str]:
        """Change the model, and return the same change for the broker."""
        absent = [name for name in USERS if name not in self.model.users]
        if absent and (len(absent) == len(USERS) or self._random.random() < 0.3):
            name = self._random.choice(absent)
            self.model.users[name] = ModelUser(self._new_secret())
            return self._user(Request.AUTH_CREATE_USER, name, password=self.model.users[name].secret), f"create {name}"
        name = self._random.choice([name for name in USERS if name in self.model.users])
        kinds: list[Callable[[str, ModelUser], Any]] = [
            self._delete, self._switch, self._rotate, self._drop, self._grant, self._grant, self._grant, self._revoke,
            self._revoke_all,
        ]  # fmt: skip
        kind = self._random.choices(kinds, weights=(1, 2, 2, 1, 3, 3, 3, 3, 1))[0]
        return kind(name, self.model.users[name]), f"{kind.__name__} {name}"

    def _delete(self, name: str, _: ModelUser) -> Any:
        del self.model.users[name]
        return self._call(Request.AUTH_DELETE_USER, {"username": name})

    def _switch(self, name: str, user: ModelUser) -> Any:
        user.is_enabled = not user.is_enabled
        return self._user(Request.AUTH_UPDATE_USER, name, userStatus="enable" if user.is_enabled else "disable")

    def _rotate(self, name: str, user: ModelUser) -> Any:
        keeps = self._random.random() < 0.5
        user.previous, user.secret = user.secret if keeps else "", self._new_secret()
        return self._user(Request.AUTH_UPDATE_USER, name, password=user.secret, keepPrevious=keeps)

    def _drop(self, name: str, user: ModelUser) -> Any:
        user.previous = ""
        return self._user(Request.AUTH_UPDATE_USER, name, dropPrevious=True)

    def _grant(self, name: str, user: ModelUser) -> Any:
        resource, actions = self._random.choice(RESOURCES), self._random.choice(ACTIONS)
        is_allow = self._random.random() < 0.75
        user.entries[resource] = (actions, is_allow)
        entry = {"resource": resource, "actions": actions, "decision": "Allow" if is_allow else "Deny"}
        body = {"policies": [{"policyType": "Custom", "entries": [entry]}]}
        code = self._random.choice((Request.AUTH_CREATE_ACL, Request.AUTH_UPDATE_ACL))
        return self._call(code, {"subject": f"User:{name}"}, msgspec.json.encode(body))

    def _revoke(self, name: str, user: ModelUser) -> Any:
        resource = self._random.choice(list(user.entries) or list(RESOURCES))
        user.entries.pop(resource, None)
        return self._call(Request.AUTH_DELETE_ACL, {"subject": f"User:{name}", "resource": resource})

    def _revoke_all(self, name: str, user: ModelUser) -> Any:
        user.entries.clear()
        return self._call(Request.AUTH_DELETE_ACL, {"subject": f"User:{name}"})

    def _user(self, code: Request, name: str, **values: object) -> Any:
        return self._call(code, {"username": name}, msgspec.json.encode(values))

    def _call(self, code: Request, fields: dict[str, str], body: bytes = b"") -> Any:
        return self._root.call(code, signed("root", fields, body), body)

    def _new_secret(self) -> str:
        self._secrets += 1
        return f"secret-{self._secrets}"


@pytest.mark.parametrize("seed", [1, 2])
def test_every_connection_follows_a_change_with_its_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    # Wrong secrets are part of the play, and it should not take minutes.
    monkeypatch.setattr(failed_attempts, "LONGEST_PAUSE_S", 0.0)
    monkeypatch.setattr(guard, "MAX_FAILURES", 1 << 60)

    async def scenario(process: BrokerProcess) -> None:
        port = process.listener.port
        async with (
            connect(port) as root,
            connect(port) as a,
            connect(port) as b,
            connect(port) as c,
            connect(port) as d,
        ):
            play = Play(seed, root, [ModelConnection(one) for one in (a, b, c, d)])
            for _ in range(CHANGES):
                await play.step()
            assert min(play.served, play.refused) > CHANGES // 4
            assert play.remembered > CHANGES // 10

    run_with_broker(tmp_path, scenario, *ON)
