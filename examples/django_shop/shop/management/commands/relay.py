"""`manage.py relay`: schedules what a crash left in the outbox."""

from django.core.management.base import BaseCommand

from shop.timers import relay


class Command(BaseCommand):
    help = "Schedule what a crash left in the outbox."

    def handle(self, **options: object) -> None:
        self.stdout.write(f"{relay()} scheduled")
