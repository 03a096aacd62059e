"""`latermq bench`: measures the throughput of a broker with the Python client."""

from typing import Annotated

import typer

from latermq.cli.event_loop import run
from latermq.cli.options import DEFAULT_NAMESRV, Json, Namesrv
from latermq.cli.output import print_fields

app = typer.Typer(
    help="Measure throughput, latency and CPU time of a broker.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Topic = Annotated[str, typer.Option("--topic", metavar="T", help="Topic to use.")]
BrokerPid = Annotated[
    int | None,
    typer.Option(
        "--broker-pid",
        metavar="PID",
        min=1,
        help="Broker process whose CPU time is measured; detected if there is only one broker.",
    ),
]
DEFAULT_TOPIC = "latermq-bench"
_LABELS = {
    "size_bytes": "body size (bytes)",
    "batch": "messages per pull",
    "messages_per_s": "messages per second",
    "client_cpu_us_per_message": "client CPU per message (µs)",
    "broker_cpu_us_per_message": "broker CPU per message (µs)",
    "broker_resident_mib": "broker memory (MiB)",
    "latency_p50_ms": "latency p50 (ms)",
    "latency_p99_ms": "latency p99 (ms)",
    "latency_max_ms": "latency max (ms)",
}


@app.command("send")
def send(
    topic: Topic = DEFAULT_TOPIC,
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, help="Number of messages.")] = 100_000,
    size: Annotated[int, typer.Option("--size", metavar="BYTES", min=1, help="Body size in bytes.")] = 200,
    sync: Annotated[
        bool, typer.Option("--sync/--async", help="Wait for each reply before the next send, or pipeline the sends.")
    ] = False,
    in_flight: Annotated[
        int,
        typer.Option(
            "--in-flight", metavar="N", min=1, help="With --async: maximum number of unacknowledged messages."
        ),
    ] = 2000,
    concurrency: Annotated[
        int, typer.Option("--concurrency", metavar="N", min=1, help="With --sync: concurrent senders.")
    ] = 16,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="R", min=0.001, help="Send at most R messages per second.")
    ] = None,
    broker_pid: BrokerPid = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """Measure sends.

    Prints the rate, the latency and the CPU time per message. The CPU time of the broker covers all its threads. It is
    available only if the broker runs on this machine.

    Example: latermq bench send --count 200000 --in-flight 2000
    """
    from latermq.cli.bench.send_bench import SendBench

    in_flight_limit = concurrency if sync else in_flight
    bench = SendBench(topic, count=count, size_bytes=size, concurrency=in_flight_limit, is_sync=sync, rate=rate)
    print_fields(run(bench.run(namesrv, broker_pid)), as_json=json, labels=_LABELS)


@app.command("consume")
def consume(
    topic: Topic = DEFAULT_TOPIC,
    count: Annotated[
        int | None,
        typer.Option("--count", metavar="N", min=1, help="Stop after about N messages; by default at the end."),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Messages per pull.")] = 32,
    broker_pid: BrokerPid = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """Measure reads of a topic from beginning to end.

    Prints the rate and the CPU time per message. Reads all queues concurrently, with one pull at a time each. Joins no
    group and stores no offsets.

    Example: latermq bench consume --topic orders
    """
    from latermq.cli.bench.drain_bench import DrainBench

    print_fields(
        run(DrainBench(topic, count=count, batch=batch).run(namesrv, broker_pid)), as_json=json, labels=_LABELS
    )
