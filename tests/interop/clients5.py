"""The official clients of the 5.x protocol, each driven through a program that knows the same commands."""

import itertools
import time
from pathlib import Path
from typing import Any

from tests.interop.programs import Json, start_client5
from tests.interop.target import IS_APACHE

LANGUAGES = ("java", "go", "node", "python")
# Long enough that nothing comes back by itself within a test.
HELD_S = 60
_numbers = itertools.count()


class Client5:
    """One process with the client of one language; producers and consumers in it have names."""

    def __init__(self, language: str, log: Path, endpoints: str) -> None:
        self.language = language
        self.program = start_client5(language, log, endpoints)

    def producer(self, *topics: str, checked_as: str | None = None) -> str:
        """Start a producer whose transactions are resolved as `checked_as` if the server asks."""
        name = f"producer{next(_numbers)}"
        asked = {"checked_as": checked_as} if checked_as else {}
        self.program.call("start_producer", name=name, topics=topics, **asked)
        return name

    def send(self, producer: str, topic: str, body: str, **arguments: Any) -> Json:
        return self.program.call("send", producer=producer, topic=topic, body=body, **arguments)

    def simple(self, group: str, topic: str, await_s: int = 5, **subscription: str) -> str:
        """Start a simple consumer."""
        name = f"simple{next(_numbers)}"
        self.program.call("start_simple", name=name, group=group, topic=topic, await_s=await_s, **subscription)
        if IS_APACHE and self.language == "python":
            # The client does not wait for its settings, without which Apache's proxy fails.
            time.sleep(1)
        return name

    def receive(self, consumer: str, count: int = 1, timeout_s: float = 30, invisible_s: int = HELD_S) -> list[Json]:
        """Receive until there are `count` messages."""
        received: list[Json] = []
        deadline_s = time.monotonic() + timeout_s
        while len(received) < count:
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"{self.language} received {len(received)} of {count} messages in {timeout_s:g} s"
            received += self.receive_once(consumer, count - len(received), invisible_s)
        return received

    def receive_once(self, consumer: str, count: int = 16, invisible_s: int = HELD_S) -> list[Json]:
        messages: list[Json] = self.program.call("receive", consumer=consumer, count=count, invisible_s=invisible_s)[
            "messages"
        ]
        return messages

    def ack(self, consumer: str, *messages: Json) -> None:
        for message in messages:
            self.program.call("ack", consumer=consumer, view=message["view"])

    def change(self, consumer: str, message: Json, invisible_s: int) -> None:
        self.program.call("change", consumer=consumer, view=message["view"], invisible_s=invisible_s)

    def push(self, group: str, topic: str, **arguments: Any) -> str:
        """Start a push consumer, whose messages are events of the program."""
        name = f"push{next(_numbers)}"
        self.program.call("start_push", name=name, group=group, topic=topic, **arguments)
        return name

    def pushed(self, consumer: str, count: int, timeout_s: float = 30) -> list[Json]:
        return self.program.messages(consumer, count, timeout_s)

    def stop(self, name: str) -> None:
        self.program.call("stop", name=name)
