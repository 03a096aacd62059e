"""The steps with Spark: the campaign, its way through the Delta table, SQL over pending timers, and the report."""

import asyncio
import datetime
import json
import time
from dataclasses import dataclass
from pathlib import Path

from latermq.cli.demo import campaign
from latermq.cli.demo.checks import check
from latermq.cli.demo.commands import latermq, latermq_rows, running
from latermq.cli.demo.scale import Scale
from latermq.cli.demo.shop import now_ms

CANCELLED_REGION = 3
_POLL_S = 0.5


@dataclass
class Campaign:
    """What was scheduled, and what must be delivered."""

    scale: Scale
    first_due_ms: int = 0
    scheduled: int = 0
    sent: int = 0
    cancelled: int = 0

    @property
    def last_due_ms(self) -> int:
        return self.first_due_ms + self.scale.campaign_spread_ms

    @property
    def recalled(self) -> set[str]:
        """The keys of the region that is cancelled."""
        return {f"customer-{number}" for number in range(CANCELLED_REGION, self.scale.campaign, campaign.REGIONS)}

    @property
    def dues_ms(self) -> dict[str, int]:
        """The due time of each timer by its key."""
        rows, spread_ms = self.scale.campaign, self.scale.campaign_spread_ms
        return {f"customer-{number}": self.first_due_ms + number * spread_ms // rows for number in range(rows)}


async def wait_for_spark(namesrv: str, timeout_s: float) -> list[str]:
    """Wait until Spark runs and keeps up with new timers, so that the broker leaves far timers to it."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        [health] = await latermq_rows("pipeline", "status", "--namesrv", namesrv)
        [broker] = health["brokers"]
        is_running = health["driver"] and broker["epoch"] and health["tables"]
        if is_running and not broker["keeps_far_timers"]:
            return [f"it runs, and fills the Delta table in {health['timeline']}"]
        if time.monotonic() > deadline_s:
            check(is_running, f"Spark does not run after {timeout_s:.0f} s: {health['driver_absent']}")
            return [f"it runs, but lags by {broker['lag_ms'] / 1_000:.0f} s: this machine is very busy"]
        await asyncio.sleep(_POLL_S)


async def schedule(found: Campaign, namesrv: str) -> list[str]:
    """Run the program that schedules the DataFrame."""
    scale = found.scale
    numbers = (scale.campaign, scale.campaign_ahead_ms, scale.campaign_spread_ms)
    result = {}
    async with running("latermq.cli.demo.campaign", namesrv, *map(str, numbers)) as program:
        assert program.stdout is not None
        async for line in program.stdout:
            result = json.loads(line)
            found.sent = result.get("sent", found.sent)
    found.scheduled, found.first_due_ms = result["scheduled"], result["first_due_ms"]
    check(found.scheduled == scale.campaign, f"{found.scheduled} of {scale.campaign} rows were scheduled")
    ahead_s = (found.first_due_ms - now_ms()) / 1_000
    rate = found.scheduled / result["took_s"]
    took = f"{found.scheduled:,} timers in {result['took_s']:.1f} s ({rate:,.0f} per second)"
    return [f"{took}, the first due in {ahead_s:.0f} s"]


async def ask_sql(found: Campaign, namesrv: str) -> list[str]:
    """Count pending timers with SQL until the campaign is in the Delta table, which has no records of near timers."""
    query = "SELECT topic, count(*) AS timers, count(record) AS in_delta FROM pending GROUP BY topic ORDER BY topic"
    is_late = False
    in_delta = 0
    while not in_delta and not is_late:
        rows = await latermq_rows("pipeline", "sql", query, "--namesrv", namesrv)
        is_late = now_ms() > found.first_due_ms  # then some are delivered
        [of_campaign] = [row for row in rows if row["topic"] == campaign.TOPIC] or [{"timers": 0, "in_delta": 0}]
        in_delta = of_campaign["in_delta"]
        pending = of_campaign["timers"]
        check(pending == found.scheduled or is_late, f"{pending} of {found.scheduled} of the campaign are pending")
    lines = [f"{row['topic']}: {row['timers']:,} pending, {row['in_delta']:,} of them in Delta" for row in rows]
    if not in_delta:
        [health] = await latermq_rows("pipeline", "status", "--namesrv", namesrv)
        [broker] = health["brokers"]
        check(
            broker["keeps_far_timers"] or broker["lag_entries"] > 0, "no timer of the campaign came to the Delta table"
        )
        lines.append("Spark lags on this busy machine, so the broker keeps these timers itself")
    return [query, *lines]


async def cancel_region(found: Campaign, namesrv: str) -> list[str]:
    """Cancel the timers of one region with one SQL condition."""
    condition = f"topic = '{campaign.TOPIC}' AND tags = 'region-{CANCELLED_REGION}'"
    arguments = ("--where", condition, "--job", "recall-region", "--namesrv", namesrv)
    [done] = await latermq_rows("pipeline", "cancel", *arguments)
    found.cancelled = done.get("cancelled", 0)
    # A timer that is delivered before its turn is not in the plan, or is counted as delivered.
    is_late = now_ms() > found.first_due_ms
    expected = len(found.recalled)
    check(found.cancelled == expected or is_late, f"{found.cancelled} of {expected} timers were cancelled: {done}")
    return [f"latermq pipeline cancel --where {condition!r}", f"{found.cancelled:,} cancelled"]


async def windows_built(namesrv: str) -> str:
    """Who built the windows in which far timers came back, since the last start of the broker."""
    [health] = await latermq_rows("pipeline", "status", "--namesrv", namesrv)
    [broker] = health["brokers"]
    built = {"spark": "Spark", "driver": "the driver", "local": "the broker itself"}
    parts = [f"{count} by {built.get(who, who)}" for who, count in broker["built_by"].items() if count]
    return "windows since the restart: " + (", ".join(parts) or "none")


async def report(namesrv: str, from_ms: int, until_ms: int, out: Path) -> dict[str, int]:
    """Reconcile all timers of the demo with Spark, and write the page. The command fails if a timer is lost."""
    start, end = (
        datetime.datetime.fromtimestamp(at_ms / 1_000, datetime.UTC).isoformat(timespec="milliseconds")
        for at_ms in (from_ms, until_ms)
    )
    text = await latermq(
        "pipeline", "report", "--from", start, "--until", end, "--out", str(out), "--json", "--namesrv", namesrv
    )
    found: dict[str, int] = json.loads(text)
    return found
