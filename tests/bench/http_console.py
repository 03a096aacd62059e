"""The console process under load: the HTTP API, lists over many timers, the first load of a page, and its viewers."""

import asyncio
import re
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from playwright.sync_api import Error as PlaywrightError

from latermq.cli.bench.process_usage import cpu_s, memory
from tests.bench.contenders import LATERMQ
from tests.bench.load import Figures
from tests.bench.scenarios import Row
from tests.bench.sizes import Sizes
from tests.interop.ports import HOST
from tests.support.browser import running_browser, visiting
from tests.support.needs import find_tool
from tests.support.serving import Server, serving

TOPIC = "bench-http"
CONNECTIONS = 16
BATCH = 10_000
LIST_PAGES = 20  # of each kind
REFRESH_S = 2.0  # how often the overview of a viewer is drawn again
_SETTINGS = ("http.rate=0", "http.max_requests=500", "store.flush_every=200ms")
_LENGTH = re.compile(rb"(?i)content-length: (\d+)")
_HEAD_END = b"\r\n\r\n"


class Connection:
    """A connection that stays open. It does no more than a benchmark needs, so that the console is the bottleneck."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def request(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> bytes:
        """Return the body of the answer, which must be a success."""
        head = f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nAccept-Encoding: gzip\r\n"
        if body:
            head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        self._writer.write(head.encode() + b"\r\n" + body)
        answer = await self._reader.readuntil(_HEAD_END)
        assert answer.startswith(b"HTTP/1.1 2"), answer
        found = _LENGTH.search(answer)
        return await self._reader.readexactly(int(found[1])) if found else b""

    async def stream(self) -> None:
        """Read the event stream until the connection is closed."""
        self._writer.write(f"GET /live HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        while await self._reader.read(1 << 16):
            pass

    def close(self) -> None:
        self._writer.close()


async def connect(port: int) -> Connection:
    return Connection(*await asyncio.open_connection(HOST, port, limit=16 << 20))


def run_http(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Run once per repeat, each on a store of its own: lists cost more the more timers there are."""
    for repeat in range(sizes.repeats):
        yield Row("http", LATERMQ, repeat, measure_http(folder / str(repeat), sizes))


def measure_http(folder: Path, sizes: Sizes) -> Figures:
    """Measure everything on one console."""
    options = [option for setting in _SETTINGS for option in ("--set", setting)]
    figures: Figures = {}
    with serving(folder, *options, http=True, timeout_s=90.0) as server:
        bench = _Bench(server, sizes, figures)
        asyncio.run(bench.measure_api())
        asyncio.run(bench.measure_viewers(sizes.viewers))
        if find_tool("chromium") is not None:
            bench.measure_first_load()
    return figures


