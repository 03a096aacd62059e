"""`latermq topic`: lists, creates, deletes and shows topics and their routes."""

from typing import Annotated, Any

import typer

from latermq.cli.completions import complete_topic
from latermq.cli.event_loop import run
from latermq.cli.options import DEFAULT_NAMESRV, Json, Namesrv, parse_pairs
from latermq.cli.output import counted, print_note, print_rows
from latermq.cli.views.message_rows import moment

app = typer.Typer(help="Manage topics.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=complete_topic)]


@app.command("list")
def list_topics(
    include_all: Annotated[
        bool, typer.Option("--all", help="Include system topics, retry topics and dead-letter topics.")
    ] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """List topics.

    Example: latermq topic list --all
    """

    async def work() -> list[dict[str, Any]]:
        from latermq.client import Admin
        from latermq.message.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_topic

        async with Admin(namesrv) as admin:
            # Every cluster and every broker has a topic with its name.
            reserved = {name for cluster, brokers in (await admin.clusters()).items() for name in (cluster, *brokers)}
            return [
                {"topic": topic}
                for topic in await admin.topics()
                if include_all
                or not (
                    topic in reserved or is_system_topic(topic) or topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
                )
            ]

    print_rows(run(work()), {"topic": "topic"}, as_json=json, empty="no topics; --all includes system topics")


@app.command()
def create(
    topic: Name,
    queues: Annotated[int, typer.Option("--queues", metavar="N", min=1, help="Number of queues per broker.")] = 8,
    ordered: Annotated[bool, typer.Option("--ordered", help="Mark the topic as ordered.")] = False,
    attributes: Annotated[
        list[str] | None, typer.Option("--attribute", metavar="K=V", help="Attribute of the topic; repeatable.")
    ] = None,
    broker: Annotated[str | None, typer.Option("--broker", metavar="NAME", help="Only on this broker.")] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
) -> None:
    """Create or change a topic.

    Example: latermq topic create orders --queues 4
    """
    parsed = parse_pairs(attributes)

    async def work() -> None:
        from latermq.client import Admin

        async with Admin(namesrv) as admin:
            await admin.create_topic(topic, queues, order=ordered, attributes=parsed, broker=broker)

    run(work())
    where = f"broker {broker}" if broker else "each broker"
    print_note(f"topic {topic} configured with {counted(queues, 'queue')} on {where}")


@app.command()
def delete(topic: Name, namesrv: Namesrv = DEFAULT_NAMESRV) -> None:
    """Delete a topic and its messages.

    Example: latermq topic delete orders
    """

    async def work() -> None:
        from latermq.client import Admin

        async with Admin(namesrv) as admin:
            await admin.route(topic)  # raises TopicNotFound
            await admin.delete_topic(topic)

    run(work())
    print_note(f"topic {topic} deleted")


@app.command()
def show(topic: Name, namesrv: Namesrv = DEFAULT_NAMESRV, json: Json = False) -> None:
    """Show the queues of a topic and their offsets.

    Example: latermq topic show orders
    """

    async def work() -> list[dict[str, Any]]:
        from latermq.client import Admin

        async with Admin(namesrv) as admin:
            return [
                {
                    "topic": queue.topic,
                    "broker": queue.brokerName,
                    "queue_id": queue.queueId,
                    "min_offset": offsets.minOffset,
                    "max_offset": offsets.maxOffset,
                    "messages": offsets.maxOffset - offsets.minOffset,
                    "last_stored_ms": offsets.lastUpdateTimestamp,
                    "last_stored": moment(offsets.lastUpdateTimestamp),
                }
                for queue, offsets in (await admin.topic_stats(topic)).items()
            ]

    columns = {
        "broker": "broker",
        "queue_id": "queue",
        "min_offset": "first offset",
        "max_offset": "next offset",
        "messages": "messages",
        "last_stored": "last stored",
    }
    print_rows(run(work()), columns, as_json=json, empty=f"topic {topic} has no queues")


@app.command()
def route(topic: Name, namesrv: Namesrv = DEFAULT_NAMESRV, json: Json = False) -> None:
    """Show the brokers of a topic and their addresses.

    Example: latermq topic route orders
    """

    async def work() -> list[dict[str, Any]]:
        from latermq.client import Admin

        async with Admin(namesrv) as admin:
            found = await admin.route(topic)
        queues = {data.brokerName: data for data in found.queueDatas}
        return [
            {
                "cluster": broker.cluster,
                "broker": broker.brokerName,
                "broker_id": broker_id,
                "address": address,
                "read_queues": queues[broker.brokerName].readQueueNums,
                "write_queues": queues[broker.brokerName].writeQueueNums,
                "permission": _permission(queues[broker.brokerName].perm),
            }
            for broker in found.brokerDatas
            for broker_id, address in sorted(broker.brokerAddrs.items())
            if broker.brokerName in queues
        ]

    columns = {
        "cluster": "cluster",
        "broker": "broker",
        "broker_id": "id",
        "address": "address",
        "read_queues": "read queues",
        "write_queues": "write queues",
        "permission": "permission",
    }
    print_rows(run(work()), columns, as_json=json, empty=f"no broker has topic {topic}")


def _permission(bits: int) -> str:
    return ("r" if bits & 4 else "-") + ("w" if bits & 2 else "-")
