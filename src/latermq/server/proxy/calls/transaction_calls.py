"""EndTransaction: a producer commits or rolls back, through any proxy.

The half message is found by its unique key. It is at one of the brokers of its topic, and all of them are asked: a
proxy keeps no table of the transactions that began through it. If none of them knows it, the other brokers are asked: a
broker that is down is not in the route, but its transactions are not lost.
"""

from collections.abc import Callable

from latermq.client.session.failures import NoBroker
from latermq.errors import LaterMQError
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

_DECISIONS: dict[int, str] = {pb.COMMIT: "8", pb.ROLLBACK: "12"}
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
        fields = {
            "topic": topic,
            "producerGroup": topic,
            "commitOrRollback": decision,
            "fromTransactionCheck": "true" if request.source == pb.SOURCE_SERVER_CHECK else "false",
            "msgId": request.message_id[:MAX_TRANSACTION_ID_CHARS],
            "transactionId": key,
        }

        def then(found: TopicInfo | LaterMQError) -> None:
            if isinstance(found, LaterMQError):
                exchange.fail(found)
            else:
                self._ask(exchange, fields, sorted(found.route.addresses))

        self._topics.get(topic, then)

    def _ask(self, exchange: Exchange, fields: dict[str, str], brokers: list[str]) -> None:
        if not brokers:
            exchange.fail(NoBroker("the topic has no broker", hint="Try again in a few seconds"))
            return

        def ask_others() -> bool:
            others = [broker for broker in self._link.known_brokers if broker not in brokers]
            self._request(fields, others, _Answers(exchange, len(others), lambda: False))
            return bool(others)

        self._request(fields, brokers, _Answers(exchange, len(brokers), ask_others))

    def _request(self, fields: dict[str, str], brokers: list[str], answers: "_Answers") -> None:
        for broker in brokers:
            self._link.request(broker, Request.END_TRANSACTION, fields, answers.put)


class _Answers:
    """The answers of all brokers: one knows the transaction, the others do not."""

    __slots__ = ("_ask_others", "_error", "_exchange", "_is_known", "_missing")

    def __init__(self, exchange: Exchange, brokers: int, ask_others: Callable[[], bool]) -> None:
        """`ask_others` asks further brokers if none of these knows the transaction. Returns whether there are any."""
        self._exchange = exchange
        self._missing = brokers
        self._ask_others = ask_others
        self._error: LaterMQError | None = None
        self._is_known = False  # or may be

    def put(self, response: Command | LaterMQError) -> None:
        self._missing -= 1
        if not isinstance(response, LaterMQError) and not response.code:
            self._missing = -1  # the answers of the others do not matter any more
            self._exchange.reply(pb.EndTransactionResponse(status=OK))
            return
        self._note(response)
        if not self._missing and (self._is_known or not self._ask_others()):
            assert self._error is not None, "each answer is a success or an error"
            self._exchange.fail(self._error)

    def _note(self, response: Command | LaterMQError) -> None:
        """Keep the error that says most. A broker that does not know the transaction says least."""
        if isinstance(response, LaterMQError) or response.code != Response.SYSTEM_ERROR:
            self._is_known = True
        if isinstance(response, LaterMQError):
            self._error = response
        elif response.code == Response.ILLEGAL_OPERATION:  # it has ended in the other way
            self._error = CallRefused(pb.INVALID_TRANSACTION_ID, response.remark or "the transaction has ended")
        elif response.code != Response.SYSTEM_ERROR:
            self._error = error_of(response)
        elif self._error is None:
            # The code that RocketMQ's brokers use for halves that they do not find.
            self._error = CallRefused(
                pb.INVALID_TRANSACTION_ID, response.remark or "no broker of the topic knows the transaction"
            )