class _Bench:
    def __init__(self, server: Server, sizes: Sizes, figures: Figures) -> None:
        pid = server.child_pid("console")
        assert pid is not None
        self._pid = pid
        self._http = server.http
        self._port = int(server.http.rpartition(":")[2])
        self._sizes = sizes
        self._figures = figures

    async def measure_api(self) -> None:
        await self._schedule_one_by_one()
        await self._schedule_batches()
        for name, path in (
            ("first page", "/api/v1/timers?limit=50"),
            ("page of a topic", f"/api/v1/timers?topic={TOPIC}&limit=50"),
            ("page by key", f"/api/v1/timers?topic={TOPIC}&key=k1&limit=50"),
            ("overview", "/"),
        ):
            self._figures[f"{name} (ms)"] = await self._page_ms(path)

    async def measure_viewers(self, viewers: int) -> None:
        """Viewers of the overview, as browsers do it: an event stream, and the page again every few seconds."""
        before = memory(self._pid)
        began_s, cpu = time.monotonic(), _cpu_s(self._pid)
        connections = [await connect(self._port) for _ in range(2 * viewers)]
        streams = [asyncio.create_task(one.stream()) for one in connections[:viewers]]
        end_s = began_s + self._sizes.watch_s

        async def look(connection: Connection, number: int) -> int:
            await asyncio.sleep(REFRESH_S * number / viewers)  # they have not opened the page at the same time
            looks = 0
            while time.monotonic() < end_s:
                await connection.request("GET", "/")
                looks += 1
                await asyncio.sleep(REFRESH_S)
            return looks

        looks = sum(await asyncio.gather(*(look(one, number) for number, one in enumerate(connections[viewers:]))))
        spent_s, elapsed_s = _cpu_s(self._pid) - cpu, time.monotonic() - began_s
        after = memory(self._pid)
        for connection in connections:
            connection.close()
        await asyncio.gather(*streams, return_exceptions=True)
        assert before is not None
        assert after is not None
        self._figures["update of a viewer, console CPU (ms)"] = spent_s / max(1, looks) * 1e3
        self._figures["viewers, console CPU (%)"] = spent_s / elapsed_s * 100
        self._figures["memory before viewers (MiB)"] = before.resident_bytes / (1 << 20)
        self._figures["memory with viewers (MiB)"] = after.resident_bytes / (1 << 20)

    def measure_first_load(self) -> None:
        """The overview in a browser that has nothing of it in its cache."""
        script = """() => {
            const [page] = performance.getEntriesByType("navigation"), files = performance.getEntriesByType("resource");
            return [page.loadEventEnd, page.transferSize + files.reduce((sum, one) => sum + one.transferSize, 0)];
        }"""
        try:
            with running_browser() as browser:
                found = []
                for _ in range(3):
                    with visiting(browser, f"http://{self._http}") as tab:
                        tab.page.goto("/", wait_until="load")
                        tab.page.wait_for_function("performance.getEntriesByType('navigation')[0].loadEventEnd > 0")
                        found.append(tab.page.evaluate(script))
        except PlaywrightError as error:
            raise RuntimeError("the browser did not load the overview") from error
        self._figures["first load (ms)"] = statistics.median(load_ms for load_ms, _ in found)
        self._figures["first load (kB)"] = statistics.median(size_bytes for _, size_bytes in found) / 1e3

    async def _schedule_one_by_one(self) -> None:
        count = self._sizes.http_requests
        connections = [await connect(self._port) for _ in range(CONNECTIONS)]

        async def schedule(connection: Connection, number: int) -> None:
            for each in range(number, count, CONNECTIONS):
                await connection.request("POST", "/api/v1/timers", _timer(f"one-{each}", self._sizes.size))

        await connections[0].request("POST", "/api/v1/timers", _timer("first", self._sizes.size))  # creates the topic
        elapsed_s, spent_s = await self._timed(
            lambda: asyncio.gather(*(schedule(one, number) for number, one in enumerate(connections)))
        )
        for connection in connections:
            connection.close()
        self._figures["schedule one (requests/s)"] = count / elapsed_s
        self._figures["schedule one, console CPU (us/request)"] = spent_s / count * 1e6

    async def _schedule_batches(self) -> None:
        count = max(1, self._sizes.http_timers // BATCH)
        per_batch = min(BATCH, self._sizes.http_timers)
        bodies = [
            b"\n".join(_timer(f"k{number + batch * per_batch}", self._sizes.size) for number in range(per_batch))
            for batch in range(min(count, 4))
        ]
        connection = await connect(self._port)

        async def schedule() -> None:
            for batch in range(count):
                body = bodies[batch % len(bodies)]
                answer = await connection.request("POST", "/api/v1/timers:batch", body, "application/x-ndjson")
                assert b'"refused"' not in answer

        elapsed_s, spent_s = await self._timed(schedule)
        connection.close()
        self._figures["batch (timers/s)"] = count * per_batch / elapsed_s
        self._figures["batch, console CPU (us/timer)"] = spent_s / (count * per_batch) * 1e6

    async def _page_ms(self, path: str) -> float:
        connection = await connect(self._port)
        times = []
        for _ in range(LIST_PAGES):
            began_s = time.perf_counter()
            await connection.request("GET", path)
            times.append((time.perf_counter() - began_s) * 1e3)
        connection.close()
        return statistics.median(times)

    async def _timed(self, work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
        """Return the seconds that pass, and the CPU time of the console."""
        began_s, cpu = time.perf_counter(), _cpu_s(self._pid)
        await work()
        return time.perf_counter() - began_s, _cpu_s(self._pid) - cpu


def _cpu_s(pid: int) -> float:
    found = cpu_s(pid)
    assert found is not None
    return found


def _timer(key: str, size_bytes: int) -> bytes:
    return f'{{"topic":"{TOPIC}","body":"{"x" * size_bytes}","key":"{key}","delay":"20h"}}'.encode()
