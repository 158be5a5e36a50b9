"""Block accounting of one K/V pool. Moves integers; `runtime.kv_cache` moves the bytes."""

from collections.abc import Iterable

from scheduler.stats import PoolStats


class BlockPool:
    """Blocks 0 .. blocks-1, each free or held by exactly one request.

    Freed blocks are reused last-in first-out: the most recently written memory is the warmest.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self._free = list(range(blocks - 1, -1, -1))
        self._held = [False] * blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def blocks_for(self, rows: int) -> int:
        """Blocks that `rows` token rows fill, the last one perhaps in part."""
        return -(-rows // self.block_size)

    def try_allocate(self, count: int) -> tuple[int, ...] | None:
        """`count` blocks, now held; None, and nothing changed, when fewer are free."""
        if count > len(self._free):
            return None
        taken = tuple(self._free.pop() for _ in range(count))
        for block in taken:
            self._held[block] = True
        return taken

    def free(self, blocks: Iterable[int]) -> None:
        """Give blocks back. Raises ValueError for a block that is not held."""
        for block in blocks:
            if not self._held[block]:
                raise ValueError(f"block {block} is not held")
            self._held[block] = False
            self._free.append(block)

    def stats(self) -> PoolStats:
        """Blocks by state."""
        return PoolStats(used=self.blocks - self.num_free, free=self.num_free, cached=0)

    def check_integrity(self, held: Iterable[int]) -> None:
        """Raise ValueError unless exactly the blocks `held` are held, each once."""
        expected = sorted(held)
        actual = [block for block, is_held in enumerate(self._held) if is_held]
        if expected != actual or sorted(self._free + actual) != list(range(self.blocks)):
            raise ValueError(f"blocks held {actual}, by the requests {expected}")
