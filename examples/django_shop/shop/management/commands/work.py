"""`manage.py work`: closes orders whose time is up, until Ctrl-C or SIGTERM."""

from django.core.management.base import BaseCommand

from shop.timers import app


class Command(BaseCommand):
    help = "Close orders whose time is up, until Ctrl-C or SIGTERM."

    def handle(self, **options: object) -> None:
        app.run()
