"""A client program of another language, kept running: commands go to it as JSON lines, replies and events come back."""

import itertools
import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.interop.toolchain import build_go, build_go5, build_java, build_java5, build_node5, build_python5
from tests.interop.waiting import wait_until

CALL_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30
_JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_JAVA5 = "latermq.interop5.Main"
_JAVA5_LOG = ("-Dmq.consoleAppender.enabled=true", "-Drocketmq.log.level=WARN")

Json = dict[str, Any]


class ProgramError(Exception):
    """The client raised. `code` is the broker's answer, -1 if it did not come from a broker; `cause` may have more."""

    def __init__(self, kind: str, code: int, message: str, cause: str = "") -> None:
        super().__init__(f"{kind} {code}: {message} {cause}")
        self.cause = cause
        self.kind = kind
        self.code = code
        self.message = message


class Program:
    """One process. `defaults` are arguments that go with every call, such as the name server's address."""

    def __init__(self, command: Sequence[str], log: Path, defaults: Mapping[str, Any]) -> None:
        self._defaults = dict(defaults)
        self._log = log
        self._requests = itertools.count()
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._replies: dict[int, Json] = {}
        self._events: list[Json] = []
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=log.parent,
                env={**os.environ, "HOME": str(log.parent)},
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._await(lambda: self._events[:1], CALL_TIMEOUT_S, "the program is ready")

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, command: str, **arguments: Any) -> Json:
        """Run a command and return its result; raise ProgramError if the client raised."""
        return self.finish(self.begin(command, **arguments), what=command)

    def begin(self, command: str, **arguments: Any) -> int:
        """Send a command without waiting for its reply."""
        request = next(self._requests)
        line = {"request": request, "command": command, "arguments": {**self._defaults, **arguments}}
        assert self._process.stdin is not None
        with self._writing:
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
        return request

    def finish(self, request: int, timeout_s: float = CALL_TIMEOUT_S, what: str = "a command") -> Json:
        """Wait for the reply to `begin`."""
        reply = self._await(lambda: self._replies.pop(request, None), timeout_s, f"{what} is answered")
        if "error" in reply:
            error = reply["error"]
            raise ProgramError(error["type"], error["code"], error["message"], error.get("cause", ""))
        result: Json = reply["result"]
        return result

    def events(self, kind: str, consumer: str | None = None) -> list[Json]:
        """All events of a kind so far, of one consumer or of all."""
        with self._changed:
            found = [event for event in self._events if event["event"] == kind]
        return [event for event in found if consumer is None or event["consumer"] == consumer]

    def messages(self, consumer: str, count: int = 0, timeout_s: float = 30) -> list[Json]:
        """What a consumer got, once there are at least `count` of them."""

        def enough() -> list[Json] | None:
            found = self.events("message", consumer)
            return found if len(found) >= count else None

        if count == 0:
            return self.events("message", consumer)
        return wait_until(enough, timeout_s, f"{consumer} gets {count} messages")

    def kill(self) -> None:
        """End it without a good-bye to the broker."""
        self._process.kill()
        self._end()

    def close(self) -> None:
        """End it as the end of its standard input asks; it must say good-bye and exit with 0."""
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        status = self._end()
        assert status == 0, f"the program ended with {status}:\n{self.log_tail()}"

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None and self._process.poll() is None:
            self.close()
        else:
            self.kill()

    def _end(self) -> int:
        status = self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        return status

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            entry: Json = json.loads(line)
            with self._changed:
                if "reply" in entry:
                    self._replies[entry["reply"]] = entry
                else:
                    self._events.append(entry)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _await(self, found: Any, timeout_s: float, what: str) -> Any:
        with self._changed:
            answer = None

            def settled() -> bool:
                nonlocal answer
                answer = found()
                return bool(answer) or not self._reader.is_alive()

            self._changed.wait_for(settled, timeout_s)
        if not answer:
            ended = f" (it ended with {self._process.poll()})" if self._process.poll() is not None else ""
            raise AssertionError(f"not within {timeout_s:g} s: {what}{ended}\n{self.log_tail()}")
        return answer


def start_java(
    log: Path,
    defaults: Mapping[str, Any],
    binary_headers: bool = False,
    log_level: str = "WARN",
    options: Sequence[str] = (),
) -> Program:
    """Start the Java client's program, whose headers are JSON unless the client's own binary form is asked for."""
    command = ["java", *_JAVA_OPTIONS, *options, f"-Duser.home={log.parent}", f"-Dinterop.log.level={log_level}"]
    if binary_headers:
        command.append("-Drocketmq.serialize.type=ROCKETMQ")
    return Program([*command, "-cp", build_java().programs, "latermq.interop.Main", "session"], log, defaults)


def start_go(log: Path, defaults: Mapping[str, Any]) -> Program:
    """Start the Go client's program."""
    return Program([str(build_go())], log, defaults)


def start_client5(language: str, log: Path, endpoints: str) -> Program:
    """Start the program of a client of the 5.x protocol, all of which know the same commands."""
    command = {
        "java": lambda: [
            "java",
            *_JAVA_OPTIONS,
            f"-Duser.home={log.parent}",
            *_JAVA5_LOG,
            "-cp",
            build_java5(),
            _JAVA5,
        ],
        "go": lambda: [str(build_go5())],
        "node": build_node5,
        "python": build_python5,
    }[language]
    return Program(command(), log, {"endpoints": endpoints})
