"""The steps of the demo, in their order."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

from latermq.cli.demo import campaign, clicks, far_timers, grpc_step
from latermq.cli.demo.attacks import send_malicious_requests
from latermq.cli.demo.checks import check
from latermq.cli.demo.clicks import ClickStream
from latermq.cli.demo.deliveries import Figures, Outage, Promise, compare
from latermq.cli.demo.far_timers import Campaign
from latermq.cli.demo.order_closer import (
    GROUP,
    OrderCloser,
    create_group,
    resend_dead_letter,
)
from latermq.cli.demo.polling import until
from latermq.cli.demo.progress import Progress
from latermq.cli.demo.restart import find_order, lose_index
from latermq.cli.demo.scale import Scale
from latermq.cli.demo.server import Server
from latermq.cli.demo.shop import ORDERS, TIMEOUTS, Shop, now_ms
from latermq.client import Admin, Producer

SEED = 20_27  # the same fates of orders in each run
# A producer gives up a send after this. Only a dead broker leaves a send unanswered, and that ends it at once.
SEND_TIMEOUT_S = 60.0
AFTER_KILL_S = 3.0  # orders continue for as long after the broker is back
MID_CAMPAIGN_MS = 5_000  # after the first timer of the campaign the broker is killed


class Story:
    """One run. `tell` plays all steps against a server, and `figures` has what was measured."""

    def __init__(self, server: Server, progress: Progress, scale: Scale, report_folder: Path) -> None:
        self._server = server
        self._progress = progress
        self._scale = scale
        self._report_folder = report_folder
        self._began_ms = now_ms()
        self._campaign = Campaign(scale)
        self.figures: list[Figures] = []
        self.report_page = ""

    async def tell(self) -> None:
        """The steps between the start and the stop of the server."""
        namesrv = self._server.namesrv
        async with AsyncExitStack() as stack:
            admin = await stack.enter_async_context(Admin(namesrv))
            # Timers are looked up before they are sent again; other messages are simply sent again.
            timers = await stack.enter_async_context(Producer(namesrv, retries=0, send_timeout_s=SEND_TIMEOUT_S))
            messages = await stack.enter_async_context(Producer(namesrv))
            step = self._progress.step
            async with step("create topics and the group of the consumer") as findings:
                for topic in (ORDERS, TIMEOUTS, clicks.TOPIC, campaign.TOPIC):
                    await admin.create_topic(topic, queues=4)
                await admin.create_topic(grpc_step.TOPIC, queues=1)
                await create_group(admin)
                findings.append(f"5 topics, and {GROUP} with two retries")
            shop = Shop(timers, admin, self._scale, Random(SEED))
            closer = OrderCloser(lambda: shop.broken_key)
            consumer = await stack.enter_async_context(closer.consumer(namesrv))
            await consumer.subscribe(TIMEOUTS)
            selling = asyncio.create_task(shop.run())
            stack.callback(selling.cancel)
            await self._play(shop, closer, selling, messages)

    async def _play(self, shop: Shop, closer: OrderCloser, selling: "asyncio.Task[None]", messages: Producer) -> None:
        namesrv = self._server.namesrv
        step = self._progress.step

        def state() -> str:
            return f"{shop.state()}, {len(closer.closed)} closed"

        async with step("open the shop: an order sets a timer, a payment cancels it", state) as findings:

            async def is_busy() -> bool:
                if selling.done():
                    selling.result()
                return shop.counts["cancelled"] >= 3 and len(shop.orders) > 20

            await until(is_busy)
            findings.append(f"{state()}; the shop stays open")
        async with step("find an order by its key") as findings:
            findings += await find_order(self._server)
        async with step("schedule and receive by gRPC, and kill -9 the proxy before the acknowledgement") as findings:
            findings += await grpc_step.try_proxy(self._server)
        async with step("send malicious requests, to delete the log and to break the next start") as findings:
            findings += await send_malicious_requests(self._server.broker)
        async with step("an order that cannot be closed: retries, dead letter, resend", state) as findings:
            findings += await resend_dead_letter(closer, namesrv)
        if self._server.has_pipeline:
            await self._start_campaign(state)
        outage = await self._kill(messages, state)
        async with step("close the shop, and wait for every timer", state) as findings:
            await asyncio.sleep(AFTER_KILL_S)
            shop.close()
            await selling
            await until(self._is_delivered)
            expected = set(shop.expected)
            await closer.wait_for(expected)
            wrongly = len(closer.closed - expected)
            check(not wrongly, f"{wrongly} orders were closed although their timers were cancelled")
            findings.append(state())
        await self._measure(shop, outage)
        if self._server.has_pipeline:
            await self._reconcile()

    async def _start_campaign(self, state: Callable[[], str]) -> None:
        namesrv, found = self._server.namesrv, self._campaign
        step = self._progress.step
        async with step("wait for Spark", state) as findings:
            findings += await far_timers.wait_for_spark(namesrv, self._scale.spark_timeout_s)

        def progress() -> str:
            return f"{found.sent:,} of {self._scale.campaign:,} rows; {state()}"

        async with step(f"schedule {self._scale.campaign:,} timers from a DataFrame", progress) as findings:
            findings += await far_timers.schedule(found, namesrv)
        async with step("SQL over all pending timers, near and far", state) as findings:
            findings += await far_timers.ask_sql(found, namesrv)
        async with step("cancel one region of the campaign with one condition", state) as findings:
            findings += await far_timers.cancel_region(found, namesrv)
        async with step("wait until windows bring the campaign back to the broker", state) as findings:
            await asyncio.sleep(max(0, found.first_due_ms + MID_CAMPAIGN_MS - now_ms()) / 1_000)
            findings.append(f"{now_ms() - found.first_due_ms:,} ms after its first timer was due")

    async def _kill(self, messages: Producer, state: Callable[[], str]) -> Outage:
        stream = ClickStream(self._server, messages, self._scale)

        def progress() -> str:
            return f"{stream.state()}; {state()}"

        async with self._progress.step("kill -9 the broker in the middle of all this", progress) as findings:
            outage, seen = await stream.run()
            findings += seen
        async with self._progress.step("look up every acknowledged message") as findings:
            findings += await clicks.find_all(self._server.namesrv, self._scale.clicks)
        return outage

    async def _is_delivered(self) -> bool:
        async with Admin(self._server.namesrv) as admin:
            return not sum([await admin.count_timers(topic) for topic in (TIMEOUTS, campaign.TOPIC)])

    async def _measure(self, shop: Shop, outage: Outage) -> None:
        namesrv, counts = self._server.namesrv, shop.counts
        async with self._progress.step("compare every delivery with what was promised") as findings:
            delayed = Figures("of these, due while the broker was dead")
            promise = Promise(TIMEOUTS, shop.expected)
            orders = await compare(namesrv, "unpaid orders", promise, outage, delayed)
            orders.scheduled, orders.cancelled, orders.moved = len(shop.orders), counts["cancelled"], counts["moved"]
            check(
                orders.scheduled == orders.cancelled + orders.delivered,
                f"{orders.scheduled} scheduled, but {orders.cancelled} cancelled and {orders.delivered} delivered",
            )
            self.figures = [orders]
            if self._server.has_pipeline:
                found = self._campaign
                promise = Promise(campaign.TOPIC, found.dues_ms, found.recalled, found.cancelled)
                far = await compare(namesrv, "campaign, by Spark", promise, outage, delayed)
                far.scheduled, far.cancelled, far.moved = found.scheduled, found.cancelled, 0
                self.figures.append(far)
                findings.append(await far_timers.windows_built(namesrv))
            self.figures.append(delayed)
            delivered = sum(figures.delivered for figures in self.figures[:-1])
            findings.append(f"{delivered:,} delivered once each, none early, no cancelled ones")

    async def _reconcile(self) -> None:
        async with self._progress.step(
            "reconcile the log and the Delta table with Spark, and write a report"
        ) as findings:
            # The pipeline reads only what is flushed, and its period must be in the past.
            until_ms = now_ms() - 1_000
            found = await far_timers.report(self._server.namesrv, self._began_ms, until_ms, self._report_folder)
            faults = {name: found[name] for name in ("missing", "early", "delivered_twice", "dead_letter")}
            check(not any(faults.values()), f"the report found {faults}")
            self.report_page = str(found["page"])
            findings.append(
                f"{found['scheduled']:,} entries: {found['delivered']:,} delivered, {found['cancelled']:,} cancelled, "
                f"{found['moved']:,} moved, 0 missing, early or doubled"
            )


async def stop_and_restart(server: Server, successor: Server, data: Path, progress: Progress) -> None:
    """Stop the server cleanly, lose an index, and start again with what is left."""
    async with progress.step("stop the server with SIGTERM") as findings:
        code = await server.stop()
        check(code == 0, f"serve exited with {code}")
        findings.append("exit code 0, flushed and checkpointed")
    async with progress.step("delete the key index, run doctor, start again") as findings:
        findings += await asyncio.to_thread(lose_index, data)
        await successor.start()
        findings += await find_order(successor)
        findings.append("rebuilt from the log at the start; order-7 is found")
