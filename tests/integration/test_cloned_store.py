"""Two brokers that run from copies of one data directory: told apart from one broker, and refused together."""

import asyncio
import shutil
from pathlib import Path

import pytest

from latermq.errors import CorruptStore
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.driver.store_ids import StoreIds
from tests.integration.brokers import running_broker


async def state_of(address: str) -> PipelineState:
    def ask() -> PipelineState:
        with BrokerLink(address) as link:
            return link.state()

    return await asyncio.to_thread(ask)


def test_a_broker_and_its_clone_are_refused_until_one_of_them_ends(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_broker(tmp_path / "one"):
            pass
        shutil.copytree(tmp_path / "one", tmp_path / "other")
        store_ids = StoreIds()
        async with running_broker(tmp_path / "one") as one:
            first = await state_of(one.address)
            await asyncio.to_thread(store_ids.check, one.address, first)
            async with running_broker(tmp_path / "other", "broker.name=broker-b") as other:
                second = await state_of(other.address)
                assert (first.store_id, first.instance != second.instance) == (second.store_id, True)
                store_ids.add_addresses([one.address, other.address])
                for address, state in ((one.address, first), (other.address, second)):
                    with pytest.raises(CorruptStore, match="have the same store id"):
                        await asyncio.to_thread(store_ids.check, address, state)
            await asyncio.to_thread(store_ids.check, one.address, first)

    asyncio.run(run())
