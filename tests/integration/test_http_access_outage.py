"""A console that checks users while no broker answers: who may still sign in, and what its metrics say."""

from pathlib import Path

from latermq.access.inner_credentials import FILE_NAME
from latermq.http.process import ConsoleProcess
from tests.integration.brokers import NOBODY
from tests.interop.waiting import wait_until
from tests.support.console_users import USERS, client_of
from tests.support.http_console import HttpClient, running_console
from tests.support.http_sessions import TOKEN
from tests.support.metrics_scrape import ScrapedMetrics
from tests.support.serving import serving


def metrics_of(console: ConsoleProcess) -> ScrapedMetrics:
    reply = HttpClient(console.listener.port, {"Authorization": f"Bearer {TOKEN}"}).get("/metrics")
    assert reply.status == 200
    return ScrapedMetrics(reply.body)


def test_users_of_the_last_copy_sign_in_while_no_broker_answers_and_metrics_tell(tmp_path: Path) -> None:
    settings = [
        "access.enabled=true",
        "access.copy_every=100ms",
        f"access.inner_file={tmp_path / FILE_NAME}",
        f"audit.folder={tmp_path / 'console'}",
        f"http.token={TOKEN}",
        "http.broker_timeout=500ms",
    ]
    with serving(tmp_path, *USERS) as server, running_console(server.namesrv, *settings) as (console, _):
        root, guesser = client_of(console, "root"), client_of(console, "root", "guess")
        wait_until(lambda: root.get("/api/v1/topics").status == 200, 20, "the copy of the users")
        assert guesser.get("/api/v1/topics").status == 401
        figures = metrics_of(console)
        assert figures.value("latermq_access_users") == 1
        assert figures.value("latermq_access_copy_age_seconds") <= 2
        assert figures.values("latermq_http_sign_ins_refused_total", "reason") == {"wrong": 1, "too_many": 0}
        assert figures.kinds["latermq_access_copy_failures_total"] == "counter"
        failures = figures.value("latermq_access_copy_failures_total")
        server.stop()
        wait_until(
            lambda: metrics_of(console).value("latermq_access_copy_failures_total") > failures, 20, "a failed question"
        )
        wait_until(lambda: metrics_of(console).value("latermq_access_copy_age_seconds") >= 1, 20, "an older copy")
        assert root.get("/openapi.json").status == 200
        assert guesser.get("/openapi.json").status == 401
        assert root.get("/api/v1/brokers").status >= 500  # no name server


def test_without_a_first_copy_only_the_token_opens_the_console(tmp_path: Path) -> None:
    with serving(tmp_path, *USERS) as server:
        server.stop()
    settings = ["access.enabled=true", f"access.inner_file={tmp_path / FILE_NAME}", f"http.token={TOKEN}"]
    with running_console(NOBODY, *settings, "http.broker_timeout=300ms") as (console, holder):
        refused = client_of(console, "root").get("/openapi.json")
        assert (refused.status, "not known yet" in refused.json["detail"]) == (503, True)
        assert HttpClient(console.listener.port).get("/openapi.json").status == 401
        assert holder.get("/openapi.json").status == 200
        assert metrics_of(console).value("latermq_access_users") == 0
        assert HttpClient(console.listener.port).get("/healthz").status == 200
