"""Drives the Python client of the 5.x protocol: one command per JSON line of standard input, each in a thread.

Run by the Python of an environment of its own, because the client pins other versions of grpcio and protobuf.
"""

import asyncio
import itertools
import json
import os
import sys
import threading
import time
import traceback
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

Json = dict[str, Any]

_clients: dict[str, Any] = {}
_transactions: dict[str, Any] = {}
_views: dict[int, Message] = {}
_numbers = itertools.count()
_out_lock = threading.Lock()
# The client prints in a few places; standard output is for JSON lines alone.
_out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def write_line(line: Json) -> None:
    with _out_lock:
        _out.write(json.dumps(line) + "\n")
        _out.flush()


def configuration(arguments: Json) -> ClientConfiguration:
    credentials = Credentials(arguments["user"], arguments["secret"]) if "user" in arguments else Credentials()
    return ClientConfiguration(arguments["endpoints"], credentials)


def start(name: str, client: Any) -> Json:
    client.startup()
    _clients[name] = client
    return {}


class Checker(TransactionChecker):
    """Resolves every transaction in the same way, and reports each check."""

    def __init__(self, producer: str, resolution: str) -> None:
        self._producer = producer
        self._resolution = resolution

    def check(self, message: Message) -> TransactionResolution:
        write_line({**described(message), "event": "check", "producer": self._producer})
        if self._resolution == "unknown":
            return TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
        return TransactionResolution.COMMIT if self._resolution == "commit" else TransactionResolution.ROLLBACK


def start_producer(arguments: Json) -> Json:
    resolution = arguments.get("checked_as")
    checker = Checker(arguments["name"], resolution) if resolution else None
    return start(arguments["name"], Producer(configuration(arguments), arguments["topics"], checker=checker))


def send(arguments: Json) -> Json:
    producer = _clients[arguments["producer"]]
    message = Message()
    message.topic = arguments["topic"]
    message.body = arguments["body"].encode()
    if "tag" in arguments:
        message.tag = arguments["tag"]
    for key in arguments.get("keys", []):
        message.keys = key
    if "message_group" in arguments:
        message.message_group = arguments["message_group"]
    if "deliver_at_ms" in arguments:
        # The client counts in seconds, whatever its documentation says.
        message.delivery_timestamp = arguments["deliver_at_ms"] // 1000
    for key, value in arguments.get("properties", {}).items():
        message.add_property(key, value)
    if "transaction" in arguments:
        transaction = producer.begin_transaction()
        receipt = producer.send(message, transaction)
        _transactions[arguments["transaction"]] = transaction
    else:
        receipt = producer.send(message)
    return {"message_id": receipt.message_id, "recall_handle": receipt.recall_handle}


def end_transaction(arguments: Json) -> Json:
    transaction = _transactions[arguments["transaction"]]
    if arguments["resolution"] == "commit":
        transaction.commit()
    else:
        transaction.rollback()
    return {}


def recall(arguments: Json) -> Json:
    recalled = _clients[arguments["producer"]].recall_message(arguments["topic"], arguments["handle"])
    return {"message_id": str(recalled)}


def subscription(arguments: Json) -> dict[str, FilterExpression]:
    if "sql" in arguments:
        return {arguments["topic"]: FilterExpression(arguments["sql"], FilterType.SQL)}
    return {arguments["topic"]: FilterExpression(arguments.get("tags", "*"))}


def start_simple(arguments: Json) -> Json:
    consumer = SimpleConsumer(
        configuration(arguments),
        arguments["group"],
        subscription(arguments),
        await_duration=arguments["await_s"],
    )
    return start(arguments["name"], consumer)


def receive(arguments: Json) -> Json:
    messages = []
    for message in _clients[arguments["consumer"]].receive(arguments["count"], arguments["invisible_s"]) or ():
        number = next(_numbers)
        _views[number] = message
        messages.append({**described(message), "view": number})
    return {"messages": messages}


def ack(arguments: Json) -> Json:
    _clients[arguments["consumer"]].ack(_views[arguments["view"]])
    return {}


def change(arguments: Json) -> Json:
    consumer = _clients[arguments["consumer"]]
    consumer.change_invisible_duration(_views[arguments["view"]], arguments["invisible_s"])
    return {}


class Listener(MessageListener):
    """Reports each message, takes its time, and fails the first attempts if it is asked to."""

    def __init__(self, arguments: Json) -> None:
        self._consumer = arguments["name"]
        self._busy_s = arguments.get("busy_ms", 0) / 1000
        self._failures = arguments.get("failures", 0)

    def consume(self, message: Message) -> ConsumeResult:
        write_line({**described(message), "event": "message", "consumer": self._consumer})
        time.sleep(self._busy_s)
        return ConsumeResult.FAILURE if message.delivery_attempt <= self._failures else ConsumeResult.SUCCESS


def start_push(arguments: Json) -> Json:
    consumer = PushConsumer(configuration(arguments), arguments["group"], Listener(arguments), subscription(arguments))
    return start(arguments["name"], consumer)


def stop(arguments: Json) -> Json:
    _clients.pop(arguments["name"]).shutdown()
    return {}


def described(message: Message) -> Json:
    return {
        "received_ms": int(time.time() * 1000),
        "message_id": message.message_id,
        "topic": message.topic,
        "body": message.body.decode(),
        "tag": message.tag,
        "keys": sorted(message.keys),
        "message_group": message.message_group,
        "properties": dict(message.properties),
        "deliver_at_ms": message.delivery_timestamp,
        "attempt": message.delivery_attempt,
    }


COMMANDS = {
    command.__name__: command
    for command in (
        start_producer,
        send,
        end_transaction,
        recall,
        start_simple,
        receive,
        ack,
        change,
        start_push,
        stop,
    )
}


def answer(request: Json) -> None:
    line: Json = {"reply": request["request"]}
    # If an answer is here before the client waits for it, the client goes on in this thread, and needs a loop then.
    asyncio.set_event_loop(asyncio.new_event_loop())
    try:
        line["result"] = COMMANDS[request["command"]](request["arguments"])
    except Exception as failure:
        traceback.print_exc()
        code = getattr(failure, "code", None)
        line["error"] = {
            "type": type(failure).__name__,
            "code": code if isinstance(code, int) else -1,
            "message": str(failure),
        }
    write_line(line)


def main() -> None:
    write_line({"event": "ready"})
    for line in sys.stdin:
        threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()
    stopping = [threading.Thread(target=client.shutdown) for client in _clients.values()]
    for thread in stopping:
        thread.start()
    for thread in stopping:
        thread.join()
    # The client leaves threads behind that are not daemons.
    os._exit(0)


if __name__ == "__main__":
    main()
