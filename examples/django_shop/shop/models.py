"""Orders, and the outbox: timers that the broker does not have yet."""

import uuid

from django.db import models


class Order(models.Model):
    """An order. `timer` is the handle with which its timer can be cancelled."""

    class State(models.TextChoices):
        PLACED = "placed"
        PAID = "paid"
        CLOSED = "closed"

    number = models.CharField(max_length=40, unique=True)
    state = models.CharField(max_length=10, choices=State, default=State.PLACED)
    timer = models.TextField(default="")


class Outbox(models.Model):
    """A timer to be scheduled. The key makes the broker schedule it once, however often it is told to."""

    key = models.UUIDField(primary_key=True, default=uuid.uuid4)
    order = models.ForeignKey(Order, on_delete=models.CASCADE)
