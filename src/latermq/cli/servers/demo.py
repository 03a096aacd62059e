"""`make demo`: runs a server in a temporary directory, shows its main functions, and kills its broker with kill -9.

Run as `python -m latermq.cli.servers.demo`. Exits with 0 only if every step succeeds.
"""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from latermq.cli.doctor.store_checks import check_store
from latermq.cli.event_loop import run
from latermq.cli.servers.demo_grpc import has_grpc, try_proxy
from latermq.client import Admin, Message, OutgoingMessage, Producer, PullConsumer, PushConsumer
from latermq.config import load_config
from latermq.errors import LaterMQError
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command, FrameReader, encode_frame

ORDER_TOPIC, STREAM_TOPIC, REMINDER_TOPIC = "demo-orders", "demo-stream", "demo-reminders"
GRPC_TOPIC = "demo-grpc"
GROUP = "demo-audit"
REMINDERS, CANCELLED, MOVED = 100, 10, 10
ORDERS = 20
STREAM_MESSAGES, KILL_AFTER_MESSAGES, SENDERS = 20_000, 7_000, 64
RETRY_PAUSE_S = 0.2
DEADLINE_S = 50.0

console = Console(highlight=False)


class DemoFailed(Exception):
    """A step did not have the expected result."""


class Server:
    """A `latermq serve` process for the demo."""

    def __init__(self, data: Path, log: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "latermq",
            "serve",
            "--no-pipeline",
            "--data",
            str(data),
            "--port",
            "0",
            "--namesrv-port",
            "0",
            "--grpc-port",
            "0",
            "--http-port",
            "0",
        ]
        with log.open("wb") as log_file:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log_file, text=True)
        assert self._process.stdout is not None
        self.ready_line = self._process.stdout.readline().strip()
        found = re.search(r"name server (\S+), broker (\S+), gRPC proxy (\S+),", self.ready_line)
        if found is None:
            self.close()
            raise DemoFailed("the server did not start")
        self.namesrv, self.broker, self.proxy = found[1], found[2], found[3]

    def pid_of(self, part: str) -> int | None:
        """The process of a part, None while it is being restarted."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for pid in map(int, children):
            with contextlib.suppress(OSError):
                if f"\0{part}\0".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        return None

    def kill(self, part: str) -> int:
        pid = self.pid_of(part)
        if pid is None:
            raise DemoFailed(f"the {part} is not running")
        os.kill(pid, signal.SIGKILL)
        return pid

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(30)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Summary:
    """Prints the steps of the demo as they happen, and a table of them at the end."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._rows: list[tuple[str, str, float]] = []

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        """The block appends its findings to the yielded list."""
        console.print(f"[bold]{len(self._rows) + 1}. {name}[/bold]")
        started_s, findings = time.monotonic(), list[str]()
        yield findings
        for line in findings:
            console.print(f"   {line}", markup=False)
        self._rows.append((name, findings[-1] if findings else "", time.monotonic() - started_s))

    def print(self) -> None:
        table = Table(title="LaterMQ demo", title_justify="left")
        table.add_column("step")
        table.add_column("result")
        table.add_column("seconds", justify="right")
        for name, result, took_s in self._rows:
            table.add_row(name, result, f"{took_s:.1f}")
        console.print(table)
        console.print(f"[green]All {len(self._rows)} steps succeeded.[/green]")


async def run_steps(server: Server, summary: Summary) -> None:
    """The steps between the start and the stop of the server."""
    async with Admin(server.namesrv) as admin, Producer(server.namesrv) as producer:
        with summary.step("create topics") as findings:
            await admin.create_topic(ORDER_TOPIC, queues=4)
            await admin.create_topic(STREAM_TOPIC, queues=4)
            await admin.create_topic(REMINDER_TOPIC, queues=4)
            findings.append(f"{ORDER_TOPIC}, {STREAM_TOPIC} and {REMINDER_TOPIC}, 4 queues each")
        with summary.step("send orders with tags and keys") as findings:
            findings += await send_orders(producer)
        with summary.step(f"consume them as group {GROUP}") as findings:
            findings += await consume_orders(server.namesrv)
        with summary.step("find an order by its key") as findings:
            found = await admin.query_by_key(ORDER_TOPIC, "order-7")
            check(len(found) == 1, f"{len(found)} messages with key order-7")
            findings.append(f"order-7: {found[0].body.decode()} in queue {found[0].queue_id}")
        with summary.step("send delayed reminders, each due at a different millisecond") as findings:
            for number in range(REMINDERS):
                reminder = OutgoingMessage(
                    REMINDER_TOPIC, b"reminder %d" % number, keys=(f"order-{number}",), delay_ms=5_000 + 17 * number
                )
                await producer.send(reminder)
            early = [message async for message in read_topic(server.namesrv, REMINDER_TOPIC)]
            check(not early, f"{len(early)} reminders were delivered early")
            findings.append(f"{REMINDERS} acknowledged, none delivered to {REMINDER_TOPIC} yet")
        with summary.step("cancel some reminders, move others") as findings:
            findings += await change_reminders(admin)
        with summary.step("schedule and receive by gRPC, and kill -9 the proxy before the acknowledgement") as findings:
            findings += await try_grpc(server, admin)
        with summary.step("send malicious requests, to delete the log and to break the next start") as findings:
            findings += await asyncio.to_thread(send_malicious_requests, server.broker)
        with summary.step("kill -9 the broker during a stream of sends") as findings:
            await send_during_crash(server, producer, findings)
        with summary.step("look up every acknowledged message") as findings:
            stored = [message.properties["KEYS"] async for message in read_topic(server.namesrv, STREAM_TOPIC)]
            missing = {f"n-{number}" for number in range(STREAM_MESSAGES)} - set(stored)
            check(not missing, f"{len(missing)} of {STREAM_MESSAGES} acknowledged messages are missing")
            if duplicates := len(stored) - len(set(stored)):
                findings.append(f"{duplicates} stored twice: before the kill, and again by a retry")
            findings.append(f"{STREAM_MESSAGES} acknowledged, all stored, 0 missing")
        with summary.step("wait for the reminders") as findings:
            findings += await check_reminders(server.namesrv)


