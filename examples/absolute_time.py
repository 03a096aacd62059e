"""Send a message for a moment on the calendar: tomorrow at nine, local time."""

import os
from datetime import datetime, timedelta

from latermq import OutgoingMessage
from latermq.client.blocking import Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


def tomorrow_at_nine() -> datetime:
    return (datetime.now().astimezone() + timedelta(days=1)).replace(hour=9, minute=0, second=0, microsecond=0)


with Producer(NAMESRV, group="shop") as producer:
    due = tomorrow_at_nine()
    greeting = OutgoingMessage("greetings", b"good morning", deliver_at_ms=int(due.timestamp() * 1000))
    result = producer.send(greeting)
    print(f"{result.message_id} is due at {due.isoformat()}")
