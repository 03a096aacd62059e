"""Requests from brokers to a push consumer: rebalance, reset offsets, report its state, handle one message now."""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from latermq.client.consumer.assignment import Assignment
from latermq.client.consumer.consumer_settings import ConsumerSettings
from latermq.client.consumer.handler_runner import Handler, run_handler
from latermq.client.consumer.keyed_tables import keyed_table
from latermq.client.producer.compression import decompress_message
from latermq.client.session.failures import BrokerFailed
from latermq.client.session.session import Session
from latermq.message.record import decode_record
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import VERSION, Command
from latermq.protocol.remoting.json_body import encode_body, encode_keyed_map


class GroupRequest(msgspec.Struct):
    """Header fields of requests 40, 307 and 309."""

    consumerGroup: str


class GroupTopicRequest(msgspec.Struct):
    """Header fields of requests 220 and 221."""

    topic: str
    group: str


class ConsumerRequests:
    """Handles the requests from brokers to one push consumer."""

    def __init__(
        self, session: Session, settings: ConsumerSettings, assignment: Assignment, handler: Handler,
        statistics: Callable[[], dict[str, int]],
    ) -> None:  # fmt: skip
        self._session = session
        self._settings = settings
        self._assignment = assignment
        self._handler = handler
        self._statistics = statistics
        self._started_ms = time.time_ns() // 1_000_000
        session.request_handlers.update({
            Request.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            Request.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offsets,
            Request.GET_CONSUMER_STATUS_FROM_CLIENT: self._positions,
            Request.GET_CONSUMER_RUNNING_INFO: self._running_info,
            Request.CONSUME_MESSAGE_DIRECTLY: self._handle_now,
        })  # fmt: skip

    async def _members_changed(self, request: Command) -> None:
        self._assignment.rebalance_soon()

    async def _reset_offsets(self, request: Command) -> None:
        header = request.header(GroupTopicRequest)
        self._check_group(header.group)
        offsets = {queue: int(offset) for queue, offset in keyed_table(request.body, "offsetTable")}
        await self._assignment.reset(header.topic, offsets)

    async def _positions(self, request: Command) -> bytes:
        header = request.header(GroupTopicRequest)
        self._check_group(header.group)
        queues = self._assignment.queues.values()
        table = encode_keyed_map((entry.queue, entry.position) for entry in queues if entry.queue.topic == header.topic)
        return encode_body({"messageQueueTable": table, "consumerTable": {}})

    async def _running_info(self, request: Command) -> bytes:
        self._check_group(request.header(GroupRequest).consumerGroup)
        settings, assignment = self._settings, self._assignment
        statistics = self._statistics()
        info: dict[str, Any] = {
            "properties": {
                "PROP_CLIENT_VERSION": f"latermq {VERSION}",
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_CONSUMEORDERLY": str(settings.orderly).lower(),
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                "PROP_NAMESERVER_ADDR": ";".join(self._session.routes.servers),
                "PROP_THREADPOOL_CORE_SIZE": str(settings.concurrency),
                "consumerGroup": settings.group,
                "messageModel": settings.model.upper(),
            },
            "subscriptionSet": list(assignment.subscriptions.values()),
            "mqTable": encode_keyed_map((entry.queue, _queue_info(entry)) for entry in assignment.queues.values()),
            "mqPopTable": {},
            "statusTable": {},
            "userConsumerInfo": {name: str(value) for name, value in statistics.items()},
            "jstack": None,
        }
        return encode_body(info)

    async def _handle_now(self, request: Command) -> bytes:
        self._check_group(request.header(GroupRequest).consumerGroup)
        message = decode_record(request.body)
        began_s = time.monotonic()
        result, remark = "CR_SUCCESS", None
        try:
            await run_handler(self._handler, decompress_message(message, self._settings.max_body_bytes))
        except Exception as error:  # the response reports any exception from the handler
            result, remark = "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}"
        return encode_body({
            "order": self._settings.orderly,
            "autoCommit": True,
            "consumeResult": result,
            "remark": remark,
            "spentTimeMills": int((time.monotonic() - began_s) * 1000),
        })  # fmt: skip

    def _check_group(self, group: str) -> None:
        if group != self._settings.group:
            raise BrokerFailed(f"this client consumes group {self._settings.group!r}, not {group!r}")


def _queue_info(entry: Any) -> dict[str, Any]:
    return {
        "commitOffset": entry.position,
        "cachedMsgMinOffset": entry.position if entry.cached_messages else 0,
        "cachedMsgMaxOffset": entry.next_offset - 1 if entry.cached_messages else 0,
        "cachedMsgCount": entry.cached_messages,
        "cachedMsgSizeInMiB": entry.cached_bytes >> 20,
        "transactionMsgMinOffset": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgCount": 0,
        "locked": entry.locked_until_s > time.monotonic(),
        "tryUnlockTimes": 0,
        "lastLockTimestamp": 0,
        "droped": entry.dropped,
        "lastPullTimestamp": entry.pulled_ms,
        "lastConsumeTimestamp": entry.handled_ms,
    }
