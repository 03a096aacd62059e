"""Tasks of Celery for later: kept by LaterMQ, and handed over to Celery when their time has come.

later.py remind ORDER DELAY      schedules a task: 10s, 3h, 30d
later.py cancel HANDLE           and forgets it again
later.py bridge                  hands tasks over to Celery, until Ctrl-C or SIGTERM
"""

import json
import os
import sys

import tasks
from celery import Task

from latermq import App, Message
from latermq.client.blocking import Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "celery-tasks"

bridge = App(NAMESRV)


def apply_later(task: Task, *args: object, delay: str, key: str = "", idempotency_key: str = "") -> str:
    """Like `task.apply_async(args, countdown=…)`. Return a handle with which the task can be cancelled or moved."""
    body = json.dumps({"task": task.name, "args": args}).encode()
    with Producer(NAMESRV, group="shop") as producer:
        return str(producer.schedule(TOPIC, body, delay=delay, key=key, idempotency_key=idempotency_key))


@bridge.consumer(TOPIC, group="celery-bridge", concurrency=4)
def hand_over(message: Message) -> None:
    """Celery has the task when this returns. If Celery's broker is away, it is tried again later."""
    wanted = json.loads(message.body)
    tasks.app.send_task(wanted["task"], wanted["args"], task_id=message.properties["UNIQ_KEY"], retry=False)
    print("handed over", wanted["task"], *wanted["args"], flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["remind", order, delay]:
            print(apply_later(tasks.remind, order, delay=delay, key=order))
        case ["cancel", handle]:
            with Producer(NAMESRV, group="shop") as producer:
                print(producer.timer(handle).cancel().verdict)
        case ["bridge"]:
            bridge.run()
        case _:
            sys.exit(__doc__)
