"""A Celery application. Only the address of its queue is special: a folder, so that the example needs no server."""

from pathlib import Path

from celery import Celery, Task

QUEUE = Path("queue")
QUEUE.mkdir(exist_ok=True)

app = Celery("shop", broker="filesystem://")  # redis://… or amqp://… in production
app.conf.broker_transport_options = {
    "data_folder_in": str(QUEUE),
    "data_folder_out": str(QUEUE),
    "control_folder": str(QUEUE / "control"),
}


@app.task(name="shop.remind", bind=True)
def remind(self: Task, order: str) -> None:
    print(f"reminding the customer of order {order}, task {self.request.id}", flush=True)
