"""The tables of orders and of the outbox."""

import uuid

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.CharField(max_length=40, unique=True)),
                (
                    "state",
                    models.CharField(
                        choices=[("placed", "Placed"), ("paid", "Paid"), ("closed", "Closed")],
                        default="placed",
                        max_length=10,
                    ),
                ),
                ("timer", models.TextField(default="")),
            ],
        ),
        migrations.CreateModel(
            name="Outbox",
            fields=[
                ("key", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ("order", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="shop.order")),
            ],
        ),
    ]
