"""Replies of POP leave after the journal, once per turn, and what a lost client popped becomes visible again."""

from collections.abc import Callable
from functools import partial
from typing import cast

import pytest

from latermq.broker.pop.sent_answers import SentAnswers
from latermq.errors import Busy, ServiceUnavailable, StoreError
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import FLAG_ONEWAY, Command
from latermq.server.handlers.flush_queue import FlushQueue
from latermq.server.handlers.pop_replies import PopReplies
from latermq.server.remoting.connection import JOINED_BYTES, Connection
from latermq.store.commit_log import CommitLog

ACK = Command(Request.ACK_MESSAGE)


class FakeLog:
    """A log with something to flush."""

    flushed, end = 0, 100


class FakeConnection:
    """Notes what is sent."""

    def __init__(self) -> None:
        self.is_closing = False
        self.sent: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)


class FakeAnswers:
    """Notes which answers are sent, and whose connections are lost."""

    def __init__(self) -> None:
        self.noted: list[tuple[int, int]] = []

    def note(self, client: object, lease: int, pop_ms: int) -> None:
        self.noted.append((lease, pop_ms))

    def remove_client(self, client: object) -> bool:
        return bool(self.noted)


class Scene:
    """Replies over a journal that may fail."""

    def __init__(self, *, is_sync: bool = False) -> None:
        self.failure: StoreError | None = None
        self.commits = 0
        self.soon: list[Callable[[], None]] = []
        self.fake = FakeConnection()
        self.connection = cast(Connection, self.fake)
        self.flush_queue = FlushQueue(cast(CommitLog, FakeLog()), lambda: None, is_sync=is_sync, max_waiting=10)
        self.answers = FakeAnswers()
        self.replies = PopReplies(
            self.commit, self.flush_queue, cast(SentAnswers, self.answers), max_waiting=3, later=self.soon.append
        )

    def commit(self) -> StoreError | None:
        assert not self.fake.sent, "the journal comes before the replies"
        self.commits += self.failure is None
        return self.failure

    def run(self) -> None:
        while self.soon:
            self.soon.pop()()


def test_all_replies_of_a_turn_wait_for_one_journal_record() -> None:
    scene = Scene()
    scene.replies.hold(scene.connection, ACK, b"1")
    scene.replies.hold(scene.connection, Command(Request.ACK_MESSAGE, flag=FLAG_ONEWAY), b"unwanted")
    scene.replies.hold_pop(scene.connection, b"2", lambda: None)
    assert scene.fake.sent == []
    scene.run()
    assert (scene.fake.sent, scene.commits) == ([b"12"], 1)


def test_long_replies_are_sent_one_by_one_until_the_client_is_gone() -> None:
    scene = Scene()
    returned: list[int] = []
    long = b"x" * JOINED_BYTES

    def send(frame: bytes) -> None:
        scene.fake.sent.append(frame)
        scene.fake.is_closing = True

    scene.fake.send = send  # type: ignore[method-assign]
    for number in range(2):
        scene.replies.hold_pop(scene.connection, long, lambda number=number: returned.append(number))  # type: ignore[misc]
    scene.soon.pop()()
    assert (scene.fake.sent, returned) == ([long], [1])


def test_nothing_is_answered_while_the_journal_cannot_be_written() -> None:
    scene = Scene()
    scene.failure = StoreError("the disk is full")
    scene.replies.hold(scene.connection, ACK, b"1")
    scene.run()
    assert scene.fake.sent == []
    with pytest.raises(ServiceUnavailable):
        scene.replies.check_pop()
    scene.replies.check_room()
    for _ in range(2):
        scene.replies.hold(scene.connection, ACK, b"more")
    with pytest.raises(Busy):
        scene.replies.check_room()
    scene.failure = None
    scene.replies.settle()
    assert scene.fake.sent == [b"1moremore"]
    scene.replies.check_pop()


def test_with_sync_flush_replies_wait_for_the_disk() -> None:
    scene = Scene(is_sync=True)
    scene.replies.hold(scene.connection, ACK, b"1")
    scene.run()
    assert scene.fake.sent == []
    scene.flush_queue.on_flushed(100)
    assert scene.fake.sent == [b"1"]


def test_what_a_lost_client_popped_is_given_back_and_journalled() -> None:
    scene = Scene()
    given_back: list[str] = []
    scene.replies.hold_pop(scene.connection, b"1", lambda: given_back.append("popped"))
    scene.fake.is_closing = True
    scene.run()
    assert (given_back, scene.fake.sent, scene.commits) == (["popped"], [], 2)


def test_oneway_requests_count_towards_the_limit_while_the_journal_cannot_be_written() -> None:
    scene = Scene()
    scene.failure = StoreError("the disk is full")
    for _ in range(3):
        scene.replies.check_room()
        scene.replies.hold(scene.connection, Command(Request.CHANGE_MESSAGE_INVISIBLETIME, flag=FLAG_ONEWAY), b"")
        scene.run()
    with pytest.raises(Busy):
        scene.replies.check_room()
    scene.failure = None
    scene.replies.settle()
    scene.replies.check_room()


def test_messages_of_a_client_that_leaves_before_the_flush_are_given_back() -> None:
    scene = Scene(is_sync=True)
    given_back: list[str] = []
    scene.replies.hold(scene.connection, ACK, b"1")
    for number in range(2):
        scene.replies.hold_pop(scene.connection, b"messages", partial(given_back.append, f"pop {number}"))
    scene.run()
    assert scene.commits == 1
    scene.fake.is_closing = True
    scene.flush_queue.on_flushed(100)
    assert (scene.fake.sent, given_back) == ([], ["pop 0", "pop 1"])
    scene.run()
    assert scene.commits == 2, "that they are visible again is journalled"


def test_leased_answers_are_noted_and_the_end_of_those_that_are_lost_is_scheduled() -> None:
    scene = Scene()
    scene.replies.hold_pop(scene.connection, b"1", lambda: None, 0, 5)
    scene.replies.hold_pop(scene.connection, b"2", lambda: None, 7, 6)
    scene.run()
    assert scene.answers.noted == [(7, 6)]
    assert not scene.soon
    scene.replies.on_disconnect(scene.connection)
    assert scene.soon
