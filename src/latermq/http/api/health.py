"""Health of the console for probes, without a token: whether it runs, and whether it reaches a broker."""

from http import HTTPStatus

import msgspec

from latermq.client import NoBroker
from latermq.http.brokers import Brokers
from latermq.http.endpoint import Answer, Call, Endpoint


class Health(msgspec.Struct):
    """The process serves requests."""

    status: str


class Readiness(msgspec.Struct):
    """A name server answers and knows brokers."""

    status: str
    brokers: int


class HealthApi:
    """Answers probes."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    @property
    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint("GET", "/healthz", self._health, "Say that the process runs", {HTTPStatus.OK: Health}, "health"),
            Endpoint(
                "GET",
                "/readyz",
                self._readiness,
                "Say whether a name server answers and knows a broker",
                {HTTPStatus.OK: Readiness},
                "health",
            ),
        ]

    async def _health(self, call: Call) -> Answer:
        return Answer(Health("ok"))

    async def _readiness(self, call: Call) -> Answer:
        brokers = await self._brokers.brokers()
        if not brokers:
            raise NoBroker(
                "no broker is registered", hint="Check that it is running and registers with this name server"
            )
        return Answer(Readiness("ready", len(brokers)))
