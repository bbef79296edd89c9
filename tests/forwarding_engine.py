"""An engine that forwards every verb to a storage. Tests override what they want to disturb or record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.storage import (
    Address,
    Change,
    Committed,
    Engine,
    Guard,
    LanePosition,
    MaintenanceReport,
    Micros,
    PageRequest,
    Purged,
    Record,
    Refused,
    Space,
    Storage,
    StorageInfo,
    Tag,
    Watch,
)


class ForwardingEngine(Engine):
    """Set `storage` before the first use."""

    name = "forwarding"
    storage: Storage

    async def line(self, verb: str) -> Storage:
        """Return the storage for a verb. Awaited before each verb."""
        return self.storage

    async def get(self, addresses: Sequence[Address], *, now: Micros) -> list[Record | None]:
        return await (await self.line("get")).get_many(addresses, now=now)

    async def commit(
        self, changes: Sequence[Change], *, guard: Guard | None, now: Micros
    ) -> Committed | Refused:
        return await (await self.line("commit")).commit(changes, guard=guard, now=now)

    async def page(self, request: PageRequest, *, now: Micros) -> list[Record]:
        storage = await self.line("page")
        return await storage.page(
            request.space,
            request.partition,
            limit=request.limit,
            now=now,
            after=request.after,
            tag=request.tag,
            descending=request.descending,
        )

    async def due(
        self, lane: str, *, after: LanePosition | None, until: Micros, limit: int, now: Micros
    ) -> list[Record]:
        storage = await self.line("due")
        return await storage.due(lane, after=after, until=until, limit=limit, now=now)

    async def counts(self, space: Space, partition: str | None, *, now: Micros) -> Mapping[Tag, int]:
        return await (await self.line("counts")).counts(space, partition, now=now)

    async def purge(self, *, until: Micros, limit: int) -> list[Purged]:
        return await (await self.line("purge")).purge(until=until, limit=limit)

    def watch(self, space: Space, partition: str | None, key: str | None) -> Watch:
        return self.storage.watch(space, partition, key)

    async def maintain(self, *, repair: bool) -> MaintenanceReport:
        return await (await self.line("maintain")).maintain(repair=repair)

    async def info(self) -> StorageInfo:
        return await self.storage.info()

    async def close(self) -> None:
        await self.storage.close()
