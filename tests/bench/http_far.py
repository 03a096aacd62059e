"""The console over a timeline of a given size: lists, counts and the forecast, each not asked for before.

Spark makes the rows of timeline_rows.py in the name of the broker's store, which does not know them: it confirms no
timer of these, and a list leaves them out. So what lists return is really scheduled: some timers before all of these
rows, some after them, and some in the middle, so close to one another that a page of them has few of these rows.
"""

import base64
import json
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.timeline.root import open_root
from tests.bench.contenders import LATERMQ
from tests.bench.load import Figures
from tests.bench.scenarios import Row
from tests.bench.sizes import Sizes
from tests.bench.timeline_rows import DAY_MS, SPREAD_MS, fill_compacted
from tests.support.http_console import HttpClient
from tests.support.pipeline.plain_ingest import FAR, begin, ingest
from tests.support.serving import Server, children_of, peak_resident_bytes, serving

ROUNDS = 9  # of which the median is reported
LIMIT = 50  # rows of a page
SCHEDULED = 2_000  # timers before the rows of Spark, and as many among them and after them
FIRST, MIDDLE, LAST = "orders", "campaign", "rare"  # their topics
START_S = 90.0
# What is slow is to be measured rather than ended.
_PATIENT = ("--set", "http.timeline_timeout=60s", "--set", "http.request_timeout=70s", "--set", "http.rate=0")


def run_http_far(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """The figures of one table after the other, each made and then removed."""
    for rows in sizes.timeline_rows:
        own = folder / str(rows)
        own.mkdir()
        bench = HttpFarBench(own, rows)
        bench.fill()
        yield Row(f"http-far {rows:,}", LATERMQ, 0, bench.measure())
        shutil.rmtree(own)


class HttpFarBench:
    """One server and its timeline."""

    def __init__(self, folder: Path, rows: int) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._timeline = self._data / "pipeline"
        self._rows = rows

    def fill(self) -> None:
        """Make the timeline."""
        with serving(self._data, *FAR, http=True, timeout_s=START_S) as server:
            begin(server, self._timeline)
            with BrokerLink(server.broker) as link:
                state = link.state()
            start_ms = (state.now_ms // DAY_MS + 3) * DAY_MS
            client = _client(server)
            _schedule(client, FIRST, state.now_ms + DAY_MS)
            # Not in the very middle, which is the large window.
            _schedule(client, MIDDLE, start_ms + SPREAD_MS * 3 // 8, step_ms=1)
            _schedule(client, LAST, start_ms + SPREAD_MS + 2 * DAY_MS)  # moves of Spark's rows are due a day later
            assert ingest(server, self._timeline / "timeline") == 3 * SCHEDULED
        root = open_root(str(self._timeline))
        fill_compacted(self._folder, root, self._rows, store_id=state.store_id, start_ms=start_ms)

    def measure(self) -> Figures:
        """Return the figures of one console. Its process that reads the timeline starts with the first request."""
        with serving(self._data, *FAR, *_PATIENT, http=True, timeout_s=START_S) as server:
            client = _client(server)
            console = server.child_pid("console")
            assert console is not None
            figures = {"first page and start of the reader (ms)": _list_ms(client, "")}
            [reader] = children_of(console)
            for name, query in {
                "first page": "",
                "page in the middle": f"cursor={_cursor_before(client, MIDDLE)}",
                "page of a topic in the middle": f"topic={MIDDLE}",
                "next page of that topic": f"topic={MIDDLE}&cursor={_next(client, f'topic={MIDDLE}')}",
                "page by key in the middle": f"topic={MIDDLE}&key={MIDDLE}-1007",
                "page behind all rows": f"cursor={_cursor_before(client, LAST)}",
                "page of a topic behind all rows": f"topic={LAST}",
                "page by key": f"topic={LAST}&key={LAST}-7",
            }.items():
                rows = 1 if "key=" in query else LIMIT
                figures[f"{name} (ms)"] = statistics.median(_list_ms(client, query, rows) for _ in range(ROUNDS))
            figures |= _forecasts(client)
            figures["peak memory of the console (MiB)"] = peak_resident_bytes(console) / (1 << 20)
            figures["peak memory of the reader (MiB)"] = peak_resident_bytes(reader) / (1 << 20)
        return figures


def _client(server: Server) -> HttpClient:
    return HttpClient(int(server.http.rpartition(":")[2]))


def _schedule(client: HttpClient, topic: str, first_ms: int, *, step_ms: int = 1_000) -> None:
    timers = (
        {"topic": topic, "body": "x" * 200, "key": f"{topic}-{number}", "due_ms": first_ms + number * step_ms}
        for number in range(SCHEDULED)
    )
    lines = "\n".join(map(json.dumps, timers)).encode()
    reply = client.request("POST", "/api/v1/timers:batch", lines, headers={"Content-Type": "application/x-ndjson"})
    assert reply.status == 200, reply.body
    assert all("id" in line for line in reply.lines), reply.lines[0]


def _list_ms(client: HttpClient, query: str, rows: int = LIMIT) -> float:
    """Return how long a page of so many timers takes."""
    began_s = time.perf_counter()
    reply = client.get(f"/api/v1/timers?limit={LIMIT}&{query}")
    took_s = time.perf_counter() - began_s
    assert reply.status == 200, reply.body
    assert len(reply.json["timers"]) == rows, f"{len(reply.json['timers'])} timers: {reply.json['far_missing']}"
    return took_s * 1e3


def _cursor_before(client: HttpClient, topic: str) -> str:
    """Return the cursor of a client that has read everything due before the first timer of a topic."""
    [timer] = client.get(f"/api/v1/timers?topic={topic}&limit=1").json["timers"]
    text = _next(client, "")
    mark, positions, _ = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return base64.urlsafe_b64encode(json.dumps([mark, positions, [timer["due_ms"] - 1, "", -1]]).encode()).decode()


def _next(client: HttpClient, query: str) -> str:
    """Return the cursor of the second page."""
    cursor: str = client.get(f"/api/v1/timers?limit={LIMIT}&{query}").json["next"]
    return cursor


def _forecasts(client: HttpClient) -> Figures:
    """Return how long the forecast takes, and the pages that have one, each of which asks for other spans.

    With the first one, the reader counts the timers of each file, and keeps the counts.
    """
    figures: Figures = {}
    for name, path, kind in (
        ("forecast of ten years, first count of the reader", "/api/v1/forecast?per=day&busiest=0", "application/json"),
        ("heat map, page of hours", "/future", "text/html"),
        ("heat map, page of days", "/future?by=day", "text/html"),
        ("heaviest seconds", "/future/heaviest", "text/html"),
        ("overview", "/", "text/html"),
    ):
        began_s = time.perf_counter()
        reply = client.get(path, Accept=kind)
        figures[f"{name} (ms)"] = (time.perf_counter() - began_s) * 1e3
        assert reply.status == 200, reply.body
        assert b"Set pipeline" not in reply.body
    return figures
