"""Who may hold K/V blocks: growth, release and the choice of whom to preempt."""

from collections.abc import Iterable

from scheduler.block_pool import BlockPool
from scheduler.config import EngineConfig
from scheduler.coordinate import extend_table
from scheduler.entry import Entry
from scheduler.plan import Role


class BlockTables:
    """The block tables of all requests, over one pool a model."""

    def __init__(self, config: EngineConfig) -> None:
        target, draft = config.target_pool, config.draft_pool
        self._pools = {Role.TARGET: BlockPool(target.blocks, target.block_size)}
        if draft is not None:
            self._pools[Role.DRAFT] = BlockPool(draft.blocks, draft.block_size)

    def pool(self, role: Role) -> BlockPool | None:
        """The pool of one model; None when there is no such model."""
        return self._pools.get(role)

    def has_room(self, role: Role, rows: int) -> bool:
        """Whether a request that holds nothing could hold `rows` rows now."""
        pool = self._pools[role]
        return pool.blocks_for(rows) <= pool.num_free

    def try_grow(self, entry: Entry, role: Role, rows: int) -> bool:
        """Make the table hold `rows` rows; False, and nothing changed, when blocks lack."""
        pool = self._pools[role]
        held = entry.blocks.get(role, ())
        missing = pool.blocks_for(rows) - len(held)
        if missing <= 0:
            return True
        more = pool.try_allocate(missing)
        if more is None:
            return False
        entry.blocks[role] = held + more
        entry.tables[role] = extend_table(entry.tables.get(role, ""), more)
        return True

    def rows_available(self, entry: Entry, role: Role) -> int:
        """Rows that the table could hold if it took every free block."""
        pool = self._pools[role]
        return (len(entry.blocks.get(role, ())) + pool.num_free) * pool.block_size

    def release(self, entry: Entry) -> None:
        """Give back every block of both models."""
        for role, blocks in entry.blocks.items():
            self._pools[role].free(blocks)
        entry.blocks, entry.tables = {}, {}
        entry.draft_rows = 0
        entry.retry = None

    @property
    def all_free(self) -> bool:
        """Whether nobody holds a block of either model."""
        return all(pool.num_free == pool.blocks for pool in self._pools.values())

    def check_integrity(self, entries: Iterable[Entry]) -> None:
        """Raise ValueError unless each block is free or held by exactly one of `entries`."""
        live = list(entries)
        for role, pool in self._pools.items():
            pool.check_integrity(b for entry in live for b in entry.blocks.get(role, ()))


def victim(running: Iterable[Entry]) -> Entry:
    """The request to preempt: the one served last."""
    return max(running, key=lambda entry: entry.order)
