"""The last steps: a clean stop, a lost index, and a start that rebuilds it."""

import shutil
from pathlib import Path

from latermq.cli.demo.checks import check
from latermq.cli.demo.server import Server
from latermq.cli.demo.shop import ORDERS
from latermq.cli.doctor.store_checks import check_store
from latermq.client import Admin
from latermq.config import load_config


def lose_index(data: Path) -> list[str]:
    """Remove the key index, and check that the doctor reports it."""
    shutil.rmtree(data / "index")
    problems = [problem.details for problem in check_store(data, load_config()) if problem.status != "ok"]
    check(any("index" in problem for problem in problems), f"doctor reported {problems}")
    return [f"doctor: {problems[-1]}"]


async def find_order(server: Server) -> list[str]:
    """Find an order by its key."""
    async with Admin(server.namesrv) as admin:
        found = await admin.query_by_key(ORDERS, "order-7")
    check(bool(found), "there is no message with key order-7")
    return [f"order-7: {found[0].body.decode()} in queue {found[0].queue_id}"]
