"""Takes the picture of the console in the README: `python -m tests.browser.readme_picture`.

A server with its pipeline gets timers as a shop has them, and orders keep coming while the picture is taken.
"""

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from latermq import App, Message, OutgoingMessage, Producer
from tests.interop.waiting import wait_until
from tests.support.browser import running_browser
from tests.support.serving import serving

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "console.png"
MAX_BYTES = 200_000
SIZE = {"width": 1280, "height": 800}
TRAFFIC_S = 240.0
ORDERS_PER_S = 150
SETTINGS = ("--set", "pipeline.ingest_every=2s", "--set", "pipeline.connect_port=0")
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000

# What a shop schedules: topic, how many, and how far ahead.
PLANS: list[tuple[str, int, Callable[[], float]]] = [
    ("payment-timeouts", 9_000, lambda: random.uniform(MINUTE_MS, 30 * MINUTE_MS)),
    ("delivery-slots", 14_000, lambda: random.lognormvariate(1.2, 0.6) * HOUR_MS),
    ("reminders", 40_000, lambda: random.lognormvariate(1.6, 0.8) * DAY_MS),
    ("renewals", 30_000, lambda: random.lognormvariate(4.6, 0.7) * DAY_MS),
    ("warranties", 6_000, lambda: random.uniform(1.8, 5) * 365 * DAY_MS),
]


def timers(share: int) -> Iterator[OutgoingMessage]:
    """One of so many timers of the plans."""
    for topic, count, ahead_ms in PLANS:
        for number in range(0, count, share):
            ahead = min(int(ahead_ms()), 3_600 * DAY_MS)
            yield OutgoingMessage(
                topic, b'{"order": %d}' % number, keys=[f"order-{number}"], delay_ms=max(1_000, ahead)
            )


async def fill(namesrv: str, share: int) -> None:
    async with Producer(namesrv, retries=5, send_timeout_s=30) as producer:
        sent = []
        for message in timers(share):
            if producer.is_full:
                await producer.ready()
            sent.append(producer.submit(message))
        await asyncio.gather(*sent)


async def traffic(namesrv: str) -> None:
    """Orders whose payments are checked some seconds later, by a consumer."""
    app = App(namesrv)

    @app.consumer("payment-checks", group="cashier")
    async def check(message: Message) -> None:
        pass

    until = time.monotonic() + TRAFFIC_S
    async with app, Producer(namesrv, retries=5, send_timeout_s=30) as producer:
        number = 0
        while time.monotonic() < until:
            for _ in range(ORDERS_PER_S // 10):
                number += 1
                if producer.is_full:
                    await producer.ready()
                producer.submit(OutgoingMessage("orders", b"placed", keys=[f"order-{number}"]))
                ahead_ms = random.choice((2_000, 5_000, random.randint(1_000, 50_000)))
                producer.submit(
                    OutgoingMessage("payment-checks", b"paid?", keys=[f"order-{number}"], delay_ms=ahead_ms)
                )
            await asyncio.sleep(0.1)


def wait_for_spark(address: str) -> None:
    """Until the driver ingests: what is far before that stays with the broker."""

    def ingests() -> object:
        with urllib.request.urlopen(f"http://{address}/api/v1/pipeline", timeout=10) as response:
            (broker,) = json.load(response)["brokers"]
        return broker.get("epoch", 0) > 0 and not broker.get("lag_entries") and not broker.get("keeps_far_timers")

    wait_until(ingests, 900, "ingest")


def take(address: str) -> None:
    PICTURE.parent.mkdir(exist_ok=True)
    with running_browser() as browser:
        page = browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
        page.goto(f"http://{address}/")
        page.wait_for_timeout(8_000)
        page.screenshot(path=PICTURE)
        browser.close()


def main() -> None:
    random.seed(4711)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder) / "data", *SETTINGS, pipeline=True, http=True, timeout_s=300) as server,
    ):
        asyncio.run(fill(server.namesrv, 1_000))
        wait_for_spark(server.http)
        asyncio.run(fill(server.namesrv, 1))  # the first ones again, which nobody notices
        background = subprocess.Popen(
            [sys.executable, "-c", f"import asyncio; from {__spec__.name} import traffic; "
             f"asyncio.run(traffic({server.namesrv!r}))"]
        )  # fmt: skip
        try:
            time.sleep(TRAFFIC_S - 20)
            take(server.http)
        finally:
            background.terminate()
            background.wait()
    size = PICTURE.stat().st_size
    print(f"{PICTURE}: {size:,} bytes{'' if size < MAX_BYTES else ', which is too large'}")


if __name__ == "__main__":
    main()
