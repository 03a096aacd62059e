"""Calls about clients: heartbeats, and the goodbye of a client that stops."""

from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.checked_names import check_group_name
from latermq.protocol.messaging.refusals import CallRefused
from latermq.protocol.messaging.resources import full_name
from latermq.server.proxy.calls.call_table import CallEndpoint, Exchange, on_group_if_named
from latermq.server.proxy.clients.clients import Clients
from latermq.server.proxy.statuses import OK
from latermq.server.remoting.access import SUB

_CONSUMERS = (pb.PUSH_CONSUMER, pb.SIMPLE_CONSUMER, pb.PULL_CONSUMER)


class ClientCalls:
    """Heartbeat and NotifyClientTermination."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    @property
    def endpoints(self) -> list[CallEndpoint]:
        group = (on_group_if_named("group", SUB),)
        return [
            CallEndpoint("Heartbeat", pb.HeartbeatRequest, pb.HeartbeatResponse, self._heartbeat, group),
            CallEndpoint(
                "NotifyClientTermination",
                pb.NotifyClientTerminationRequest,
                pb.NotifyClientTerminationResponse,
                self._terminate,
                group,
            ),
        ]

    def _heartbeat(self, exchange: Exchange, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        """Note that a client is alive, also one whose settings are unknown, as after a restart of the proxy."""
        group = full_name(request.group)
        kind = request.client_type
        if kind in _CONSUMERS:
            check_group_name(group)
            self._clients.see(exchange.client_id, group, exchange.peer)
        elif kind == pb.PRODUCER:
            self._clients.see(exchange.client_id, "", exchange.peer)
        else:
            raise CallRefused(pb.UNRECOGNIZED_CLIENT_TYPE, f"client type {kind} is not supported")
        return pb.HeartbeatResponse(status=OK)

    def _terminate(
        self, exchange: Exchange, request: pb.NotifyClientTerminationRequest
    ) -> pb.NotifyClientTerminationResponse:
        """Forget a client, as a consumer of its group and as a producer: some producers send a group too."""
        group = full_name(request.group)
        if group:
            check_group_name(group)
            self._clients.terminate(exchange.client_id, group, exchange.peer)
        self._clients.terminate(exchange.client_id, "", exchange.peer)
        return pb.NotifyClientTerminationResponse(status=OK)
