"""Webhook messages to a real HTTP server that is slow, fails, hangs, redirects, or sends what is not HTTP."""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest
import structlog
import uvloop

from latermq.config import load_config
from latermq.http.alerts import webhooks
from latermq.http.alerts.alert import Alert
from latermq.http.alerts.webhooks import Webhooks, signature_headers
from latermq.tls.certificates import self_signed
from tests.support.webhook_receiver import Receiver, answer, receiving, send

SECRET = "0123456789abcdef-secret-key"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setattr(webhooks, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(webhooks, "MAX_PAUSE_S", 0.05)
    with receiving() as running:
        yield running


def alert(number: int) -> Alert:
    return Alert(str(number), "late", "firing", "warning", "", number, number, {"broker": "a"}, 5.0, 1.0, "late", "")


def run(
    scenario: Callable[[Webhooks], Coroutine[None, None, None]], urls: str, *settings: str
) -> tuple[dict[str, int], str]:
    """Run a scenario with webhooks. Return what became of the messages, and the log."""
    options = [f"alerts.webhook={urls}", "alerts.webhook_timeout=500ms", *settings]
    config = load_config(settings=options, environment={}).alerts

    async def main() -> dict[str, int]:
        hooks = Webhooks(config, lambda: "127.0.0.1:8080", lambda: None)
        hooks.start()
        try:
            await scenario(hooks)
        finally:
            await hooks.close()
        return dict(hooks.results)

    with structlog.testing.capture_logs() as logs:
        results = uvloop.run(main())  # as in production
    return results, json.dumps(logs)


async def until(happened: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.005)


def finished(hooks: Webhooks, count: int) -> bool:
    return hooks.results["delivered"] + hooks.results["failed"] >= count


def send_all(count: int) -> Callable[[Webhooks], Coroutine[None, None, None]]:
    async def scenario(hooks: Webhooks) -> None:
        hooks.add(alert(number) for number in range(count))
        await until(lambda: finished(hooks, count))

    return scenario


def test_a_message_is_json_and_signed_so_that_its_receiver_can_check_it(receiver: Receiver) -> None:
    results, log = run(send_all(1), receiver.url, f"alerts.webhook_secret={SECRET}")
    assert (results["delivered"], log) == (1, "[]")
    [request] = receiver.requests
    assert (request.method, request.path) == ("POST", "/hooks/secret-path?key=secret-query")
    assert request.headers["content-type"] == "application/json"
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert request.json["version"] == 1
    assert request.json["text"] == "[WARNING] late"
    assert request.json["console"] == "127.0.0.1:8080"
    assert request.json["alert"]["subject"] == {"broker": "a"}
    sent_at = request.headers["webhook-timestamp"]
    assert abs(int(sent_at) - time.time()) < 60
    signed = f"{request.headers['webhook-id']}.{sent_at}.".encode() + request.body
    digest = base64.b64encode(hmac.digest(SECRET.encode(), signed, hashlib.sha256)).decode()
    assert request.headers["webhook-signature"] == f"v1,{digest}"


def test_without_a_secret_there_is_no_signature(receiver: Receiver) -> None:
    run(send_all(1), receiver.url)
    assert "webhook-signature" not in receiver.requests[0].headers
    assert receiver.requests[0].headers["webhook-id"] == "0-firing-0"


def test_a_failing_receiver_gets_the_same_message_again_and_then_the_next(receiver: Receiver) -> None:
    receiver.script = [answer(500), answer(503), answer(429), send(b""), send(b"not HTTP at all\r\n\r\n"), answer(204)]
    results, log = run(send_all(2), receiver.url)
    assert (results["delivered"], results["retried"], results["failed"]) == (2, 5, 0)
    assert [request.headers["webhook-id"][0] for request in receiver.requests] == ["0"] * 6 + ["1"]
    assert "the answer is 503" in log
    assert f"http://127.0.0.1:{receiver.port}" in log
    assert "secret" not in log


def test_a_receiver_that_hangs_delays_no_other_and_is_given_up(receiver: Receiver) -> None:
    with receiving() as good:
        receiver.script = [receiver.hang] * 100

        async def scenario(hooks: Webhooks) -> None:
            hooks.add(alert(number) for number in range(3))
            begun_s = time.monotonic()
            await until(lambda: len(good.requests) == 3)
            assert time.monotonic() - begun_s < 0.4  # before the first time-out of the other
            await until(lambda: hooks.results["failed"] == 1)

        results, log = run(
            scenario, f"{receiver.url};{good.url}", "alerts.webhook_timeout=600ms", "alerts.retry_for=1500ms"
        )
    assert results["delivered"] == 3
    assert results["retried"] >= 1
    assert "no answer within 0.6 s" in log
    assert "secret" not in log


def test_a_slow_receiver_gets_every_message_in_order_while_the_loop_goes_on(receiver: Receiver) -> None:
    def slow(connection: object) -> None:
        receiver.may_end.wait(0.15)
        answer(200)(connection)  # type: ignore[arg-type]

    receiver.script = [slow] * 3

    async def scenario(hooks: Webhooks) -> None:
        hooks.add(alert(number) for number in range(3))
        longest_s = 0.0
        while not finished(hooks, 3):
            begun_s = time.monotonic()
            await asyncio.sleep(0.001)
            longest_s = max(longest_s, time.monotonic() - begun_s)
        assert longest_s < 0.14

    results, _ = run(scenario, receiver.url)
    assert results["delivered"] == 3
    assert [request.headers["webhook-id"][0] for request in receiver.requests] == ["0", "1", "2"]


def test_only_redirects_to_the_same_host_that_keep_the_method_are_followed(receiver: Receiver) -> None:
    with receiving() as other:
        elsewhere = f"Location: {other.url}"
        receiver.script = [
            answer(307, "Location: /new"),
            answer(308, f"Location: http://127.0.0.1:{receiver.port}/newer"),
            answer(200),
            answer(307, elsewhere),
            answer(302, "Location: /get-it"),
            answer(308, f"Location: //localhost:{other.port}/"),
            answer(307, "Location: https://[broken"),
            answer(307),
        ]
        results, log = run(send_all(6), receiver.url)
        assert other.requests == []
    paths = [request.path for request in receiver.requests]
    assert paths[1:3] == ["/new", "/newer"]
    assert {request.method for request in receiver.requests} == {"POST"}
    assert results["delivered"] >= 1
    assert "a redirect to another host, which is not followed" in log
    assert "a redirect that is not followed" in log
    assert "secret" not in log


def test_a_receiver_that_redirects_in_circles_is_given_up(receiver: Receiver) -> None:
    receiver.script = [answer(307, "Location: /again")] * 4
    results, log = run(send_all(2), receiver.url)
    assert (results["failed"], results["delivered"]) == (1, 1)
    assert "more than 3 redirects" in log


@pytest.mark.parametrize("status", [400, 401, 404, 410])
def test_a_refused_message_is_not_sent_again(receiver: Receiver, status: int) -> None:
    receiver.script = [answer(status)]
    results, log = run(send_all(2), receiver.url)
    assert (results["failed"], results["retried"], results["delivered"]) == (1, 0, 1)
    assert f"the answer is {status}" in log
    assert len(receiver.requests) == 2


def test_what_a_receiver_sends_is_bounded(receiver: Receiver) -> None:
    endless = send(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000)
    unread = answer(200, body=b"x" * (8 << 20))
    receiver.script = [endless, send(b"HTTP/1.1 103 X\r\n\r\n" * 3 + b"HTTP/1.1 200 OK\r\n\r\n"), unread]
    results, _ = run(send_all(2), receiver.url)
    assert (results["delivered"], results["retried"]) == (2, 1)


def test_a_port_without_a_server_and_one_without_tls_are_tried_again() -> None:
    with receiving() as gone:
        pass

    async def scenario(hooks: Webhooks) -> None:
        hooks.add([alert(1)])
        await until(lambda: hooks.results["failed"] == 2)

    with receiving() as plain:
        url = f"http://127.0.0.1:{gone.port}/;https://127.0.0.1:{plain.port}/"
        results, log = run(scenario, url, "alerts.retry_for=200ms")
    assert results["delivered"] == 0
    assert "Connection refused" in log


def test_the_certificate_and_the_host_name_of_a_receiver_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = self_signed(tmp_path, time.time_ns() // 1_000_000)  # for localhost
    with receiving(files) as secure:
        url = f"https://localhost:{secure.port}/hook"
        results, log = run(send_all(1), url, "alerts.retry_for=1ms")
        assert (results["failed"], secure.requests) == (1, [])
        assert "TLS: CERTIFICATE_VERIFY_FAILED" in log
        monkeypatch.setenv("SSL_CERT_FILE", str(files.certificate))
        results, log = run(send_all(1), url)
        assert (results["delivered"], len(secure.requests)) == (1, 1), log
        results, log = run(send_all(1), url.replace("localhost", "127.0.0.1"), "alerts.retry_for=1ms")
        assert (results["failed"], len(secure.requests)) == (1, 1)


def test_the_queue_is_bounded_and_drops_the_oldest(receiver: Receiver) -> None:
    receiver.script = [receiver.hang]

    async def scenario(hooks: Webhooks) -> None:
        hooks.add([alert(0)])
        await until(lambda: len(receiver.requests) == 1)
        hooks.add(alert(number) for number in range(1, 10))
        assert hooks.unsent == 4
        [waiting] = hooks.waiting().values()
        assert [one.id for one in waiting] == ["6", "7", "8", "9"]
        await until(lambda: hooks.results["delivered"] == 4)

    results, log = run(scenario, receiver.url, "alerts.max_unsent=4")
    assert results["dropped"] == 6
    assert log.count("alerts.max_unsent") == 1


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """With the example of its specification, so that its libraries verify the messages."""
    headers = signature_headers(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
