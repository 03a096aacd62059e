"""A deleted topic stays deleted, whatever is built again from a log that still holds its messages."""

from collections.abc import Iterator
from random import Random

import pytest

from latermq.errors import StoreError
from latermq.model.topic import Topic
from tests.support.faults.aging_broker import AgingBroker

CHECKPOINT = "latermq.checkpoint"
LOSSES = [["consumequeue/kept/0"], ["consumequeue"], [CHECKPOINT], ["consumequeue", CHECKPOINT], ["index"]]


@pytest.fixture
def aging() -> Iterator[AgingBroker]:
    aging = AgingBroker()
    yield aging
    aging.close()


def fill(aging: AgingBroker, text: str) -> None:
    for number in range(10):
        aging.send(f"{text} {number}", queue_id=number % 2)
        aging.send(f"{text} {number}", "kept", UNIQ_KEY=f"{text} {number}")


def delete(aging: AgingBroker) -> None:
    for step in aging.broker.topic_admin.delete("orders"):
        step()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", LOSSES)
def test_its_messages_do_not_come_back(aging: AgingBroker, lost: list[str], clean: bool) -> None:
    fill(aging, "old")
    delete(aging)
    for _ in range(2):
        aging.restart(*lost, clean=clean)
        assert aging.broker.topics.find("orders") is None
        assert aging.broker.store.queues.find("orders", 0) is None
        assert len(aging.bodies("kept")) == 10


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", [*LOSSES, ["consumequeue/orders"]])
def test_made_again_it_holds_its_new_messages_alone(aging: AgingBroker, lost: list[str], clean: bool) -> None:
    for life in range(3):
        fill(aging, f"old {life}")
        delete(aging)
    aging.broker.topics.put(Topic(name="orders", read_queues=4, write_queues=4))
    aging.broker.tables.save()
    aging.send("new", queue_id=1)
    aging.broker.store.save(aging.broker.store.plan_checkpoint())
    for _ in range(2):
        aging.restart(*lost, clean=clean)
        assert (aging.bodies(), aging.bodies(queue_id=1)) == ([], ["new"])
        assert len(aging.bodies("kept")) == 30


@pytest.mark.parametrize("lost", LOSSES)
def test_it_stays_deleted_after_a_power_cut(lost: list[str]) -> None:
    for seed in range(5):
        aging = AgingBroker()
        fill(aging, "old")
        delete(aging)
        aging.send("later", "kept")
        aging.disk = aging.disk.after_machine_crash(Random(seed))
        aging.restart(*lost)
        assert aging.broker.topics.find("orders") is None
        assert aging.bodies() == []
        aging.close()


def test_deleting_what_was_never_filled_writes_nothing(aging: AgingBroker) -> None:
    aging.broker.topics.put(Topic(name="orders", read_queues=4, write_queues=4))
    end = aging.broker.store.log.end
    delete(aging)
    delete(aging)
    assert aging.broker.store.log.end == end


def test_without_disk_space_it_is_not_deleted(aging: AgingBroker) -> None:
    fill(aging, "old")

    def full(operation: str, path: str) -> None:
        if operation == "write" and path.startswith("commitlog/"):
            raise StoreError("injected")

    aging.disk.before_step = full
    with pytest.raises(StoreError):
        aging.broker.topic_admin.delete("orders")
    aging.disk.before_step = lambda operation, path: None
    assert aging.broker.topics.find("orders") is not None
    assert len(aging.bodies()) == 5


class KilledError(Exception):
    """The process ends here."""


def test_a_death_while_it_is_deleted_leaves_all_of_it_or_nothing() -> None:
    for steps in range(40):
        aging = AgingBroker()
        fill(aging, "old")
        left = steps

        def kill(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KilledError

        aging.disk.before_step = kill
        try:
            delete(aging)
        except KilledError:
            pass
        else:
            aging.close()
            break
        aging.disk.before_step = lambda operation, path: None
        aging.restart("consumequeue/kept/0")
        assert len(aging.bodies()) == len(aging.bodies(queue_id=1))
        assert len(aging.bodies()) in (0, 5)
        assert len(aging.bodies("kept")) == 10
        aging.close()
    else:
        pytest.fail("it never came to its end")


def test_the_log_forgets_the_deletion_with_the_messages(aging: AgingBroker) -> None:
    fill(aging, "old")
    delete(aging)
    aging.age()
    aging.restart(CHECKPOINT)
    assert aging.broker.topics.find("orders") is None
    aging.send("new")
    assert aging.bodies() == ["new"]
