"""Implements `latermq dlq resend`: sends dead letters to their original topics again."""

from collections import Counter
from typing import Any

from latermq.cli.commands.dead_letters import Selection, count_dead_letters, dead_letters
from latermq.cli.commands.message_reader import READER_GROUP
from latermq.cli.output import counted, print_json, print_line, print_note, progress
from latermq.cli.views.message_rows import body_text
from latermq.client import Admin, Message, Producer, PullConsumer
from latermq.client.dead_letters import as_sent, original_topic, reason_of, topic_of
from latermq.errors import LaterMQError, QueryNotFound, TopicNotFound


class Resender:
    """One run of `dlq resend`. It keeps the dead letters, so an interrupted run loses nothing."""

    def __init__(self, name: str, selection: Selection, *, topic: str | None, dry_run: bool, as_json: bool) -> None:
        self._name = name
        self._source = topic_of(name)
        self._selection = selection
        self._topic = topic
        self._dry_run = dry_run
        self._as_json = as_json
        self._sent: Counter[str] = Counter()
        self._last: Message | None = None
        self._known_topics: set[str] = set()

    async def run(self, namesrv: str) -> None:
        reader = PullConsumer(namesrv, group=READER_GROUP)
        async with Admin(namesrv) as admin, reader as consumer, Producer(namesrv) as producer:
            total = len(self._selection.ids) or await count_dead_letters(consumer, self._source)
            with progress(f"resending {self._source}", total, prints_rows=self._as_json) as advance:
                try:
                    async for message in dead_letters(admin, consumer, self._source, self._selection, advance):
                        await self._resend(admin, producer, message)
                        self._last = message
                except BaseException:
                    self._report_progress()
                    raise
        if not self._sent:
            hint = f"`latermq dlq list {self._name}` lists its dead letters"
            raise QueryNotFound(f"{self._name} has no matching dead letters", hint=hint)
        if not self._as_json:
            done = "would be resent" if self._dry_run else "resent"
            for topic, count in sorted(self._sent.items()):
                print_line(f"{counted(count, 'message')} {done} to {topic}")

    async def _resend(self, admin: Admin, producer: Producer, message: Message) -> None:
        topic = self._topic or original_topic(message)
        await self._check_topic(admin, topic, message)
        row: dict[str, Any] = {"dead_letter_id": message.message_id, "topic": topic}
        if self._dry_run:
            row |= {"status": "DRY_RUN", "reason": reason_of(message), "body": body_text(message.body)}
        else:
            result = await producer.send(as_sent(message, topic))
            row |= {
                "status": result.status,
                "message_id": result.message_id,
                "offset_message_id": result.offset_message_id,
            }
        self._sent[topic] += 1
        if self._as_json:
            print_json(row)

    async def _check_topic(self, admin: Admin, topic: str, message: Message) -> None:
        """Refuse a topic that does not exist: the send would auto-create it, and no group would consume it."""
        if topic in self._known_topics:
            return
        hint = "Create the topic, or choose another one with --topic"
        if not topic:
            raise LaterMQError(f"message {message.message_id} has no record of its original topic", hint=hint)
        try:
            await admin.route(topic)
        except TopicNotFound:
            raise TopicNotFound(f"topic {topic} of message {message.message_id} does not exist", hint=hint) from None
        self._known_topics.add(topic)

    def _report_progress(self) -> None:
        if self._dry_run or self._selection.ids:
            return
        sent = counted(self._sent.total(), "message")
        print_note(f"stopped after {sent}; all dead letters are still in {self._source}")
        if self._last is not None:
            print_note(f"to continue, add --after {self._last.message_id}")
