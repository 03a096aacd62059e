"""Consume the topic `orders` as a member of a group until Ctrl-C.

Start it twice, and the two members share the queues. A crash can redeliver a message, so handlers are idempotent.
"""

import asyncio
import os
import signal

from latermq import Message, PushConsumer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def handle(message: Message) -> None:
    print(message.topic, message.properties.get("TAGS", "-"), message.body.decode(), flush=True)


async def main() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with PushConsumer(NAMESRV, "billing", handle, consume_from="first") as consumer:
        await consumer.subscribe("orders", "created || paid")
        print("consuming", flush=True)
        await stop.wait()


asyncio.run(main())
