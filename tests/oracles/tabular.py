"""A model whose law is a table, behind the production `Forward` protocol.

It keeps token ids in its paged pool instead of keys and values, and reads each row's prefix back
through the block table, as attention would: a wrong slot, a stale row or another request's block
changes the law, which every test that knows the table then sees.
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from scheduler.runtime.rows import PackedRows

Table = Callable[[tuple[int, ...]], Sequence[float]]
"""Logits of the token after a prefix."""


def random_table(vocabulary: int, seed: int, *, scale: float = 1.5, order: int = 8) -> Table:
    """Logits that depend on the last `order` tokens and on the length, through a hash."""

    def row(prefix: tuple[int, ...]) -> Sequence[float]:
        text = f"{seed}:{len(prefix)}:{prefix[-order:]}".encode()
        state = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
        return (np.random.default_rng(state).standard_normal(vocabulary) * scale).tolist()

    return row


def near(table: Table, other: Table, weight: float) -> Table:
    """A draft: mostly `table`, with some of `other`."""

    def row(prefix: tuple[int, ...]) -> Sequence[float]:
        pairs = zip(table(prefix), other(prefix), strict=True)
        return [(1 - weight) * a + weight * b for a, b in pairs]

    return row


class TabularForward:
    """`Forward` over a table of logits. Every call is recorded in `calls` as its row count."""

    def __init__(
        self, table: Table, vocabulary: int, blocks: int, block_size: int, positions: int = 4096
    ) -> None:
        self.vocabulary = vocabulary
        self.max_positions = positions
        self.block_size = block_size
        self.device = torch.device("cpu")
        self.calls: list[int] = []
        self._table = table
        self._slots = [-1] * (blocks * block_size)
        self._prefixes: list[tuple[int, ...]] = []

    def hidden(self, token_ids: Tensor, rows: PackedRows) -> Tensor:
        """One hidden number a row: the index of its prefix."""
        self.calls.append(len(token_ids))
        for slot, token in zip(rows.slots.tolist(), token_ids.tolist(), strict=True):
            self._slots[slot] = token
        found = []
        for member, (start, count) in enumerate(zip(rows.starts, rows.counts, strict=True)):
            for position in range(int(start), int(start + count)):
                self._prefixes.append(self._read(rows.blocks[member], position))
                found.append(len(self._prefixes) - 1)
        return torch.tensor(found, dtype=torch.float64)[:, None]

    def logits(self, hidden: Tensor) -> Tensor:
        """The table's rows."""
        rows = [self._table(self._prefixes[int(index)]) for index in hidden[:, 0].tolist()]
        return torch.tensor(rows, dtype=torch.float32).reshape(len(rows), self.vocabulary)

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Forget the ids in some blocks."""
        for block in blocks:
            first = block * self.block_size
            self._slots[first : first + self.block_size] = [-1] * self.block_size

    def memory_bytes(self) -> int:
        """Nothing worth counting."""
        return 0

    def _read(self, blocks: np.ndarray, position: int) -> tuple[int, ...]:
        size = self.block_size
        return tuple(
            self._slots[int(blocks[p // size]) * size + p % size] for p in range(position + 1)
        )
