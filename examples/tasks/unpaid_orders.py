"""Close orders that are not paid in time, as a web shop would with Django or Celery: database, outbox and worker.

    unpaid_orders.py place ORDER     a web request: stores the order, and in the same transaction its row of the outbox
    unpaid_orders.py relay           schedules what the outbox holds; a cron job, or after each commit
    unpaid_orders.py pay ORDER       a web request: the order is paid, and its timer is not needed any more
    unpaid_orders.py work            the worker, until Ctrl-C or SIGTERM

A crash between any two steps loses no timer and closes no order twice: the outbox keeps a row until the broker has its
timer, its key makes the broker schedule it once, and the worker changes an order only if it is still unpaid.
"""

import contextlib
import os
import sqlite3
import sys
import uuid
from collections.abc import Iterator

from latermq import App, Message
from latermq.client.blocking import Producer

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
PAYMENT_TIME = os.environ.get("PAYMENT_TIME", "15m")
TOPIC = "unpaid-orders"

app = App(NAMESRV)


@contextlib.contextmanager
def database() -> Iterator[sqlite3.Connection]:
    """A transaction: committed at the end of the block, rolled back if it raises."""
    with contextlib.closing(sqlite3.connect(os.environ.get("SHOP_DATABASE", "shop.sqlite"), timeout=10)) as connection:
        connection.executescript(
            """
            CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT NOT NULL, timer TEXT);
            CREATE TABLE IF NOT EXISTS outbox (key TEXT PRIMARY KEY, order_id TEXT NOT NULL);
            """
        )
        with connection:
            yield connection


def place(order: str) -> None:
    with database() as shop:  # both rows, or none
        shop.execute("INSERT INTO orders (id, state) VALUES (?, 'placed')", (order,))
        shop.execute("INSERT INTO outbox VALUES (?, ?)", (str(uuid.uuid4()), order))
    print("placed", order)


def relay() -> None:
    with database() as shop, Producer(NAMESRV, group="shop") as producer:
        for key, order in shop.execute("SELECT key, order_id FROM outbox ORDER BY rowid").fetchall():
            timer = producer.schedule(TOPIC, order.encode(), delay=PAYMENT_TIME, key=order, idempotency_key=key)
            shop.execute("UPDATE orders SET timer = ? WHERE id = ?", (str(timer), order))
            shop.execute("DELETE FROM outbox WHERE key = ?", (key,))
            shop.commit()
            print("scheduled", order)


def pay(order: str) -> None:
    with database() as shop:
        paid = shop.execute("UPDATE orders SET state = 'paid' WHERE id = ? AND state = 'placed'", (order,)).rowcount
        (handle,) = shop.execute("SELECT timer FROM orders WHERE id = ?", (order,)).fetchone() or (None,)
    print("paid" if paid else "cannot be paid:", order)
    if paid and handle:  # without this, the worker would find the order paid
        with Producer(NAMESRV, group="shop") as producer:
            print("timer", producer.timer(handle).cancel().verdict)


@app.consumer(TOPIC, group="shop-closer", retries=5, concurrency=4)
def close_unpaid(message: Message) -> None:
    order = message.body.decode()
    with database() as shop:
        closed = shop.execute("UPDATE orders SET state = 'closed' WHERE id = ? AND state = 'placed'", (order,)).rowcount
    print("closed" if closed else "left as it is:", order, flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["place", order]:
            place(order)
        case ["relay"]:
            relay()
        case ["pay", order]:
            pay(order)
        case ["work"]:
            app.run()
        case _:
            sys.exit(__doc__)
