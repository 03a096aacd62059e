"""`latermq bench`: how fast a broker takes and gives messages, measured with the Python SDK."""

from typing import Annotated

import typer

from latermq.cli.event_loop import run
from latermq.cli.options import DEFAULT_NAMESRV, Json, Namesrv
from latermq.cli.output import print_fields

app = typer.Typer(
    help="Measure a broker: messages a second, latency, CPU a message. It needs nothing but the command.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Topic = Annotated[str, typer.Option("--topic", metavar="T", help="The topic.")]
BrokerPid = Annotated[
    int | None,
    typer.Option(
        "--broker-pid",
        metavar="PID",
        min=1,
        help="The broker's process, for its CPU time; found by itself where it is the only one.",
    ),
]
DEFAULT_TOPIC = "latermq-bench"


@app.command("send")
def send(
    topic: Topic = DEFAULT_TOPIC,
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, help="How many messages.")] = 100_000,
    size: Annotated[int, typer.Option("--size", metavar="BYTES", min=1, help="Bytes in each body.")] = 200,
    sync: Annotated[
        bool, typer.Option("--sync/--async", help="Wait for each answer before the next send, or send ahead.")
    ] = False,
    in_flight: Annotated[
        int, typer.Option("--in-flight", metavar="N", min=1, help="With --async: messages without an answer yet.")
    ] = 2000,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "--threads", metavar="N", min=1, help="With --sync: senders side by side.")
    ] = 16,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="R", min=0.001, help="At most R messages a second.")
    ] = None,
    broker_pid: BrokerPid = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """Send messages and print rate, latency and CPU time a message.

    The broker's CPU time is that of all its threads, and known only where the broker runs on this machine.

    Example: latermq bench send --count 200000 --in-flight 2000
    """
    from latermq.cli.bench.send_bench import SendBench

    width = concurrency if sync else in_flight
    bench = SendBench(topic, count=count, size_bytes=size, concurrency=width, waits=sync, rate=rate)
    print_fields(run(bench.run(namesrv, broker_pid)), as_json=json)


@app.command("consume")
def consume(
    topic: Topic = DEFAULT_TOPIC,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help="Stop after about N messages; else at the end.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Messages a pull.")] = 32,
    broker_pid: BrokerPid = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """Read a topic from its beginning to its end and print rate and CPU time a message.

    All queues are read side by side, one pull each. No group takes part and no offset is stored.

    Example: latermq bench consume --topic orders
    """
    from latermq.cli.bench.drain_bench import DrainBench

    print_fields(run(DrainBench(topic, count=count, batch=batch).run(namesrv, broker_pid)), as_json=json)
