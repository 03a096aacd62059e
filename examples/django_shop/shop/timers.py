"""The timers of the shop: scheduled from the outbox, cancelled on payment, and what happens when one fires."""

from django.conf import settings
from django.db import close_old_connections, transaction

from latermq import App, Message
from latermq.client.blocking import Producer
from shop.models import Order, Outbox

TOPIC = "unpaid-orders"

app = App(settings.LATERMQ_NAMESRV)


def close_unless_paid(order: Order) -> None:
    """Call it in the transaction that stores the order. If that is rolled back, there is no timer either."""
    Outbox.objects.create(order=order)
    # If this fails, the order is placed nevertheless, and its row waits for `manage.py relay`.
    transaction.on_commit(relay, robust=True)


def relay() -> int:
    """Schedule what the outbox holds. A row stays until the broker has its timer."""
    count = 0
    with Producer(settings.LATERMQ_NAMESRV, group="shop") as producer:
        for row in Outbox.objects.select_related("order"):
            body, number = row.order.number.encode(), row.order.number
            timer = producer.schedule(
                TOPIC, body, delay=settings.PAYMENT_TIME, key=number, idempotency_key=str(row.key)
            )
            with transaction.atomic():
                Order.objects.filter(pk=row.order.pk).update(timer=str(timer))
                row.delete()
            count += 1
    return count


def cancel(order: Order) -> None:
    """The order needs no timer any more. Without this, the worker would find it paid."""
    with Producer(settings.LATERMQ_NAMESRV, group="shop") as producer:
        producer.timer(order.timer).cancel()


@app.consumer(TOPIC, group="shop-closer", retries=5, concurrency=4)
def close_unpaid(message: Message) -> None:
    """The time is up. It may be called twice for an order, and after its payment: so it looks."""
    close_old_connections()  # as Django does for each request: this thread may have slept for days
    number = message.body.decode()
    closed = Order.objects.filter(number=number, state=Order.State.PLACED).update(state=Order.State.CLOSED)
    print("closed" if closed else "left as it is:", number, flush=True)
