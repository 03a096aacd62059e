"""The calls that the page of a new timer shows are copied and run as they are: each schedules the same timer."""

import datetime
import html
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

from tests.interop.toolchain import build_java
from tests.interop.waiting import wait_until
from tests.support.http_console import HttpClient, running_console
from tests.support.needs import need_tool
from tests.support.serving import Server, serving

TIMEOUT_S = 120.0
# The first send of a process loads classes, for which a busy machine may need longer than the client waits.
_ALL = """
public class All {
    public static void main(String[] arguments) throws Exception {
        for (int tries = 0; tries < 10; tries++) {
            try {
                warm.Schedule.main(arguments);
                break;
            } catch (org.apache.rocketmq.remoting.exception.RemotingTooMuchRequestException late) {
                System.err.println(late);
            }
        }
        %s
    }
}
"""
_CALL = re.compile(r'<h3>([^<]+)</h3>.*?<pre [^>]*id="call-\d"[^>]*>(.*?)</pre>', re.DOTALL)


class Shown(NamedTuple):
    """What is typed into the form."""

    when: str = "1s"
    body: str = "pay now"
    key: str = ""
    tag: str = ""
    properties: Mapping[str, str] = {}


TYPED = {
    "a delay": Shown(),
    "a due time": Shown(
        when=f"{datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2):%Y-%m-%dT%H:%M:%S}.250+01:00"
    ),
    "all fields": Shown(key="order-1", tag="unpaid", properties={"region": "eu", "tries": "3"}),
    "several keys": Shown(key="order-1 customer-7"),
    "quotes": Shown(
        body="it's \"due\": `id` $HOME $(id) \\n \\u0041 %s {x} 'a' ''' \"\"\" */ !1",
        key='it\'s-"quoted"-\\',
        tag="$HOME",
        properties={"it's": '"quoted" \\ `id`', "equals": "a=b"},
    ),
    "lines": Shown(body="first\n\tsecond\n\nlast\n"),
    "non-ASCII text": Shown(body="zahlen: 5 € 日本 😀", key="schlüssel", tag="größe", properties={"straße": "ß 😀"}),
    "dashes": Shown(body="--help", key="-k", tag="-t", properties={"-p": "--v"}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("data") / "data") as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[HttpClient]:
    with running_console(server.namesrv) as (_, found):
        yield found


def shown_calls(client: HttpClient, topic: str, typed: Shown) -> dict[str, str]:
    """The texts of the page by the name of their language, as a browser copies them."""
    fields = {**typed._asdict(), "topic": topic}
    fields["properties"] = "\n".join(f"{name}={value}" for name, value in typed.properties.items())
    reply = client.get(f"/timers/new?{urlencode(fields)}")
    assert reply.status == 200, reply.body
    return {name: html.unescape(code) for name, code in _CALL.findall(reply.body.decode())}


def run(command: list[str], folder: Path, token: str = "") -> None:
    """Run a command like a user does, who has `latermq` on the path."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {**os.environ, "PATH": path, "HOME": str(folder), "LATERMQ_HTTP_TOKEN": token}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def run_request(code: str, folder: Path, token: str = "") -> None:
    """Run curl, which by itself also succeeds if the answer is an error."""
    assert code.startswith("curl http")
    run(["bash", "-c", code.replace("curl", "curl --fail-with-body", 1)], folder, token)


def check_timers(client: HttpClient, topic: str, count: int, typed: Shown) -> None:
    """Check so many timers of a topic: pending ones if they have a due time, otherwise their messages."""
    is_far = "T" in typed.when
    path = f"/api/v1/timers?topic={topic}" if is_far else f"/api/v1/topics/{topic}/messages?limit=20"

    def all_of_them() -> list[dict[str, Any]] | None:
        reply = client.get(path)
        found: list[dict[str, Any]] = reply.json["timers" if is_far else "messages"] if reply.status == 200 else []
        return found if len(found) >= count else None

    found = wait_until(all_of_them, TIMEOUT_S, f"{count} timers of {topic}")
    assert len(found) == count
    for one in found:
        if is_far:
            assert one["due_ms"] == datetime.datetime.fromisoformat(typed.when).timestamp() * 1000
            assert one["body_start"] == typed.body
        else:
            assert one["body"] == typed.body
            assert (" ".join(one.get("keys", [])), one.get("tag", "")) == (typed.key, typed.tag)
            assert {name: one["properties"].get(name) for name in typed.properties} == typed.properties


def topic_of(kind: str) -> str:
    return kind.replace(" ", "_")


@pytest.mark.parametrize("kind", TYPED)
def test_the_python_the_request_and_the_command_that_are_shown_schedule_the_timer(
    client: HttpClient, tmp_path: Path, kind: str
) -> None:
    need_tool("curl", "it sends the shown request")
    topic = topic_of(kind)
    calls = shown_calls(client, topic, TYPED[kind])
    run_request(calls["curl"], tmp_path)
    run([sys.executable, "-c", calls["Python"]], tmp_path)
    run(["bash", "-c", calls["Command line"]], tmp_path)
    check_timers(client, topic, 3, TYPED[kind])


def test_with_a_token_the_request_reads_it_from_a_variable_and_shows_it_nowhere(server: Server, tmp_path: Path) -> None:
    need_tool("curl", "it sends the shown request")
    token = "a-token-of-32-characters-for-tests"
    with running_console(server.namesrv, f"http.token={token}") as (_, client):
        calls = shown_calls(client, "with_token", TYPED["quotes"])
        assert token not in "".join(calls.values())
        run_request(calls["curl"], tmp_path, token)
        check_timers(client, "with_token", 1, TYPED["quotes"])


def test_the_java_that_is_shown_schedules_the_timers(client: HttpClient, tmp_path: Path) -> None:
    javac = need_tool("javac", "it compiles the shown programs")
    # Each program gets a package, and all run in one process: to compile and start each by itself takes a minute more.
    topics = {f"java{number}": typed for number, typed in enumerate(TYPED.values())}
    sources = []
    for topic, typed in {**topics, "warm": Shown()}.items():
        (tmp_path / topic).mkdir()
        sources.append(tmp_path / topic / "Schedule.java")
        sources[-1].write_text(f"package {topic};\n{shown_calls(client, topic, typed)['Java']}")
    sources.append(tmp_path / "All.java")
    sources[-1].write_text(_ALL % "\n".join(f"{topic}.Schedule.main(arguments);" for topic in topics))
    libraries = build_java().servers
    run([javac, "-encoding", "UTF-8", "-cp", libraries, *map(str, sources)], tmp_path)
    run(["java", f"-Duser.home={tmp_path}", "-cp", f"{tmp_path}:{libraries}", "All"], tmp_path)
    for topic, typed in topics.items():
        check_timers(client, topic, 1, typed)


def test_the_addresses_are_those_that_the_visitor_has_opened() -> None:
    with running_console("0.0.0.0:9876;10.0.0.7:9876") as (_, client):
        reply = client.get("/timers/new", Host="127.0.0.2:1234")
        code = html.unescape(reply.body.decode())
        assert "curl http://127.0.0.2:1234/api/v1/timers" in code
        assert "Producer('127.0.0.2:9876;10.0.0.7:9876')" in code
