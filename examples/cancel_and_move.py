"""Change your mind about a timer: postpone it, look at it, cancel it."""

import asyncio
import os

from latermq import Admin, OutgoingMessage, Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
MINUTE_MS = 60_000


async def main() -> None:
    async with Producer(NAMESRV, group="shop") as producer, Admin(NAMESRV) as admin:
        unpaid = OutgoingMessage("cancellations", b"cancel the order", keys=["order-4712"], delay_ms=15 * MINUTE_MS)
        sent = await producer.send(unpaid)

        # The customer asks for more time. A timer is named by the handle of its send, its unique key or a message key.
        (moved,) = await admin.move_timer("cancellations", handle=sent.recall_handle, delay_ms=30 * MINUTE_MS)
        print("move:", moved.verdict)
        print("status:", (await admin.timer_status("cancellations", unique_key=sent.message_id)).verdict)

        # The customer pays. A second cancel gets the same answer, so repeating it is safe.
        for _ in range(2):
            (cancelled,) = await admin.cancel_timer("cancellations", unique_key=sent.message_id)
            print("cancel:", cancelled.verdict)


asyncio.run(main())
