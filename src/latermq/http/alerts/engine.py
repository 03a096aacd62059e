"""The states of alerts: when a condition becomes one, and when it ends, so that none flaps."""

from typing import NamedTuple

import msgspec

from latermq.clock import Clock
from latermq.config import AlertsConfig
from latermq.http.alerts.alert import Alert, Finding, Findings
from latermq.http.timer_request import time_text

_MIN_GAP_S = 30.0  # after a longer time without a round, nothing is known about the time between


class _Firing(NamedTuple):
    alert: Alert
    clear_since_s: float | None  # since when the condition does not hold


class _Resolved(NamedTuple):
    alert: Alert
    at_s: float


class AlertEngine:
    """Turns findings into alerts. A condition must hold for its time to become one, and be away to end it."""

    def __init__(self, config: AlertsConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._max_gap_s = max(_MIN_GAP_S, 3 * config.every / 1000)
        self._pending: dict[str, float] = {}  # since when a condition holds that is no alert yet
        self._firing: dict[str, _Firing] = {}
        self._resolved: dict[str, _Resolved] = {}
        self._observed_s: float | None = None
        self.suppressed = 0  # conditions of the last round that alerts.max_alerts left out

    def __len__(self) -> int:
        return len(self._firing) + len(self._resolved)

    def restore(self, alerts: list[Alert]) -> None:
        """Continue with the alerts that fired before a restart. They end if their conditions do not hold any more."""
        self._firing = {alert.id: _Firing(alert, None) for alert in alerts[: self._config.max_alerts]}

    def firing(self) -> list[Alert]:
        """Return the alerts that fire, the oldest first."""
        return sorted((one.alert for one in self._firing.values()), key=lambda alert: (alert.since_ms, alert.id))

    def resolved(self) -> list[Alert]:
        """Return the alerts that ended lately, the newest first."""
        return [one.alert for one in reversed(self._resolved.values())]

    def observe(self, findings: Findings) -> list[Alert]:
        """Apply one round of all rules. Return the alerts that changed their state."""
        now_s = self._clock.monotonic_s()
        if self._observed_s is not None and now_s - self._observed_s > self._max_gap_s:
            # Conditions have to hold, or be away, for their whole time again.
            self._pending.clear()
            self._firing = {key: one._replace(clear_since_s=None) for key, one in self._firing.items()}
        self._observed_s = now_s
        found = self._within_limit(findings.found)
        changes = [self._start(key, one) for key, one in found.items() if self._becomes_alert(key, one, now_s)]
        self._pending = {key: since_s for key, since_s in self._pending.items() if self._is_pending(key, found)}
        changes += self._resolve(found, findings.examined, now_s)
        self._forget_resolved(now_s)
        return changes

    def end_all_of(self, broker: str) -> list[Alert]:
        """End the alerts of a broker that is no longer expected."""
        gone = [key for key, one in self._firing.items() if one.alert.subject.get("broker") == broker]
        return [self._end(key) for key in gone]

    def _within_limit(self, found: list[Finding]) -> dict[str, Finding]:
        """Leave out conditions above the limit, but none that already is an alert."""
        by_id = {finding.id: finding for finding in found}
        room = self._config.max_alerts - len(self._firing)
        fresh = [key for key, finding in by_id.items() if key not in self._firing and finding.is_bad]
        left_out = fresh[room:] if room > 0 else fresh
        for key in left_out:
            del by_id[key]
        self.suppressed = len(left_out)
        return by_id

    def _becomes_alert(self, key: str, finding: Finding, now_s: float) -> bool:
        firing = self._firing.get(key)
        if firing is not None:
            self._firing[key] = _Firing(_alert(finding, firing.alert.since_ms), None)
            return False
        return finding.is_bad and now_s - self._pending.setdefault(key, now_s) >= finding.for_s

    def _is_pending(self, key: str, found: dict[str, Finding]) -> bool:
        return key in found and found[key].is_bad and key not in self._firing

    def _start(self, key: str, finding: Finding) -> Alert:
        alert = _alert(finding, self._clock.now_ms())
        self._firing[key] = _Firing(alert, None)
        self._resolved.pop(key, None)
        return alert

    def _resolve(self, found: dict[str, Finding], examined: set[tuple[str, str]], now_s: float) -> list[Alert]:
        ended = []
        for key, one in list(self._firing.items()):
            scope = (one.alert.rule, one.alert.subject.get("broker", ""))
            if key in found or scope not in examined:
                continue
            clear_since_s = now_s if one.clear_since_s is None else one.clear_since_s
            self._firing[key] = one._replace(clear_since_s=clear_since_s)
            if now_s - clear_since_s >= self._config.resolve_after / 1000:
                ended.append(self._end(key))
        return ended

    def _end(self, key: str) -> Alert:
        now_ms = self._clock.now_ms()
        alert = msgspec.structs.replace(
            self._firing.pop(key).alert, state="resolved", since=time_text(now_ms), since_ms=now_ms
        )
        self._resolved[key] = _Resolved(alert, self._clock.monotonic_s())
        return alert

    def _forget_resolved(self, now_s: float) -> None:
        for key, one in list(self._resolved.items()):
            if now_s - one.at_s < self._config.keep_resolved / 1000 and len(self) <= self._config.max_alerts:
                break
            del self._resolved[key]


def _alert(finding: Finding, since_ms: int) -> Alert:
    return Alert(
        id=finding.id,
        rule=finding.rule,
        state="firing",
        severity="critical" if finding.is_critical else "warning",
        since=time_text(since_ms),
        since_ms=since_ms,
        started_ms=since_ms,
        subject=finding.subject,
        value=finding.value,
        threshold=finding.threshold,
        text=finding.text,
        hint=finding.hint,
    )
