"""What operators change is logged, each change once, with who made it: by brokers and name servers alike."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import structlog

from latermq.message.names import MAX_RETRY_TOPIC_CHARS, escaped
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command
from latermq.protocol.remoting.json_body import decode_body
from latermq.server.remoting.connection import Connection

MAX_NAMES = 10  # of a list that one line shows
_SHOWN_CHARS = MAX_RETRY_TOPIC_CHARS  # so every legal name is shown whole

_log = structlog.get_logger(__name__)
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
Answer = TypeVar("Answer")


class _Group(msgspec.Struct):
    groupName: str = ""


class _Groups(msgspec.Struct):
    groupConfigList: list[_Group] = []


class _Topic(msgspec.Struct):
    topicName: str = ""


class _Topics(msgspec.Struct):
    topicConfigList: list[_Topic] = []


def _group(body: bytes) -> list[str]:
    return [decode_body(body, _Group).groupName]


def _groups(body: bytes) -> list[str]:
    return [group.groupName for group in decode_body(body, _Groups).groupConfigList]


def _topics(body: bytes) -> list[str]:
    return [topic.topicName for topic in decode_body(body, _Topics).topicConfigList]


@dataclass(frozen=True)
class Change:
    """How a change is called, which header fields tell what was changed, and which names its body holds.

    Other fields are not shown: some are secrets.
    """

    event: str
    fields: tuple[str, ...] = ()
    names: Callable[[bytes], list[str]] | None = None


_RESET = ("group", "topic", "timestamp", "queueId", "offset", "isForce")
CHANGES: Mapping[int, Change] = {
    Request.UPDATE_AND_CREATE_TOPIC: Change("topic put", ("topic", "readQueueNums", "writeQueueNums", "perm")),
    Request.UPDATE_AND_CREATE_TOPIC_LIST: Change("topics put", names=_topics),
    Request.DELETE_TOPIC_IN_BROKER: Change("topic deleted", ("topic",)),
    Request.DELETE_TOPIC_IN_NAMESRV: Change("topic deleted", ("topic", "clusterName")),
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Change("group put", names=_group),
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Change("groups put", names=_groups),
    Request.DELETE_SUBSCRIPTIONGROUP: Change("group deleted", ("groupName", "cleanOffset")),
    Request.INVOKE_BROKER_TO_RESET_OFFSET: Change("offsets reset", _RESET),
    Request.CLONE_GROUP_OFFSET: Change("offsets cloned", ("srcGroup", "destGroup", "topic")),
    Request.UPDATE_BROKER_CONFIG: Change("settings changed"),
    Request.UPDATE_NAMESRV_CONFIG: Change("settings changed"),
    Request.CLEAN_EXPIRED_CONSUMEQUEUE: Change("clean-up asked for"),
    Request.DELETE_EXPIRED_COMMITLOG: Change("clean-up asked for"),
    Request.CLEAN_UNUSED_TOPIC: Change("clean-up asked for"),
    Request.PUT_KV_CONFIG: Change("key put", ("namespace", "key")),
    Request.DELETE_KV_CONFIG: Change("key deleted", ("namespace", "key")),
    Request.WIPE_WRITE_PERM_OF_BROKER: Change("writing forbidden", ("brokerName",)),
    Request.ADD_WRITE_PERM_OF_BROKER: Change("writing allowed", ("brokerName",)),
    Request.REPAIR_WINDOW: Change("window repair asked for", ("number",)),
    Request.SKIP_WINDOW: Change("window skip asked for", ("number",)),
}


def logged(
    handlers: Mapping[int, Callable[[Connection, Command], Answer]],
) -> dict[int, Callable[[Connection, Command], Answer]]:
    """The same handlers; those that change something log it once they have taken it.

    What is refused is logged as every refusal is; what fails on the disk later, as every such failure.
    """
    return {
        code: _logging(handler, CHANGES[code]) if code in CHANGES else handler for code, handler in handlers.items()
    }


def _logging(
    handler: Callable[[Connection, Command], Answer], change: Change
) -> Callable[[Connection, Command], Answer]:
    def handle(connection: Connection, command: Command) -> Answer:
        answer = handler(connection, command)
        told = _told(command, change.fields)
        if change.names is not None:
            names = change.names(command.body)
            told["count"] = str(len(names))
            told["names"] = ", ".join(escaped(name, _SHOWN_CHARS) for name in names[:MAX_NAMES])
        _log.info(change.event, peer=connection.peer_name, **told)
        return answer

    return handle


def _told(command: Command, fields: tuple[str, ...]) -> dict[str, str]:
    if not fields:
        return {}
    if command.binary_fields is not None:
        found = command.binary_fields
        return {name: escaped(found[name], _SHOWN_CHARS) for name in fields if name in found}
    raw = _decode_fields(command.json_fields)
    return {name: escaped(_text(raw[name]), _SHOWN_CHARS) for name in fields if name in raw}


def _text(raw: msgspec.Raw) -> str:
    """A value as it was meant; Java sends all as texts, others send numbers as such."""
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.ValidationError:
        return bytes(raw).decode(errors="replace")
