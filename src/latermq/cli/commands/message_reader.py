"""Reads stored messages for commands, without joining a group or committing offsets."""

from collections.abc import AsyncIterator

from latermq.cli.output import print_note
from latermq.client import Message, MessageQueue, PullConsumer, UnreadableBody

READER_GROUP = "TOOLS_CONSUMER"  # a pull must name a group; this one exists on every broker
_PULL_MESSAGES = 256


async def stored_messages(consumer: PullConsumer, queue: MessageQueue, from_ms: int | None) -> AsyncIterator[Message]:
    """The messages of a queue that were stored at or after a time, up to the queue's current end."""
    end = await consumer.max_offset(queue)
    offset = await (consumer.min_offset(queue) if from_ms is None else consumer.search_offset(queue, from_ms))
    while offset < end:
        try:
            result = await consumer.pull(queue, offset, _PULL_MESSAGES)
        except UnreadableBody as error:
            note_skipped(error)
            offset = error.offset + 1
            continue
        for message in result.messages:
            if message.queue_offset < end:
                yield message
        if result.next_offset <= offset:
            return
        offset = result.next_offset


def note_skipped(error: UnreadableBody) -> None:
    """Report a message whose body cannot be decompressed."""
    print_note(f"skipped: {error.remark}")
