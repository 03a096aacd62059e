"""The queues assigned to a push consumer: rebalancing, locks for orderly consumption, pulls and commits."""

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from latermq.client.consumer import queue_offsets
from latermq.client.consumer.assigned_queue import AssignedQueue
from latermq.client.consumer.consumer_settings import ConsumerSettings
from latermq.client.consumer.offsets import BrokerOffsets, LocalOffsets, OffsetStore
from latermq.client.consumer.pull import NO_NEW, OFFSET_MOVED, pull
from latermq.client.consumer.rebalance import allocate_averagely, queue_changes
from latermq.client.session.failures import BrokerFailed
from latermq.client.session.session import Session
from latermq.errors import GroupNotFound, LaterMQError, SubscriptionNotFound, SubscriptionOutdated, TopicNotFound
from latermq.message.names import RETRY_PREFIX
from latermq.message.record import Message
from latermq.protocol.remoting.clients import ConsumerIdList, LockBatchRequest, LockBatchResponse, SubscriptionData
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.json_body import decode_body, encode_body
from latermq.protocol.remoting.queues import MessageQueue
from latermq.retry import Backoff

_log = logging.getLogger("latermq.client")

Deliver = Callable[[AssignedQueue, list[Message]], None]

FIRST_PAUSE_S = 0.2
LONGEST_PULL_PAUSE_S = 5.0
FIRST_REBALANCE_PAUSE_S = 1.0
# A broker releases a lock after 60 s. Half of that leaves time for a handler that started just before.
LOCK_LEASE_S = 30.0
# How long a revoked queue waits for its running handlers, so that fewer messages are handled twice.
RELEASE_WAIT_S = 1.0
# Pause after a long poll that returns empty at once, so that pulls do not become a busy loop.
EMPTY_PULL_PAUSE_S = 0.02


