"""The asyncio Python SDK for RocketMQ's remoting protocol. `latermq.client.blocking` is its blocking counterpart."""

from latermq.client.admin import Admin
from latermq.client.consumer.app import App
from latermq.client.consumer.handler_runner import Reject
from latermq.client.consumer.pull import PullResult
from latermq.client.consumer.pull_consumer import PullConsumer
from latermq.client.consumer.push_consumer import PushConsumer
from latermq.client.consumer.subscription import Sql
from latermq.client.producer.outgoing import OutgoingMessage, SendResult
from latermq.client.producer.producer import Producer
from latermq.client.scheduling.scheduled_timer import ScheduledTimer
from latermq.client.session.credentials import Credentials
from latermq.client.session.failures import (
    BrokerFailed,
    ClientClosed,
    ConnectionLost,
    NoBroker,
    NoNameServer,
    RequestTimedOut,
    UnknownResponse,
)
from latermq.message.compression import UnreadableBody
from latermq.message.record import Message
from latermq.model.timers import Density, Outcome, PendingTimer, Verdict
from latermq.protocol.remoting.queues import MessageQueue
from latermq.tls.client import ClientTls

__all__ = [
    "Admin",
    "App",
    "BrokerFailed",
    "ClientClosed",
    "ClientTls",
    "ConnectionLost",
    "Credentials",
    "Density",
    "Message",
    "MessageQueue",
    "NoBroker",
    "NoNameServer",
    "Outcome",
    "OutgoingMessage",
    "PendingTimer",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PushConsumer",
    "Reject",
    "RequestTimedOut",
    "ScheduledTimer",
    "SendResult",
    "Sql",
    "UnknownResponse",
    "UnreadableBody",
    "Verdict",
]
