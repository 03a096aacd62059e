"""Storage of consumer offsets: at the broker for clustering, in a local file for broadcasting."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from latermq.client.session.session import Session
from latermq.errors import StoreError
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.queues import MessageQueue

DEFAULT_FOLDER = Path("~/.latermq/offsets")
MAX_FILE_BYTES = 64 * 1024 * 1024


class OffsetResponse(msgspec.Struct):
    """Header fields of responses that contain one offset."""

    offset: int


class _StoredOffset(msgspec.Struct):
    topic: str
    broker: str
    queue: int
    offset: int


class OffsetStore(Protocol):
    """Where a consumer stores its offsets."""

    async def load(self, queue: MessageQueue) -> int | None: ...

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None: ...


class BrokerOffsets:
    """Offsets of a group, stored by the broker of each queue."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group

    async def load(self, queue: MessageQueue) -> int | None:
        """Return the stored offset, or None if there is none."""
        response = await self._session.connections.call(
            await self._session.routes.broker_address(queue),
            Request.QUERY_CONSUMER_OFFSET,
            {"consumerGroup": self._group, "topic": queue.topic, "queueId": str(queue.queueId)},
            timeout_s=self._session.request_timeout_s,
            accept=(Response.QUERY_NOT_FOUND,),
        )
        return None if response.code == Response.QUERY_NOT_FOUND else response.header(OffsetResponse).offset

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store offsets concurrently. The first failure is raised after all requests have ended."""
        results = await asyncio.gather(
            *(self._save_one(queue, offset) for queue, offset in offsets.items()), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _save_one(self, queue: MessageQueue, offset: int) -> None:
        await self._session.connections.call(
            await self._session.routes.broker_address(queue),
            Request.UPDATE_CONSUMER_OFFSET,
            {
                "consumerGroup": self._group,
                "topic": queue.topic,
                "queueId": str(queue.queueId),
                "commitOffset": str(offset),
            },
            timeout_s=self._session.request_timeout_s,
        )


class LocalOffsets:
    """Offsets in one JSON file, replaced atomically. For broadcasting, where each member reads every message."""

    def __init__(self, folder: Path, group: str, instance: str) -> None:
        name = "".join(char if char.isalnum() or char in "-_.%" else "_" for char in f"{group}@{instance or 'default'}")
        self._file = folder.expanduser() / f"{name}.json"
        self._offsets: dict[MessageQueue, int] | None = None

    async def load(self, queue: MessageQueue) -> int | None:
        if self._offsets is None:
            self._offsets = await asyncio.to_thread(self._read)
        return self._offsets.get(queue)

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        if self._offsets is None:
            self._offsets = await asyncio.to_thread(self._read)
        self._offsets.update(offsets)
        await asyncio.to_thread(self._write, dict(self._offsets))

    def _read(self) -> dict[MessageQueue, int]:
        try:
            if self._file.stat().st_size > MAX_FILE_BYTES:
                raise StoreError(
                    f"{self._file} is larger than {MAX_FILE_BYTES} bytes, so it is not an offset file",
                    hint="Remove it, or set offsets_folder to another folder",
                )
            stored = msgspec.json.decode(self._file.read_bytes(), type=list[_StoredOffset])
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._io_error(error) from error
        except msgspec.MsgspecError as error:
            raise StoreError(
                f"{self._file} is not a valid offset file: {error}", hint="Remove it to start from `consume_from`"
            ) from None
        return {MessageQueue(entry.topic, entry.broker, entry.queue): entry.offset for entry in stored}

    def _write(self, offsets: dict[MessageQueue, int]) -> None:
        stored = [_StoredOffset(q.topic, q.brokerName, q.queueId, offset) for q, offset in sorted(offsets.items())]
        draft = self._file.with_suffix(f".{os.getpid()}.tmp")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as file:
                file.write(msgspec.json.encode(stored))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._file)
        except OSError as error:
            raise self._io_error(error) from error

    def _io_error(self, error: OSError) -> StoreError:
        return StoreError(
            f"cannot store offsets in {self._file}: {error.strerror or error}",
            hint="Free disk space, or set offsets_folder to a folder that this user can write",
        )
