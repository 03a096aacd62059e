"""Send a message that consumers see two seconds later."""

import os

from latermq import OutgoingMessage
from latermq.client.blocking import Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")

with Producer(NAMESRV, group="shop") as producer:
    reminder = OutgoingMessage("payment-checks", b"is it paid?", keys=["order-4711"], delay_ms=2_000)
    result = producer.send(reminder)
    print(f"{result.status}: {result.message_id} is due in 2 s")
