"""Metrics of the console process, in Prometheus' text format on its own port."""

from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import NamedTuple

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, PROCESS_COLLECTOR, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from latermq.config import Config
from latermq.http.endpoint import Answer, Call, Endpoint

TEXT = "text/plain"


class Figure(NamedTuple):
    """A metric: one number or, with a label, one for each statistic whose name begins with the given one."""

    name: str
    statistic: str
    meaning: str
    label: str = ""

    @property
    def kind(self) -> str:
        """A counter or a gauge, as its name says."""
        return "counter" if self.name.endswith("_total") else "gauge"


FIGURES = (
    Figure("latermq_http_connections", "connections", "Open connections"),
    Figure("latermq_http_streams", "streams", "Open event streams"),
    Figure("latermq_http_requests", "requests", "Requests in progress"),
    Figure("latermq_http_held_bytes", "held_bytes", "Bodies of the requests in progress, in bytes"),
    Figure("latermq_http_answers_total", "answers_", "Answered requests, by status", "status"),
    Figure("latermq_http_rate_refused_total", "refused_by_rate", "Requests refused because of http.rate"),
    Figure("latermq_http_timed_out_total", "timed_out", "Requests that exceeded http.request_timeout"),
    Figure("latermq_http_duration_milliseconds_total", "duration_ms", "Time spent on all answered requests"),
    Figure("latermq_http_timeline_starts_total", "timeline_starts", "Starts of the process that reads the timeline"),
    Figure("latermq_http_sign_ins_refused_total", "sign_ins_", "Refused attempts to sign in, by reason", "reason"),
    Figure("latermq_access_users", "access_users", "Users copied from a broker"),
    Figure(
        "latermq_access_copy_age_seconds", "access_copy_age_s", "Time since a broker confirmed the copy of the users"
    ),
    Figure("latermq_access_copy_failures_total", "access_copy_failures", "Failed attempts to refresh that copy"),
    Figure("latermq_audit_lost_total", "audit_lost", "Lines of the audit log that could not be written"),
    Figure("latermq_alerts_firing", "alerts_firing_", "Alerts that fire, by rule", "rule"),
    Figure("latermq_alerts_suppressed", "alerts_suppressed", "Conditions that alerts.max_alerts left out"),
    Figure("latermq_alert_messages_total", "alert_messages_", "Tries to send messages to webhooks", "result"),
)
LIMIT, LIMIT_USED = "latermq_limit", "latermq_limit_used"
LIMITS = {
    "http.max_connections": "connections",
    "http.max_requests": "requests",
    "http.max_streams": "streams",
    "http.max_held": "held_bytes",
    "http.max_rate_clients": "rate_clients",
    "http.timeline_memory": "timeline_memory",
    "http.max_timeline_reads": "timeline_reads",
    "http.max_jobs": "jobs",
    "http.max_running_jobs": "jobs_running",
    "http.max_user_jobs": "user_jobs",
    "http.max_job": "job_rows",
    "audit.max_waiting": "audit_waiting",
    "audit.max_counters": "audit_counters",
    "alerts.max_alerts": "alerts",
    "alerts.max_unsent": "alerts_unsent",
}


class ConsoleMetrics:
    """Answers GET /metrics."""

    def __init__(self, config: Config, address: Callable[[], str], statistics: Callable[[], Mapping[str, int]]) -> None:
        """`address` is available once the console listens."""
        self._config = config
        self._address = address
        self._statistics = statistics

    @property
    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "GET",
                "/metrics",
                self._answer,
                "Metrics of the console process",
                {HTTPStatus.OK: str},
                "health",
                answer_type=TEXT,
            )
        ]

    async def _answer(self, call: Call) -> Answer:
        reading = _Reading(self._config, self._address(), self._statistics())
        text = generate_latest(reading) + generate_latest(PROCESS_COLLECTOR)
        return Answer(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


class _Reading(Collector):
    """The values at one moment."""

    def __init__(self, config: Config, address: str, statistics: Mapping[str, int]) -> None:
        self._config = config
        self._labels = {"node_type": "console", "node_id": address}
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        for figure in FIGURES:
            if not figure.label:
                metric = self._family(figure.name, figure.meaning)
                metric.add_metric([*self._labels.values()], self._statistics[figure.statistic])
            else:
                metric = self._family(figure.name, figure.meaning, figure.label)
                for name, count in self._statistics.items():
                    if name.startswith(figure.statistic):
                        metric.add_metric([*self._labels.values(), name.removeprefix(figure.statistic)], count)
            yield metric
        bounds = self._family(LIMIT, "Configured limits", "setting")
        used = self._family(LIMIT_USED, "How much of each limit is used", "setting")
        for setting, statistic in LIMITS.items():
            section, _, key = setting.partition(".")
            bound = int(getattr(getattr(self._config, section), key))
            bounds.add_metric([*self._labels.values(), setting], bound)
            used.add_metric([*self._labels.values(), setting], self._statistics[statistic])
        yield bounds
        yield used

    def _family(self, name: str, meaning: str, *labels: str) -> CounterMetricFamily | GaugeMetricFamily:
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        return kind(name, meaning, labels=[*self._labels, *labels])
