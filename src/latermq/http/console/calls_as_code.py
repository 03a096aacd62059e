"""A request to schedule a timer, as a program or a person at a terminal would send it.

Each text runs as it is copied: it names the servers of this console, and everything that it imports.
"""

import json
import shlex
from typing import Any, NamedTuple

from latermq.client.session.credentials import SECRET, USER
from latermq.config import Duration

TOKEN_VARIABLE = "LATERMQ_HTTP_TOKEN"  # the variable of the setting http.token; the token itself is never shown


class Servers(NamedTuple):
    """Where programs find the servers: the console's own URL, and `host:port;host:port` of the name servers."""

    url: str
    namesrv: str
    needs_token: bool = False
    needs_user: bool = False


class CodeCall(NamedTuple):
    """The same call in one language."""

    name: str
    code: str


def calls_of(timer: dict[str, Any], servers: Servers) -> list[CodeCall]:
    """Return the call in each language. `timer` is the body of POST /api/v1/timers, with `delay` or `due`."""
    return [
        CodeCall("curl", _curl(timer, servers)),
        CodeCall("Python", _python(timer, servers)),
        CodeCall("Java", _java(timer, servers)),
        CodeCall("Command line", _command(timer, servers)),
    ]


def _curl(timer: dict[str, Any], servers: Servers) -> str:
    body = json.dumps(timer, ensure_ascii=False)
    # Double quotes, so that the shell replaces the variable.
    credentials = []
    if servers.needs_user:
        credentials = [f'  --user "${USER}:${SECRET}" \\']
    elif servers.needs_token:
        credentials = [f'  -H "Authorization: Bearer ${TOKEN_VARIABLE}" \\']
    return "\n".join(
        (
            f"curl {shlex.quote(servers.url + '/api/v1/timers')} \\",
            *credentials,
            "  -H 'Content-Type: application/json' \\",
            f"  --data-raw {shlex.quote(body)}",
        )
    )


def _python(timer: dict[str, Any], servers: Servers) -> str:
    arguments = [repr(timer["topic"]), _python_bytes(timer["body"])]
    if "delay" in timer:
        arguments.append(f"delay={timer['delay']!r}")
    else:
        arguments.append(f"at=datetime.fromisoformat({timer['due']!r})")
    arguments += [f"{name}={timer[name]!r}" for name in ("key", "tag", "properties") if name in timer]
    lines = ["from latermq.client.blocking import Producer", "", f"with Producer({servers.namesrv!r}) as producer:"]
    if "due" in timer:
        lines.insert(0, "from datetime import datetime\n")
    return "\n".join([*lines, f"    timer = producer.schedule({', '.join(arguments)})", "    print(timer)"])


def _java(timer: dict[str, Any], servers: Servers) -> str:
    lines = [
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
    lines += [
        "",
        'DefaultMQProducer producer = new DefaultMQProducer("schedule");',
        f"producer.setNamesrvAddr({_java_text(servers.namesrv)});",
        "producer.start();",
        "try {",
        "    System.out.println(producer.send(message));",
        "} finally {",
        "    producer.shutdown();  // its threads keep the program alive",
        "}",
    ]
    imports = [
        "java.nio.charset.StandardCharsets",
        *(["java.time.Instant"] if "due" in timer else []),
        "org.apache.rocketmq.client.producer.DefaultMQProducer",
        "org.apache.rocketmq.common.message.Message",
    ]
    return "\n".join(
        (
            *(f"import {name};" for name in imports),
            "",
            "public class Schedule {",
            "    public static void main(String[] arguments) throws Exception {",
            *(f"        {line}".rstrip() for line in lines),
            "    }",
            "}",
        )
    )


def _command(timer: dict[str, Any], servers: Servers) -> str:
    options = [f"--namesrv={servers.namesrv}"]
    options.append(f"--delay={timer['delay']}" if "delay" in timer else f"--at={timer['due']}")
    options += [f"--key={key}" for key in timer.get("key", "").split()]
    options += [f"--tag={timer['tag']}"] if "tag" in timer else []
    options += [f"--property={name}={value}" for name, value in timer.get("properties", {}).items()]
    words = [timer["topic"], timer["body"]]
    if any(word.startswith("-") for word in words):
        return shlex.join(["latermq", "send", *options, "--", *words])
    return shlex.join(["latermq", "send", *words, *options])


def _python_bytes(text: str) -> str:
    """Return an expression for the text in UTF-8. Bytes literals have ASCII characters only."""
    return repr(text.encode()) if text.isascii() else f"{text!r}.encode()"


def _java_text(text: str) -> str:
    """Return a string literal. Java reads \\u escapes of UTF-16 units, as JSON does, but knows no \\/."""
    return json.dumps(text)
