"""Let a handler fail: the broker redelivers the message with delays, and gives up after the group's retries."""

import asyncio
import os

from latermq import Admin, Message, OutgoingMessage, Producer, PullConsumer, PushConsumer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
GROUP = "couriers"


async def main() -> None:
    given_up = asyncio.Event()

    async def handle(message: Message) -> None:
        print("attempt", message.reconsume_times + 1, flush=True)
        if message.reconsume_times == 2:
            given_up.set()
        raise RuntimeError("the address does not exist")

    async with Admin(NAMESRV) as admin, Producer(NAMESRV, group="shop") as producer:
        await admin.create_topic("parcels", queues=1)
        # Two retries, after 500 ms and 1 s. The default is 16 retries, from 10 s to 2 h.
        await admin.create_group(GROUP, retry_max_times=2, retry_levels=["500ms", "1s"])
        await producer.send(OutgoingMessage("parcels", b"to nowhere", keys=["parcel-1"]))
    async with PushConsumer(NAMESRV, GROUP, handle, consume_from="first") as consumer:
        await consumer.subscribe("parcels")
        await given_up.wait()

    async with PullConsumer(NAMESRV, group="support") as reader:
        (queue,) = await reader.queues(f"%DLQ%{GROUP}")
        result = await reader.pull(queue, await reader.min_offset(queue), wait_s=10)
        for letter in result.messages:
            print("dead letter:", letter.properties["KEYS"], letter.body.decode())


asyncio.run(main())
