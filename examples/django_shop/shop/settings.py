"""Settings of the example, for one machine. A real project has its own secret key, hosts and database."""

import os
from pathlib import Path

SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY", "only-for-this-example")
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": Path.cwd() / "shop.sqlite",
        # Requests and workers write at the same time: wait for one another from the first statement on.
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
    }
}

LATERMQ_NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
PAYMENT_TIME = os.environ.get("PAYMENT_TIME", "15m")
