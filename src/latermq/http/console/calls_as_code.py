"""A request to schedule a timer, as a program or a person at a terminal would send it."""

import json
import shlex
from typing import Any, NamedTuple

from latermq.config import Duration


class CodeCall(NamedTuple):
    """The same call in one language."""

    name: str
    code: str


def calls_of(timer: dict[str, Any]) -> list[CodeCall]:
    """Return the call in each language. `timer` is the body of POST /api/v1/timers, with `delay` or `due`."""
    return [
        CodeCall("curl", _curl(timer)),
        CodeCall("Python", _python(timer)),
        CodeCall("Java", _java(timer)),
        CodeCall("Command line", _command(timer)),
    ]


def _curl(timer: dict[str, Any]) -> str:
    body = json.dumps(timer, ensure_ascii=False)
    return "\n".join(
        (
            "curl http://127.0.0.1:8080/api/v1/timers \\",
            "  -H 'Content-Type: application/json' \\",
            f"  -d {shlex.quote(body)}",
        )
    )


def _python(timer: dict[str, Any]) -> str:
    when = f"delay={timer['delay']!r}" if "delay" in timer else f"at={timer['due']!r}"
    arguments = [repr(timer["topic"]), repr(timer["body"]), when]
    arguments += [f"{name}={timer[name]!r}" for name in ("key", "tag", "properties") if name in timer]
    lines = ["from latermq.client.blocking import LaterMQ", "", 'with LaterMQ("127.0.0.1:9876") as mq:']
    return "\n".join([*lines, f"    timer = mq.schedule({', '.join(arguments)})", "    print(timer)"])


def _java(timer: dict[str, Any]) -> str:
    lines = [
        'DefaultMQProducer producer = new DefaultMQProducer("console");',
        'producer.setNamesrvAddr("127.0.0.1:9876");',
        "producer.start();",
        f"Message message = new Message({_java_text(timer['topic'])},",
        f"    {_java_text(timer['body'])}.getBytes(StandardCharsets.UTF_8));",
    ]
    if "tag" in timer:
        lines.append(f"message.setTags({_java_text(timer['tag'])});")
    if "key" in timer:
        lines.append(f"message.setKeys({_java_text(timer['key'])});")
    for name, value in timer.get("properties", {}).items():
        lines.append(f"message.putUserProperty({_java_text(name)}, {_java_text(value)});")
    if "delay" in timer:
        lines.append(f"message.setDelayTimeMs({int(Duration.parse(timer['delay']))}L);")
    else:
        lines.append(f"message.setDeliverTimeMs(Instant.parse({_java_text(timer['due'])}).toEpochMilli());")
    return "\n".join([*lines, "producer.send(message);"])


def _command(timer: dict[str, Any]) -> str:
    words = ["latermq", "send", timer["topic"], timer["body"]]
    words += ["--delay", timer["delay"]] if "delay" in timer else ["--at", timer["due"]]
    for key in timer.get("key", "").split():
        words += ["--key", key]
    words += ["--tag", timer["tag"]] if "tag" in timer else []
    for name, value in timer.get("properties", {}).items():
        words += ["--property", f"{name}={value}"]
    if timer["topic"].startswith("-") or timer["body"].startswith("-"):
        words = [*words[:2], *words[4:], "--", *words[2:4]]
    return shlex.join(words)


def _java_text(text: str) -> str:
    """Return a string literal. Java reads \\u escapes of UTF-16 units, as JSON does, but knows no \\/."""
    return json.dumps(text)
