"""Random lives of a group whose members partly pull and partly pop: nothing is lost, whatever crashes.

Members join, leave, die and exchange queues, and the broker or its machine crashes. Afterwards everything that was sent
must have been consumed. Every run is a seed. A failing one is named and replays exactly: `live(SEED)`.
"""

from collections import Counter
from random import Random

import pytest

from latermq.broker.pop.acknowledgements import Place
from latermq.group.pop.operations import Outcome
from latermq.message.record import Message
from tests.support.faults.seeds import run_seeds
from tests.support.mixed_group import GROUP, QUEUES, RETRY_QUEUE, TOPIC, MixedGroup, PullMember
from tests.support.needs import LONG

SEEDS = 2_000 if LONG else 60
SEEDS_A_TEST = 20
STEPS = 120
ALL = [*((TOPIC, queue_id) for queue_id in range(QUEUES)), RETRY_QUEUE]


class Life:
    """One group with at most three members that pull and any number that pop."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.group = MixedGroup(self.chance.random)
        self.popped: list[tuple[Message, Place]] = []
        self.members = 0
        self.outcomes: Counter[Outcome] = Counter()

    def step(self) -> None:
        action = self.chance.choices(
            [
                self.send, self.pop, self.ack, self.pull, self.process, self.rebalance, self.join, self.leave,
                self.drop_popped, self.wait, self.crash,
            ],
            [20, 15, 20, 20, 20, 3, 2, 2, 2, 6, 2],
        )[0]  # fmt: skip
        action()

    def send(self) -> None:
        self.group.send(self.chance.randint(1, 10), self.chance.randrange(QUEUES))

    def pop(self) -> None:
        self.popped += self.group.pop(self.chance.choice([1, 5, 32]), self.chance.choice([-1, -1, 0, QUEUES - 1]))

    def ack(self) -> None:
        for _ in range(self.chance.randint(1, 10)):
            if self.popped:
                one = self.popped.pop(self.chance.randrange(len(self.popped)))
                self.outcomes[self.group.ack(*one)] += 1

    def drop_popped(self) -> None:
        """A member that pops dies with all that it holds."""
        self.popped.clear()

    def _any_queue(self) -> tuple[PullMember, tuple[str, int]] | None:
        owned = [(member, queue) for member in self.group.pullers for queue in member.queues]
        return self.chance.choice(owned) if owned else None

    def pull(self) -> None:
        found = self._any_queue()
        if found is not None:
            found[0].pull(found[1], self.chance.choice([1, 8, 32]))

    def process(self) -> None:
        found = self._any_queue()
        if found is not None:
            found[0].process(found[1], self.chance.randint(1, 20))

    def join(self) -> None:
        if len(self.group.pullers) < 3:
            self.members += 1
            PullMember(self.group, f"member{self.members}")
            self.rebalance()

    def leave(self) -> None:
        if self.group.pullers:
            self.chance.choice(self.group.pullers).leave(commits=self.chance.random() < 0.5)
            self.rebalance()

    def rebalance(self, *, to_all: bool = False) -> None:
        """Each queue gets another owner. Those without one are left to pops."""
        for queue in ALL:
            owners = [member for member in self.group.pullers if queue in member.queues]
            choices: list[PullMember | None] = [*self.group.pullers] if to_all else [None, *self.group.pullers]
            owner = self.chance.choice(choices) if choices else None
            for member in owners:
                if member is not owner:
                    member.give_up(queue, commits=self.chance.random() < 0.8)
            if owner is not None and queue not in owner.queues:
                owner.own(queue)

    def wait(self) -> None:
        self.group.advance(self.chance.choice([10, 1_000, 10_000, 31_000, 50_000]))

    def crash(self) -> None:
        broker = self.group.broker
        if self.chance.random() < 0.5:
            broker.store.save(broker.store.plan_checkpoint())
            broker.tables.save()
        if self.chance.random() < 0.5:
            broker.store.flush()
            self.group.crash(self.group.disk.after_machine_crash(self.chance))
        else:
            self.group.crash()

    def drain(self) -> None:
        """Consume the rest: by pops alone, or by members that pull every queue beside one that pops."""
        if self.chance.random() < 0.5:
            for member in list(self.group.pullers):
                member.leave(commits=self.chance.random() < 0.5)
        else:
            self.join()
            self.rebalance(to_all=bool(self.group.pullers))
        self.popped.clear()
        idle = 0
        while idle < 20:
            before = sum(self.group.consumed.values())
            for member in self.group.pullers:
                for queue in member.queues:
                    member.pull(queue)
                    member.process(queue)
                    member.commit(queue)
            for one in self.group.pop():
                self.group.ack(*one)
            self.group.advance(5_000)
            idle = idle + 1 if sum(self.group.consumed.values()) == before else 0


def live(seed: int) -> None:
    life = Life(seed)
    for _ in range(STEPS):
        life.step()
    life.drain()
    missing = set(life.group.sent) - set(life.group.consumed)
    assert not missing, f"{len(missing)} of {len(life.group.sent)} were lost: {sorted(missing)[:10]}"
    assert life.group.broker.in_flight.held == 0
    for queue in life.group.broker.in_flight.queues.values():
        assert life.group.broker.in_flight.floor(queue) == life.group.floor((queue.topic, queue.queue_id))


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
def test_nothing_is_lost_in_a_group_that_pulls_and_pops(first: int) -> None:
    run_seeds(live, first, SEEDS_A_TEST)


def test_without_failures_nothing_is_consumed_twice() -> None:
    """Members that pull own fixed queues, acknowledgements come in time, and only one of them leaves, cleanly."""
    group = MixedGroup(Random(7).random)
    member = PullMember(group, "puller")
    member.own((TOPIC, 0), (TOPIC, 1))
    for round_ in range(200):
        group.send(3, round_ % QUEUES)
        for queue in member.queues if group.pullers else ():
            member.pull(queue)
            member.process(queue)
        for one in group.pop(8):
            assert group.ack(*one) is Outcome.DONE
        if round_ == 150:
            member.leave()
        group.advance(1_000)
    for one in group.pop():
        group.ack(*one)
    assert group.consumed == Counter(group.sent)
    assert group.broker.offsets.of_topic(GROUP, TOPIC) == dict.fromkeys(range(QUEUES), 150)
