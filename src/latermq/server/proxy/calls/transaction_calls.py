"""EndTransaction: a producer commits or rolls back, through any proxy.

The half message is found by its unique key. It is at one of the brokers of its topic, and all of them are asked: a
proxy keeps no table of the transactions that began through it. If none of them knows it, the other brokers are asked: a
broker that is down is not in the route, but its transactions are not lost.

A producer that gets no answer sends its message again, so several brokers may have the same half. One of them commits
it, and the others roll it back:

1. All brokers say how the transaction stands.
2. If none has committed it, the first that has it open does so, in the order of their names.
3. Where it is still open, it is rolled back, without waiting for the result.

A crash before step 2 leaves it open everywhere, and after it the message is there. A half that stays open is checked by
its broker, and the producer's answer goes through the same steps. A broker that is away cannot say that it has
committed the message: then another one commits it again, because it may be the only one that has it.
"""

from collections.abc import Callable
from functools import partial

from latermq.client.session.failures import NoBroker
from latermq.errors import LaterMQError
from latermq.model.transaction import COMMITTED, OPEN
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.checked_names import check_topic_name
from latermq.protocol.messaging.refusals import CallRefused
from latermq.protocol.messaging.resources import full_name
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command
from latermq.server.proxy.brokers.broker_link import BrokerLink, error_of
from latermq.server.proxy.brokers.topics import TopicInfo, Topics
from latermq.server.proxy.calls.call_table import CallEndpoint, Exchange, on_topic
from latermq.server.proxy.statuses import OK
from latermq.server.remoting.access import PUB

_COMMIT, _ROLL_BACK, _ASK = "8", "12", "0"  # the values of `commitOrRollback`
_DECISIONS: dict[int, str] = {pb.COMMIT: _COMMIT, pb.ROLLBACK: _ROLL_BACK}
_ENDED = "ended"  # as requested
MAX_TRANSACTION_ID_CHARS = 1_000


class TransactionCalls:
    """The call that ends transactions."""

    def __init__(self, link: BrokerLink, topics: Topics) -> None:
        self._link = link
        self._topics = topics

    @property
    def endpoints(self) -> list[CallEndpoint]:
        return [
            CallEndpoint(
                "EndTransaction",
                pb.EndTransactionRequest,
                pb.EndTransactionResponse,
                self._end,
                (on_topic("topic", PUB),),
            )
        ]

    def _end(self, exchange: Exchange, request: pb.EndTransactionRequest) -> None:
        topic = full_name(request.topic)
        check_topic_name(topic)
        key = request.transaction_id
        if not key or key.isspace() or len(key) > MAX_TRANSACTION_ID_CHARS:
            raise CallRefused(pb.INVALID_TRANSACTION_ID, "the transaction id is blank or too long")
        decision = _DECISIONS.get(request.resolution)
        if decision is None:
            raise CallRefused(pb.BAD_REQUEST, "the resolution is neither COMMIT nor ROLLBACK")
        is_check = request.source == pb.SOURCE_SERVER_CHECK
        fields = {
            "topic": topic,
            "producerGroup": topic,
            "commitOrRollback": decision,
            "fromTransactionCheck": "true" if is_check else "false",
            "msgId": request.message_id[:MAX_TRANSACTION_ID_CHARS],
            "transactionId": key,
        }

        def then(found: TopicInfo | LaterMQError) -> None:
            if isinstance(found, LaterMQError):
                exchange.fail(found)
                return
            brokers = set(found.route.addresses)
            if is_check:
                # A check comes late. The half may be a second one of a broker that has just returned to the route, or
                # the first one of a broker that has left it.
                brokers.update(self._link.brokers)
            if brokers:
                _End(self._link, exchange, fields).begin(sorted(brokers))
            else:
                exchange.fail(NoBroker("the topic has no broker", hint="Try again in a few seconds"))

        self._topics.get(topic, then)


