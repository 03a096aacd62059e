"""Reads stored messages for commands, without joining a group or committing offsets."""

from collections.abc import AsyncIterator

from latermq.cli.output import print_note
from latermq.client import Admin, Message, MessageQueue, PullConsumer, UnreadableBody
from latermq.errors import QueryNotFound
from latermq.message.ids import parse_offset_message_id

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


async def find_by_offset_id(admin: Admin, message_id: str) -> Message:
    """The message with this offset message id. Raise QueryNotFound if no broker of the cluster has it."""
    # The id contains an address, which may be of any machine. Connect to it only if it is a broker's. An ordinary
    # message id has the same form, with an address that means nothing.
    addresses = {address for broker in await admin.brokers() for address in broker.brokerAddrs.values()}
    try:
        ip, port, _ = parse_offset_message_id(message_id)
    except QueryNotFound:
        ip, port = "", 0
    if (f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}") not in addresses:
        raise QueryNotFound(
            f"{message_id} is not an offset message id of this cluster", hint="For a message id, add --topic TOPIC"
        )
    return await admin.view_message(message_id)