async def try_grpc(server: Server, admin: Admin) -> list[str]:
    """Use the proxy with a client of the 5.x protocol."""
    if not has_grpc():
        return ["left out, because the package grpcio is not installed"]
    await admin.create_topic(GRPC_TOPIC, queues=1)
    try:
        return await asyncio.to_thread(try_proxy, server.proxy, GRPC_TOPIC, GROUP, lambda: server.kill("proxy"))
    except AssertionError as error:
        raise DemoFailed(str(error)) from None


def send_malicious_requests(broker: str) -> list[str]:
    """Send malicious requests. The next steps show whether they did any harm."""
    host, _, port = broker.rpartition(":")
    nested = b'{"groupName":"evil","attributes":' + b'{"a":' * 1_000 + b"1" + b"}" * 1_001
    attempts = [
        (Request.DELETE_TOPIC_IN_BROKER, {"topic": "../commitlog"}, b""),
        (Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, nested),
    ]
    remarks = []
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        for code, fields, body in attempts:
            sock.sendall(encode_frame(code, 1, fields=fields, body=body))
            reader, replies = FrameReader(), list[Command]()
            while not replies:
                data = sock.recv(1 << 16)
                check(bool(data), f"{code.name} got no reply")
                replies = reader.feed(data)
            check(replies[0].code != Response.SUCCESS, f"{code.name} succeeded")
            remarks.append(f"{code.name}: {replies[0].remark}")
    return [*remarks, f"{len(attempts)} attempts refused"]


async def change_reminders(admin: Admin) -> list[str]:
    """Cancel the first reminders by key, and move the next ones."""
    for number in range(CANCELLED):
        (outcome,) = await admin.cancel_timer(REMINDER_TOPIC, key=f"order-{number}")
        check(outcome.verdict == "cancelled", f"order-{number} was {outcome.verdict} instead of cancelled")
    for number in range(CANCELLED, CANCELLED + MOVED):
        (outcome,) = await admin.move_timer(REMINDER_TOPIC, key=f"order-{number}", delay_ms=8_000)
        check(outcome.verdict == "moved", f"order-{number} was {outcome.verdict} instead of moved")
    left = await admin.count_timers(topic=REMINDER_TOPIC)
    check(left == REMINDERS - CANCELLED, f"{left} reminders are pending")
    return [f"{CANCELLED} cancelled and {MOVED} moved by key, {left} pending"]


async def check_reminders(namesrv: str) -> list[str]:
    """Wait for the reminders, some of which fell due while the broker was down, and check when each was stored."""
    deadline_s = time.monotonic() + 20
    while True:
        stored = [message async for message in read_topic(namesrv, REMINDER_TOPIC)]
        if len(stored) >= REMINDERS - CANCELLED or time.monotonic() > deadline_s:
            break
        await asyncio.sleep(0.1)
    bodies = {message.body for message in stored}
    expected = {b"reminder %d" % number for number in range(CANCELLED, REMINDERS)}
    check(bodies <= expected, f"{len(bodies - expected)} cancelled reminders were delivered")
    check(bodies == expected, f"{len(expected - bodies)} reminders were not delivered")
    check(len(stored) == len(bodies), f"{len(stored) - len(bodies)} reminders were delivered twice")
    late_ms = [message.store_timestamp_ms - int(message.properties["LMQ_DUE_MS"]) for message in stored]
    check(min(late_ms) >= 0, f"a reminder was {-min(late_ms)} ms early")
    return [f"{len(stored)} delivered once each, none early, no cancelled ones, at most {max(late_ms)} ms late"]


async def send_orders(producer: Producer) -> list[str]:
    results = [
        await producer.send(
            OutgoingMessage(
                ORDER_TOPIC, f'{{"order": {n}}}'.encode(), tag="created" if n % 2 else "paid", keys=(f"order-{n}",)
            )
        )
        for n in range(ORDERS)
    ]
    check(all(result.status == "SEND_OK" for result in results), "a send was not acknowledged")
    queues = {result.queue.queueId for result in results}
    return [f"{len(results)} acknowledged, in {len(queues)} queues"]


