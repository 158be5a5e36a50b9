"""A model whose law is a table, behind the production `Forward` protocol.

It keeps token ids in its paged pool instead of keys and values, and reads each row's prefix back
through the block table, as attention would: a wrong slot, a stale row or another request's block
changes the law, which every test that knows the table then sees.
"""

import functools
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

    @functools.cache
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
    """`Forward` over a table of logits.

    `calls` holds the row count of every call, `asked` the prefix of every row whose logits were
    taken. Ids in `poison` stand for K/V rows that are not finite: while one is anywhere in the
    blocks that a row gathers, masked or not, that row's logits are NaN.
    """

    prepared = 0

    def __init__(
        self,
        table: Table,
        vocabulary: int,
        blocks: int,
        block_size: int,
        *,
        dtype: torch.dtype = torch.float32,
        poison: frozenset[int] = frozenset(),
    ) -> None:
        self.vocabulary = vocabulary
        self.max_positions = 4096
        self.block_size = block_size
        self.device = torch.device("cpu")
        self.calls: list[int] = []
        self.asked: list[tuple[int, ...]] = []
        self._table = table
        self._dtype = dtype
        self._poison = poison
        self._slots: list[int | None] = [None] * (blocks * block_size)
        self._rows: list[tuple[tuple[int, ...], bool]] = []

    def hidden(self, token_ids: Tensor, rows: PackedRows, wanted: Tensor | None = None) -> Tensor:
        """The index of each row's prefix, and its health; of `wanted` rows alone if any.

        Numbers of earlier calls are void.
        """
        self.calls.append(len(token_ids))
        for slot, token in zip(rows.slots.tolist(), token_ids.tolist(), strict=True):
            self._slots[slot] = token
        self._rows = []
        for blocks, start, count in zip(rows.blocks, rows.starts, rows.counts, strict=True):
            gathered = self._gather(blocks.tolist())
            poisoned = not self._poison.isdisjoint(gathered)
            self._rows += [
                (tuple(gathered[: position + 1]), poisoned)
                for position in range(int(start), int(start + count))
            ]
        numbers = torch.arange(len(self._rows), dtype=torch.float64)
        sick = torch.tensor([poisoned for _, poisoned in self._rows])
        # A second column that is not finite where the K/V rows are not, as in a real model.
        states = torch.stack([numbers, torch.where(sick, torch.nan, 0.0)], dim=1)
        return states if wanted is None else states[wanted]

    def logits(self, hidden: Tensor) -> Tensor:
        """The table's rows."""
        chosen = [self._rows[int(index)] for index in hidden[:, 0].tolist()]
        self.asked += [prefix for prefix, _ in chosen]
        rows = [
            [float("nan")] * self.vocabulary if poisoned else self._table(prefix)
            for prefix, poisoned in chosen
        ]
        return torch.tensor(np.array(rows), dtype=self._dtype).reshape(len(rows), self.vocabulary)

    def clear_blocks(self, blocks: Sequence[int], first: int = 0) -> None:
        """Forget the ids in a table of blocks from its row `first` on."""
        size = self.block_size
        for row in range(first, len(blocks) * size):
            self._slots[blocks[row // size] * size + row % size] = None

    def memory_bytes(self) -> int:
        """Nothing worth counting."""
        return 0

    def _gather(self, blocks: list[int]) -> list[int | None]:
        """Ids of whole blocks, by position; None where nothing was written yet."""
        size = self.block_size
        return [
            slot for block in blocks for slot in self._slots[block * size : block * size + size]
        ]
