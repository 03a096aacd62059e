"""Checks of transactions: passes a broker's question about a half message to a client that publishes its topic."""

import structlog

from latermq.errors import LaterMQError
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.messages import message_of
from latermq.protocol.messaging.resources import full_name
from latermq.protocol.remoting.frames import Command
from latermq.server.proxy.clients.clients import Clients

_log = structlog.get_logger(__name__)


class TransactionChecks:
    """Serves CHECK_TRANSACTION_STATE. A check that reaches no client is repeated by the broker."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._passed = 0
        self._dropped = 0

    def check(self, broker: str, command: Command) -> None:
        """Pass a check to a client. The request needs no response."""
        try:
            message = message_of(command.body)
            fields = command.text_fields()
        except LaterMQError as error:
            _log.warning("the check of a transaction cannot be decoded", broker=broker, reason=error.remark)
            self._dropped += 1
            return
        stream = self._clients.publisher(full_name(message.topic))
        if stream is None:
            self._dropped += 1
            return
        self._passed += 1
        transaction_id = fields.get("transactionId") or message.system_properties.message_id
        stream.send(
            pb.TelemetryCommand(
                recover_orphaned_transaction_command=pb.RecoverOrphanedTransactionCommand(
                    message=message, transaction_id=transaction_id
                )
            )
        )

    def statistics(self) -> dict[str, int]:
        return {"checks_passed": self._passed, "checks_dropped": self._dropped}
