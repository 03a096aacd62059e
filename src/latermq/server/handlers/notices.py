"""Frames of unsolicited notifications to clients."""

from latermq.broker.notifications import Notice, Notices
from latermq.broker.pop.waiting_pops import WaitingPops
from latermq.group.subscriptions import SubscriptionGroups
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import FLAG_ONEWAY, encode_frame
from latermq.protocol.remoting.offsets import ResetOffsetHeader


def notify_group_changed(notices: Notices, group: str) -> None:
    """Notify the members of a group that members or subscriptions changed, so that they rebalance the queues."""
    code = Request.NOTIFY_CONSUMER_IDS_CHANGED
    about = (code, group)
    if not notices.is_due(about):
        frame = encode_frame(code, 0, flag=FLAG_ONEWAY, fields={"consumerGroup": group})
        notices.send(Notice(about, group, frame))


class GroupChanges:
    """Notifies the members of groups that changed, so that they rebalance at once."""

    def __init__(self, groups: SubscriptionGroups, notices: Notices, waiting_pops: WaitingPops) -> None:
        self._groups = groups
        self._notices = notices
        self._waiting_pops = waiting_pops

    def notify(self, names: set[str]) -> None:
        """Notify the members of these groups, except of groups that are configured not to be notified.

        Waiting pops are tried: a member that pulled may have left its queues to them.
        """
        for name in names:
            group = self._groups.find(name)
            if group is None or group.notifies_members:
                notify_group_changed(self._notices, name)
        if names:
            self._waiting_pops.mark_groups(names)
            self._waiting_pops.wake()


def reset_notice(header: ResetOffsetHeader, body: bytes, cpp_body: bytes | None) -> Notice:
    """Return the notice of an offset reset. All members share it: the table of a wide topic takes several MiB."""
    code = Request.RESET_CONSUMER_CLIENT_OFFSET
    fields = {
        "topic": header.topic,
        "group": header.group,
        "timestamp": str(header.timestamp),
        "isForce": str(header.isForce).lower(),
    }

    def notice(form: bytes, for_cpp: Notice | None = None) -> Notice:
        frame = encode_frame(code, 0, flag=FLAG_ONEWAY, fields=fields, body=form)
        return Notice((code, header.group, header.topic, header.queueId), header.group, frame, for_cpp)

    return notice(body, notice(cpp_body) if cpp_body is not None else None)
