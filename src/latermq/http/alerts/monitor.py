"""The alerts of a console: rounds of all rules over what the collector brings, and what becomes of their results."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import structlog

from latermq.client import Density
from latermq.clock import Clock
from latermq.config import AlertsConfig
from latermq.errors import LaterMQError
from latermq.http.alerts import rules
from latermq.http.alerts.alert import Alert, Finding, Findings
from latermq.http.alerts.engine import AlertEngine
from latermq.http.alerts.recent_lateness import RecentLateness
from latermq.http.alerts.signals import read_signals
from latermq.http.alerts.state_file import KeptState, StateFile
from latermq.http.alerts.webhooks import Webhooks
from latermq.model.pipeline_state import PipelineState

_log = structlog.get_logger(__name__)

Masters = Mapping[str, str]
Infos = Mapping[str, Mapping[str, str] | LaterMQError]  # of each broker: its counters, or why it did not answer
AskPipeline = Callable[[str], Awaitable[PipelineState]]


class _Seen(NamedTuple):
    address: str
    at_s: float


class AlertMonitor:
    """Examines each state that the console collects."""

    def __init__(
        self, config: AlertsConfig, clock: Clock, ask_pipeline: AskPipeline, address: Callable[[], str]
    ) -> None:
        """`ask_pipeline` asks a broker at an address. `address` is the console's own."""
        self._config = config
        self._clock = clock
        self._ask_pipeline = ask_pipeline
        self.engine = AlertEngine(config, clock)
        self._file = StateFile(config.state_file)
        self.webhooks = Webhooks(config, address, self._save)
        self._seen: dict[str, _Seen] = {}
        self._lateness: dict[str, RecentLateness] = {}
        self._pipelines: dict[str, PipelineState] = {}
        self._pipelines_s = float("-inf")
        self._asking: asyncio.Task[None] | None = None
        self.observed_ms = 0  # when the last round was; 0 before the first

    @property
    def must_watch(self) -> bool:
        """Whether the brokers have to be asked while no page is open."""
        return bool(self._config.webhook)

    def start(self) -> None:
        """Continue where the last process stopped, and begin to send messages."""
        kept = self._file.read()
        now_s = self._clock.monotonic_s()
        self._seen = {broker: _Seen("", now_s) for broker in kept.brokers}
        self.engine.restore(kept.firing)
        self.webhooks.restore(kept.unsent)
        self.webhooks.start()

    async def close(self) -> None:
        """Stop, and save what is not sent."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        await self.webhooks.close()
        await self._file.close()

    def observe(self, masters: Masters, infos: Infos, density: Density | None) -> None:
        """Apply all rules to a state of the cluster. Without a density, heavy seconds are not known."""
        found: list[Finding] = []
        examined = {(rules.CLUSTER_UNREACHABLE, "")}
        now_s = self._clock.monotonic_s()
        is_new = False
        for broker, info in infos.items():
            if isinstance(info, LaterMQError):
                continue
            is_new |= broker not in self._seen
            self._seen[broker] = _Seen(masters[broker], now_s)
            signals = read_signals(info)
            if signals is not None:
                lateness = self._lateness.setdefault(broker, RecentLateness(self._config.late_for / 1000))
                p99_ms = lateness.p99_ms(signals.lateness, now_s)
                found += rules.examine_broker(self._config, broker, signals, p99_ms)
                examined |= {(rule, broker) for rule in rules.OF_BROKERS}
        for broker, error in infos.items():  # registered, and never reached
            if isinstance(error, LaterMQError) and broker not in self._seen:
                is_new = True
                self._seen[broker] = _Seen(masters[broker], now_s)
        away_s = {broker: now_s - seen.at_s for broker, seen in self._seen.items() if not _answers(infos, broker)}
        found += rules.examine_absence(self._config, away_s)
        examined |= {(rules.BROKER_OFFLINE, broker) for broker in self._seen}
        for broker, state in self._pipelines.items():
            found += rules.examine_pipeline(self._config, broker, state)
            examined.add((rules.WINDOW_OVERDUE, broker))
        if density is not None:
            found += rules.examine_density(self._config, density)
            examined.add((rules.HEAVY_SECOND, ""))
        self._finish(Findings(found, examined), is_new)
        self._forget(away_s)
        self._ask_pipelines(now_s)

    def observe_failure(self, error: LaterMQError) -> None:
        """The name servers do not answer, or know no broker: nothing is known about the brokers."""
        self._finish(Findings([rules.unreachable(self._config, error.message)], set()), False)

    def firing_by_rule(self) -> dict[str, int]:
        """Return the number of firing alerts of each rule."""
        counts = dict.fromkeys(rules.RULES, 0)
        for alert in self.engine.firing():
            counts[alert.rule] = counts.get(alert.rule, 0) + 1
        return counts

    def _finish(self, findings: Findings, must_save: bool) -> None:
        self.observed_ms = self._clock.now_ms()
        self._tell(self.engine.observe(findings))
        if must_save:
            self._save()

    def _tell(self, changes: list[Alert]) -> None:
        for alert in changes:
            log = _log.warning if alert.state == "firing" else _log.info
            log(f"alert {alert.state}", rule=alert.rule, text=alert.text, of=alert.subject)
        if changes:
            self.webhooks.add(changes)

    def _forget(self, away_s: Mapping[str, float]) -> None:
        """Stop expecting brokers that have been away for long."""
        for broker, seconds in away_s.items():
            if seconds > self._config.forget_broker / 1000:
                del self._seen[broker]
                self._lateness.pop(broker, None)
                self._pipelines.pop(broker, None)
                self._tell(self.engine.end_all_of(broker))
                self._save()

    def _ask_pipelines(self, now_s: float) -> None:
        """Ask the brokers for their windows, less often than for their counters, and without waiting for it here."""
        is_asking = self._asking is not None and not self._asking.done()
        if not is_asking and now_s - self._pipelines_s >= self._config.every / 1000:
            self._pipelines_s = now_s
            self._asking = asyncio.create_task(self._refresh_pipelines())

    async def _refresh_pipelines(self) -> None:
        found: dict[str, PipelineState] = {}
        for broker, seen in list(self._seen.items()):
            if not seen.address:  # known from before a restart, and not seen since
                continue
            try:
                found[broker] = await self._ask_pipeline(seen.address)
            except LaterMQError:
                continue  # unknown until it answers
            except Exception:
                _log.exception("a broker's windows cannot be examined", broker=broker)
        self._pipelines = found

    def _save(self) -> None:
        self._file.write(KeptState(self.engine.firing(), self.webhooks.waiting(), sorted(self._seen)))


def _answers(infos: Infos, broker: str) -> bool:
    return broker in infos and not isinstance(infos[broker], LaterMQError)