class Assignment:
    """The queues that this member reads, kept consistent with the rest of its group."""

    def __init__(self, session: Session, settings: ConsumerSettings, instance: str, deliver: Deliver) -> None:
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.queues: dict[MessageQueue, AssignedQueue] = {}
        self.offsets: OffsetStore = (
            BrokerOffsets(session, settings.group)
            if settings.is_clustering
            else LocalOffsets(settings.offsets_folder, settings.group, instance)
        )
        self._session = session
        self._settings = settings
        self._deliver = deliver
        self._releases: dict[MessageQueue, asyncio.Task[None]] = {}
        self._rebalance_lock = asyncio.Lock()
        self._rebalance_requested = asyncio.Event()
        self._uses_locks = settings.orderly and settings.is_clustering
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closing = False

    def start(self) -> None:
        self._tasks = [self._session.spawn(self._rebalance_forever()), self._session.spawn(self._commit_forever())]
        if self._uses_locks:
            self._tasks.append(self._session.spawn(self._renew_locks_forever()))

    def rebalance_soon(self) -> None:
        self._rebalance_requested.set()

    async def rebalance(self) -> bool:
        """Acquire and release queues according to the group's current members. Return whether all steps succeeded."""
        async with self._rebalance_lock:
            complete = True
            for topic in list(self.subscriptions):
                if self._is_closing:
                    return True
                try:
                    complete &= await self._rebalance_topic(topic)
                except TopicNotFound:
                    await self._apply(topic, [])
                    complete = False
                except LaterMQError as error:
                    _log.warning("cannot rebalance the queues of topic %s: %s", topic, error)
                    complete = False
            for topic in {queue.topic for queue in self.queues} - self.subscriptions.keys():
                await self._apply(topic, [])
            return complete

    async def commit(self, queues: Iterable[AssignedQueue] | None = None) -> None:
        """Store the offsets of the queues whose position changed since the last commit."""
        chosen = list(self.queues.values() if queues is None else queues)
        changed = {queue: queue.position for queue in chosen if queue.position != queue.saved_offset}
        if not changed:
            return
        await self.offsets.save({queue.queue: position for queue, position in changed.items()})
        for queue, position in changed.items():
            queue.saved_offset = position

    async def close(self) -> None:
        """Start no new work, wait for running handlers, store the offsets and release the locks."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assigned = list(self.queues.values())
        for queue in assigned:
            queue.drop()
        idle = await asyncio.gather(*(queue.wait_idle(self._settings.shutdown_wait_s) for queue in assigned))
        if not all(idle):
            running = sum(queue.running_handlers for queue in assigned)
            _log.warning(
                "closing while %d handlers still run after %g s: their messages will be delivered again",
                running,
                self._settings.shutdown_wait_s,
            )
        await asyncio.gather(*self._releases.values(), return_exceptions=True)
        await self._commit_and_unlock(assigned)
        self.queues.clear()

    async def reset(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """Continue at other offsets: move the queues, restart their pulls, wait for running handlers, store."""
        chosen = [queue for queue in self.queues.values() if queue.queue.topic == topic and queue.queue in offsets]
        for queue in chosen:
            queue.seek(offsets[queue.queue])
            self._start_pull_task(queue)  # the pull that the broker holds now is for the old offset
        await asyncio.gather(*(queue.wait_idle(self._settings.shutdown_wait_s) for queue in chosen))
        for queue in chosen:
            if not queue.dropped:
                queue.saved_offset = None
        await self.commit(queue for queue in chosen if not queue.dropped)

    async def _rebalance_forever(self) -> None:
        backoff = Backoff(FIRST_REBALANCE_PAUSE_S, self._settings.rebalance_every_s)
        while True:
            if await self.rebalance():
                backoff.reset()
                wait_s = self._settings.rebalance_every_s
            else:
                wait_s = backoff.next_pause()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._rebalance_requested.wait()
            self._rebalance_requested.clear()

    async def _rebalance_topic(self, topic: str) -> bool:
        route = await self._session.routes.get(topic)
        if not self._settings.is_clustering:
            return await self._apply(topic, route.readable)
        if not route.readable:
            return await self._apply(topic, [])
        members = await self._members(route.readable[0])
        if self._session.client_id not in members:
            self._session.heartbeat_soon()
            return False
        mine = allocate_averagely(sorted(route.readable), members, self._session.client_id)
        return await self._apply(topic, mine)

    async def _members(self, queue: MessageQueue) -> list[str]:
        """Return the group's members as a queue's broker lists them; empty if it has seen no member yet."""
        address = await self._session.routes.broker_address(queue)
        try:
            response = await self._session.connections.call(
                address,
                Request.GET_CONSUMER_LIST_BY_GROUP,
                {"consumerGroup": self._settings.group},
                timeout_s=self._session.request_timeout_s,
            )
        except (BrokerFailed, GroupNotFound) as error:
            _log.debug("%s does not have the group yet: %s", address, error)
            return []
        return sorted(decode_body(response.body, ConsumerIdList).consumerIdList)

    async def _apply(self, topic: str, mine: list[MessageQueue]) -> bool:
        held = [queue for queue in self.queues if queue.topic == topic]
        lost, gained = queue_changes(held, mine)
        for queue in lost:
            self._start_release(self.queues.pop(queue))
        if not gained:
            return True
        free = [queue for queue in gained if queue not in self._releases]
        locked_until_s = time.monotonic() + LOCK_LEASE_S
        if self._uses_locks:
            free = await self._lock(free)
        started = await asyncio.gather(*(self._start_queue(queue, locked_until_s) for queue in free))
        return len(free) == len(gained) and all(started)

    def _start_release(self, assigned: AssignedQueue) -> None:
        assigned.drop()
        queue = assigned.queue
        task = self._session.spawn(self._release(assigned))
        self._releases[queue] = task
        task.add_done_callback(lambda done: self._releases.pop(queue, None))

    async def _release(self, assigned: AssignedQueue) -> None:
        # Order requires that the next holder does not start while a handler is still running here.
        await assigned.wait_idle(self._settings.shutdown_wait_s if self._uses_locks else RELEASE_WAIT_S)
        await self._commit_and_unlock([assigned])

    async def _commit_and_unlock(self, assigned: list[AssignedQueue]) -> None:
        try:
            await self.commit(assigned)
        except LaterMQError as error:
            _log.warning("cannot store offsets, so messages will be delivered again: %s", error)
        if self._uses_locks:
            with contextlib.suppress(LaterMQError):
                await self._unlock([queue.queue for queue in assigned])

    async def _start_queue(self, queue: MessageQueue, locked_until_s: float) -> bool:
        data = self.subscriptions.get(queue.topic)
        try:
            offset = await self._start_offset(queue)
        except LaterMQError as error:
            _log.warning("cannot determine the start offset of %s: %s", queue, error)
            return False
        if self._is_closing or data is None:
            return True
        settings = self._settings
        assigned = AssignedQueue(queue, data, offset, settings.max_cached_messages, settings.max_cached_bytes)
        assigned.saved_offset = offset
        assigned.locked_until_s = locked_until_s
        self.queues[queue] = assigned
        self._deliver(assigned, [])
        self._start_pull_task(assigned)
        return True

    def _start_pull_task(self, assigned: AssignedQueue) -> None:
        if assigned.pull_task is not None:
            assigned.pull_task.cancel()
        assigned.pull_task = self._session.spawn(self._pull_forever(assigned))

    async def _start_offset(self, queue: MessageQueue) -> int:
        stored = await self.offsets.load(queue)
        if stored is not None:
            return stored
        # A retry topic is always read from its start. Otherwise a group that starts at the end of its topics would skip
        # failed messages.
        if queue.topic.startswith(RETRY_PREFIX) or self._settings.consume_from == "first":
            return await queue_offsets.min_offset(self._session, queue)
        if isinstance(self._settings.consume_from, int):
            return await queue_offsets.search_offset(self._session, queue, self._settings.consume_from)
        return await queue_offsets.max_offset(self._session, queue)

    async def _pull_forever(self, assigned: AssignedQueue) -> None:
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PULL_PAUSE_S)
        while not assigned.dropped:
            await assigned.wait_for_space()
            generation, began_s = assigned.generation, time.monotonic()
            try:
                result = await pull(
                    self._session,
                    self._settings.group,
                    assigned.queue,
                    assigned.next_offset,
                    self.subscriptions.get(assigned.queue.topic, assigned.data),
                    max_messages=self._settings.pull_batch,
                    wait_s=self._settings.long_poll_s,
                    include_subscription=False,
                )
            except LaterMQError as error:
                await self._recover(assigned.queue, error)
                await asyncio.sleep(backoff.next_pause())
                continue
            backoff.reset()
            if assigned.dropped or assigned.generation != generation:
                continue
            assigned.pulled_ms = time.time_ns() // 1_000_000
            if result.status == OFFSET_MOVED:
                _log.warning(
                    "%s: offset %d is out of range; continuing at %d",
                    assigned.queue,
                    assigned.next_offset,
                    result.next_offset,
                )
                assigned.seek(result.next_offset)
                await asyncio.sleep(EMPTY_PULL_PAUSE_S)
                continue
            assigned.add(result.messages, result.next_offset)
            if result.messages:
                self._deliver(assigned, result.messages)
            elif result.status == NO_NEW and time.monotonic() - began_s < EMPTY_PULL_PAUSE_S:
                await asyncio.sleep(EMPTY_PULL_PAUSE_S)

    async def _recover(self, queue: MessageQueue, error: LaterMQError) -> None:
        if isinstance(error, SubscriptionNotFound | SubscriptionOutdated):
            self._session.heartbeat_soon()
            return
        _log.warning("pull from %s failed: %s", queue, error)
        try:
            await self._session.routes.refresh(queue.topic)
        except LaterMQError as problem:
            _log.warning("cannot refresh the route of topic %s: %s", queue.topic, problem)
        self.rebalance_soon()

    async def _commit_forever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.commit_every_s)
            try:
                await self.commit()
            except LaterMQError as error:
                _log.warning("cannot store offsets; the next commit tries again: %s", error)

    async def _renew_locks_forever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lock_every_s)
            held = list(self.queues)
            locked = set(await self._lock(held))
            for queue in held:
                if queue not in locked:
                    _log.warning("lost the lock of %s; its messages wait until it is granted again", queue)
            if len(locked) < len(held):
                self.rebalance_soon()

    async def _lock(self, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Lock `queues` for this member, for LOCK_LIFE_S. Return those whose lock was granted."""
        locked: list[MessageQueue] = []
        for body, address in await self._lock_requests(queues):
            began_s = time.monotonic()
            try:
                response = await self._session.connections.call(
                    address, Request.LOCK_BATCH_MQ, {}, encode_body(body), timeout_s=self._session.request_timeout_s
                )
            except LaterMQError as error:
                _log.warning("cannot lock queues at %s: %s", address, error)
                continue
            granted = set(decode_body(response.body, LockBatchResponse).lockOKMQSet)
            for queue in body.mqSet:
                if queue in granted:
                    locked.append(queue)
                if queue in self.queues:
                    self.queues[queue].locked_until_s = began_s + LOCK_LEASE_S if queue in granted else 0.0
        return locked

    async def _unlock(self, queues: list[MessageQueue]) -> None:
        for body, address in await self._lock_requests(queues):
            await self._session.connections.call(
                address, Request.UNLOCK_BATCH_MQ, {}, encode_body(body), timeout_s=self._session.request_timeout_s
            )

    async def _lock_requests(self, queues: list[MessageQueue]) -> list[tuple[LockBatchRequest, str]]:
        groups: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            groups[await self._session.routes.broker_address(queue)].append(queue)
        return [
            (
                LockBatchRequest(
                    consumerGroup=self._settings.group, clientId=self._session.client_id, mqSet=sorted(members)
                ),
                address,
            )
            for address, members in groups.items()
        ]
