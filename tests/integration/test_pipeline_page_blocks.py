"""The code of docs/pipeline.md in a fresh process, as it stands there: only addresses and folders are others."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from latermq.client import OutgoingMessage, blocking
from tests.interop.waiting import wait_until
from tests.support.needs import need_tool
from tests.support.serving import serving

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pipeline.md"
# What a reader has before the blocks, and what ends them. A stream runs until it is stopped.
SQL = """
import re
orders.sparkSession.createDataFrame([("o1", "2035-01-01")], "order_id string, pay_by string").selectExpr(
    "order_id", "timestamp(pay_by) AS pay_by").createOrReplaceTempView("unpaid")
for statement in {statements!r}:
    spark.sql(statement)
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def program() -> str:
    pieces = []
    for block in blocks("python"):
        # These need a driver; test_pipeline_connect.py runs their calls.
        if "latermq.pipeline.connect(" in block or ".remote(" in block:
            continue
        pieces.append(block)
        if "getOrCreate()" in block and len(pieces) == 1:
            pieces.append(f"print('table', orders.count())\n{sql_program()}")
        if "writeStream" in block:
            pieces.append("query.processAllAvailable()\nquery.stop()\nprint('stream done')\n")
        if "latermq.pipeline.schedule" in block:
            pieces.append("print('scheduled', done.scheduled, 'known', done.known)\n")
    return "\n".join(pieces)


def sql_program() -> str:
    statements = [one.strip() for block in blocks("sql") for one in block.split(";") if one.strip()]
    # The views of the first block have the names of the tables of the second.
    dropped = [*statements[:4], "DROP VIEW reminders", *statements[4:]]
    return SQL.format(statements=dropped)


@pytest.mark.timeout(900)
def test_the_blocks_of_the_page_run_in_a_fresh_process(tmp_path: Path) -> None:
    need_tool("java", "Spark requires it")
    data = tmp_path / "data"
    with serving(data) as server:
        with blocking.Admin(server.namesrv) as admin:
            wait_until(admin.brokers, 30, "the broker is registered")
        with blocking.Producer(server.namesrv) as producer:
            producer.send(OutgoingMessage("orders", b"apple", "fruit", "o1"))
        pay_by = pa.array([1_900_000_000_000, 1_900_000_060_000]).cast(pa.timestamp("ms", "UTC"))
        pq.write_table(pa.table({"order_id": ["o1", "o2"], "pay_by": pay_by}), tmp_path / "orders.parquet")
        (tmp_path / "orders").mkdir()
        line = {"order_id": "o3", "pay_by": "2030-01-01T00:00:00Z"}
        (tmp_path / "orders" / "0.json").write_text(json.dumps(line))
        text = (
            program().replace("127.0.0.1:9876", server.namesrv).replace("/var/lib/latermq/pipeline", f"{data}/pipeline")
        )
        text = text.replace('"/data/', f'"{tmp_path}/')
        environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
        environment |= {"NAMESRV_ADDR": server.namesrv, "PATH": "/usr/local/bin:/usr/bin:/bin"}
        done = subprocess.run(
            [sys.executable, "-c", text], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=800,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4_000:]
        assert "table 1" in done.stdout
        assert "scheduled 0 known 2" in done.stdout  # the block before has scheduled them under the same job
        assert "stream done" in done.stdout
        with blocking.Admin(server.namesrv) as admin:
            assert admin.count_timers("orders") == 2
            assert admin.count_timers("reminders") == 2
        assert time.time() * 1000 < 1_900_000_000_000