class _End:
    """One call."""

    __slots__ = ("_asked", "_error", "_exchange", "_fields", "_is_known", "_link", "_missing", "_states")

    def __init__(self, link: BrokerLink, exchange: Exchange, fields: dict[str, str]) -> None:
        self._link = link
        self._exchange = exchange
        self._fields = fields
        self._asked: list[str] = []
        self._missing = 0  # answers
        self._states: dict[str, str] = {}  # how the transaction stands, by broker
        self._error: LaterMQError | None = None
        self._is_known = False  # or may be

    def begin(self, brokers: list[str]) -> None:
        """Ask brokers, and continue when all have answered."""
        self._asked += brokers
        self._missing = len(brokers)
        is_direct = self._fields["commitOrRollback"] == _ROLL_BACK or len(self._asked) == 1
        for broker in brokers:
            if is_direct:
                self._request(broker, self._fields, partial(self._on_end, broker))
            else:
                self._request(broker, self._fields | {"commitOrRollback": _ASK}, partial(self._on_state, broker))

    def _request(
        self, broker: str, fields: dict[str, str], on_response: Callable[[Command | LaterMQError], None]
    ) -> None:
        self._link.request(broker, Request.END_TRANSACTION, fields, on_response)

    # Brokers that end it at once: all of them if it is a rollback, or the only one

    def _on_end(self, broker: str, response: Command | LaterMQError) -> None:
        if isinstance(response, Command) and not response.code:
            self._states[broker] = _ENDED
        else:
            self._note(response)
        self._missing -= 1
        if self._missing:
            return
        if _ENDED in self._states.values() and not isinstance(self._error, _EndedOtherwise):
            self._exchange.reply(pb.EndTransactionResponse(status=OK))
        else:
            self._give_up()

    # A commit at one of several brokers

    def _on_state(self, broker: str, response: Command | LaterMQError) -> None:
        state = ""
        if isinstance(response, Command) and not response.code:
            state = response.text_fields().get("state", "")
        else:
            self._note(response)
        if state:
            self._states[broker] = state
        self._missing -= 1
        if not self._missing:
            self._choose()

    def _choose(self) -> None:
        held = sorted(broker for broker, state in self._states.items() if state == OPEN)
        if COMMITTED in self._states.values():
            self._committed(held)
        elif held:
            self._request(held[0], self._fields, partial(self._on_commit, held[1:]))
        else:
            # Rolled back or given up; unless a broker did not answer, which may have committed it.
            if self._states and not self._is_known:
                self._is_known = True
                self._error = _EndedOtherwise(f"the transaction cannot commit, it was {min(self._states.values())}")
            self._give_up()

    def _on_commit(self, others: list[str], response: Command | LaterMQError) -> None:
        if isinstance(response, Command) and not response.code:
            self._committed(others)
        else:
            # Perhaps it has been carried out. The next broker must not commit too, before that is known.
            self._note(response)
            self._fail()

    def _committed(self, held: list[str]) -> None:
        for broker in held:
            self._request(broker, self._fields | {"commitOrRollback": _ROLL_BACK}, lambda response: None)
        self._exchange.reply(pb.EndTransactionResponse(status=OK))

    # Errors

    def _give_up(self) -> None:
        """Ask further brokers if none of these knows the transaction."""
        others = [] if self._is_known else sorted(set(self._link.known_brokers).difference(self._asked))
        if others:
            self.begin(others)
        else:
            self._fail()

    def _fail(self) -> None:
        if self._error is None:
            self._error = CallRefused(pb.INVALID_TRANSACTION_ID, "no broker of the topic knows the transaction")
        self._exchange.fail(self._error)

    def _note(self, response: Command | LaterMQError) -> None:
        """Keep the error that says most. A broker that does not know the transaction says least."""
        if isinstance(response, LaterMQError) or response.code != Response.SYSTEM_ERROR:
            self._is_known = True
        if isinstance(self._error, _EndedOtherwise):
            return
        if isinstance(response, LaterMQError):
            self._error = response
        elif response.code == Response.ILLEGAL_OPERATION:
            self._error = _EndedOtherwise(response.remark or "the transaction has ended")
        elif response.code != Response.SYSTEM_ERROR:
            self._error = error_of(response)
        elif self._error is None:
            # The code that RocketMQ's brokers use for halves that they do not find.
            self._error = CallRefused(
                pb.INVALID_TRANSACTION_ID, response.remark or "no broker of the topic knows the transaction"
            )


class _EndedOtherwise(CallRefused):
    """The transaction has ended in the other way."""

    def __init__(self, message: str) -> None:
        super().__init__(pb.INVALID_TRANSACTION_ID, message)
