"""Keep the order of messages that belong together.

All messages of a shard go to one queue, and an orderly consumer handles a queue one message at a time.
"""

import asyncio
import os

from latermq import Admin, Message, OutgoingMessage, Producer, PushConsumer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
ORDERS = ("order-1", "order-2", "order-3")
STEPS = ("created", "paid", "shipped")


async def main() -> None:
    seen: dict[str, list[str]] = {order: [] for order in ORDERS}
    complete = asyncio.Event()

    async def handle(message: Message) -> None:
        seen[message.properties["KEYS"]].append(message.body.decode())
        if all(len(steps) == len(STEPS) for steps in seen.values()):
            complete.set()

    async with Admin(NAMESRV) as admin, Producer(NAMESRV, group="shop") as producer:
        await admin.create_topic("order-steps", queues=4)
        for step in STEPS:
            for order in ORDERS:
                await producer.send(OutgoingMessage("order-steps", step.encode(), keys=[order]), shard=order)
    async with PushConsumer(NAMESRV, "warehouse", handle, orderly=True, consume_from="first") as consumer:
        await consumer.subscribe("order-steps")
        await complete.wait()
    for order, steps in seen.items():
        print(order, *steps)


asyncio.run(main())