async def consume_orders(namesrv: str) -> list[str]:
    received: list[Message] = []
    all_received = asyncio.Event()

    def handle(message: Message) -> None:
        received.append(message)
        if len(received) == ORDERS:
            all_received.set()

    async with PushConsumer(namesrv, GROUP, handle, consume_from="first") as consumer:
        await consumer.subscribe(ORDER_TOPIC)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(all_received.wait(), 15)
    check(len(received) == ORDERS, f"{len(received)} of {ORDERS} messages arrived")
    first = [
        f"{message.properties['KEYS']} ({message.properties['TAGS']}): {message.body.decode()}"
        for message in received[:3]
    ]
    return [*first, f"{len(received)} consumed"]


async def send_during_crash(server: Server, producer: Producer, findings: list[str]) -> None:
    """Send a stream from many senders, kill the broker meanwhile, and continue until all is acknowledged."""
    numbers = iter(range(STREAM_MESSAGES))
    acknowledged = failed_sends = 0
    last_s, longest_gap_s = time.monotonic(), 0.0

    def on_acknowledged() -> None:
        nonlocal acknowledged, last_s, longest_gap_s
        now_s = time.monotonic()
        last_s, longest_gap_s = now_s, max(longest_gap_s, now_s - last_s)
        acknowledged += 1
        if acknowledged == KILL_AFTER_MESSAGES:
            pid = server.kill("broker")
            findings.append(f"killed broker process {pid} after {acknowledged} of {STREAM_MESSAGES} acknowledgements")

    async def send_numbers() -> None:
        nonlocal failed_sends
        for number in numbers:
            message = OutgoingMessage(STREAM_TOPIC, b"x" * 200, keys=(f"n-{number}",))
            # Like an application, send again what was not acknowledged.
            while True:
                try:
                    await producer.send(message)
                    break
                except LaterMQError:
                    failed_sends += 1
                    await asyncio.sleep(RETRY_PAUSE_S)
            on_acknowledged()

    await asyncio.gather(*(send_numbers() for _ in range(SENDERS)))
    findings.append(f"restarted as process {server.pid_of('broker')}; sends were interrupted for {longest_gap_s:.1f} s")
    findings.append(f"{acknowledged} acknowledged in the end, {failed_sends} failed sends were repeated")


async def read_topic(namesrv: str, topic: str) -> AsyncIterator[Message]:
    async with PullConsumer(namesrv, group="demo-reader") as consumer:
        for queue in await consumer.queues(topic):
            at, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while at < end:
                result = await consumer.pull(queue, at, 256)
                for message in result.messages:
                    yield message
                check(result.next_offset > at, f"reading {queue} stopped at {at} of {end}")
                at = result.next_offset


def recover_index(data: Path, log: Path, cleanup: contextlib.ExitStack) -> list[str]:
    """Remove the key index, and check that the doctor reports it and that the next start rebuilds it."""
    shutil.rmtree(data / "index")
    problems = [problem.details for problem in check_store(data, load_config()) if problem.status != "ok"]
    check(any("index" in problem for problem in problems), f"doctor reported {problems}")
    server = Server(data, log)
    cleanup.callback(server.close)

    async def find() -> list[Message]:
        async with Admin(server.namesrv) as admin:
            return await admin.query_by_key(ORDER_TOPIC, "order-7")

    found = run(asyncio.wait_for(find(), DEADLINE_S))
    check(len(found) == 1, f"{len(found)} messages with key order-7")
    check(server.stop() == 0, "serve did not stop cleanly")
    return [f"doctor: {problems[-1]}", "rebuilt from the log at the start; order-7 is found"]


def check(condition: bool, message: str) -> None:
    if not condition:
        raise DemoFailed(message)


def main() -> int:
    summary = Summary()
    with tempfile.TemporaryDirectory(prefix="latermq-demo-") as folder, contextlib.ExitStack() as cleanup:
        log = Path(folder) / "serve.log"
        try:
            with summary.step("start latermq serve") as findings:
                server = Server(Path(folder) / "data", log)
                cleanup.callback(server.close)
                findings.append(server.ready_line)
            run(asyncio.wait_for(run_steps(server, summary), DEADLINE_S))
            with summary.step("stop the server with SIGTERM") as findings:
                code = server.stop()
                check(code == 0, f"serve exited with {code}")
                findings.append("exit code 0, flushed and checkpointed")
            with summary.step("delete the key index, run doctor, start again") as findings:
                findings += recover_index(Path(folder) / "data", log, cleanup)
        except (DemoFailed, LaterMQError, TimeoutError) as error:
            console.print(f"[red]The demo failed: {error or 'timeout'}[/red]")
            console.print(f"End of the server's log:\n{log.read_text()[-3000:]}", markup=False, soft_wrap=True)
            return 1
    summary.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
