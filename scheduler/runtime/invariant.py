"""Shape-invariant mode: a row's bits do not depend on its company (contract section 11.3 a).

Kernels choose their order of summation, their vector tails and their shares of threads by the
shape of a call. So every call here has one shape for the life of the process: packed calls are cut
into calls of exactly M rows, filled up with scratch rows, and attention takes keys in fixed splits.
What is left is the place of a row among the M, which no shape can rule out: `invariant_forward`
measures it before it lets a model serve. It knows rows, never requests or sampling.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.functional import pad

from scheduler.config import PoolConfig
from scheduler.errors import ConfigRefused
from scheduler.runtime.decoder import chosen
from scheduler.runtime.forward import TransformersForward
from scheduler.runtime.loading import LoadedModel
from scheduler.runtime.rows import Integers, PackedRows, Segment, pack
from scheduler.runtime.split_attention import SPLIT_KEYS, SplitAttention

# Tried in this order. Eight rows hold one request's verification without much padding; sixteen fill
# whole vectors, and so have no scalar tail, where a model's widths do not.
ROWS_OF_A_CALL = (8, 16)
# The probe's contexts end in any of the first splits.
PROBE_SPLITS = 3


class InvariantForward:
    """A `Forward` whose every model call and every head product has exactly `rows` rows.

    K/V rows of earlier calls are in the pool, so that a segment may be cut anywhere.
    """

    prepared = 0

    def __init__(self, model: LoadedModel, pool: PoolConfig, rows: int) -> None:
        scratch = -(-rows // pool.block_size)
        whole = PoolConfig(blocks=pool.blocks + scratch, block_size=pool.block_size)
        self.inner = TransformersForward(model, whole, SplitAttention)
        self.rows = rows
        self.vocabulary = self.inner.vocabulary
        self.max_positions = self.inner.max_positions
        self.block_size = pool.block_size
        self.device = model.device
        self._blocks = pool.blocks
        own = tuple(range(pool.blocks, whole.blocks))
        filler = Segment(start=0, rows=rows, blocks=own)
        self._scratch = pack([filler], pool.block_size, model.device)

    @property
    def numerics(self) -> str:
        """What a row's bits depend on besides the row, for the round coordinate."""
        return f"rows of {self.rows}, keys in splits of {SPLIT_KEYS}"

    def hidden(
        self, token_ids: torch.Tensor, rows: PackedRows, wanted: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Final hidden states [N, H] of int64 `token_ids` [N] at `rows`, or of the `wanted` rows
        alone; writes K/V.

        Raises ValueError when `rows` do not fit the pool, the context or the tokens.
        """
        if len(token_ids) != len(rows.positions):
            raise ValueError(f"{len(token_ids)} tokens for {len(rows.positions)} rows")
        if rows.highest_block >= self._blocks:
            raise ValueError(
                f"block {rows.highest_block} is outside the pool of {self._blocks} blocks"
            )
        calls = [
            self.inner.hidden(pad(token_ids[first : first + self.rows], (0, missing)), cut)
            for first, missing, cut in self._cuts(rows)
        ]
        return chosen(torch.cat(calls)[: len(token_ids)], wanted)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Raw next-token logits [M, V] float32 of hidden states [M, H]."""
        parts = [
            self.inner.logits(pad(part, (0, 0, 0, self.rows - len(part))))
            for part in hidden.split(self.rows)
        ]
        return torch.cat(parts)[: len(hidden)]

    def clear_blocks(self, blocks: Sequence[int], first: int = 0) -> None:
        """Zero the K/V rows of a table of blocks from its row `first` on."""
        self.inner.clear_blocks(blocks, first)

    def memory_bytes(self) -> int:
        """Bytes of weights and K/V pool, the scratch blocks with it."""
        return self.inner.memory_bytes()

    def _cuts(self, rows: PackedRows) -> list[tuple[int, int, PackedRows]]:
        """Calls of exactly `self.rows` rows: number of the first, scratch rows in it, its rows."""
        table = rows.blocks[np.repeat(np.arange(len(rows.counts)), rows.counts)]
        cuts = []
        for first in range(0, len(table), self.rows):
            own = slice(first, first + self.rows)
            missing = max(0, first + self.rows - len(table))
            positions = torch.cat((rows.positions[own], self._scratch.positions[:missing]))
            slots = torch.cat((rows.slots[own], self._scratch.slots[:missing]))
            cut = _each_alone(rows.block_size, positions, slots, self._with_scratch(table[own]))
            cuts.append((first, missing, cut))
        return cuts

    def _with_scratch(self, table: Integers) -> Integers:
        """Block tables [n, b] with those of the missing rows below, as wide as the wider."""
        scratch = self._scratch.blocks
        width = max(table.shape[1], scratch.shape[1])
        below = np.repeat(_widened(scratch, width), self.rows - len(table), axis=0)
        return np.concatenate((_widened(table, width), below))


def invariant_forward(model: LoadedModel, pool: PoolConfig) -> InvariantForward:
    """`model` in shape-invariant mode, its bits seen to be free of place and neighbours.

    Raises ConfigRefused when they are not.
    """
    for rows in ROWS_OF_A_CALL:
        if _keeps_bits(model, pool.block_size, rows):
            return InvariantForward(model, pool, rows)
    raise ConfigRefused(
        f"batch_invariant=true: with threads={torch.get_num_threads()} and "
        f"dtype={model.identity.dtype} the bits of a row of {model.identity.name} depend on its "
        "place in a call; try threads=1, another dtype or pack_weights=false"
    )


def _keeps_bits(model: LoadedModel, block_size: int, rows: int) -> bool:
    """Whether every probe row gives the same bits at each of the `rows` places of a call, each
    time among other neighbours, through all layers and the head."""
    count = rows + rows // 2
    limit = min(model.max_positions, PROBE_SPLITS * SPLIT_KEYS)
    shared = -(-limit // block_size)
    forward = InvariantForward(
        model, PoolConfig(blocks=shared + count, block_size=block_size), rows
    )
    generator = torch.Generator().manual_seed(0)
    for layer in forward.inner.pool.layers:
        layer.normal_(generator=generator)
    segments = [_probe(number, limit, shared, block_size) for number in range(count)]
    tokens = torch.arange(1, count + 1) * 7919 % forward.vocabulary
    first: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for turn in range(count):
        numbers = [(place + turn) % count for place in range(rows)]
        packed = pack([segments[number] for number in numbers], block_size, model.device)
        hidden = forward.hidden(tokens[numbers], packed)
        logits = forward.logits(hidden)
        for place, number in enumerate(numbers):
            seen = first.setdefault(number, (hidden[place], logits[place]))
            if not (torch.equal(seen[0], hidden[place]) and torch.equal(seen[1], logits[place])):
                return False
    return True


def _probe(number: int, limit: int, shared: int, block_size: int) -> Segment:
    """One row somewhere below `limit`: all probes read the same blocks, and write their own."""
    position = number * 101 % limit
    before = position // block_size
    return Segment(start=position, rows=1, blocks=(*range(before), shared + number))


def _each_alone(
    block_size: int, positions: torch.Tensor, slots: torch.Tensor, table: Integers
) -> PackedRows:
    """Rows as segments of one row each; `table` [N, b] are their block ids."""
    starts = positions.numpy(force=True)
    return PackedRows(
        positions=positions,
        slots=slots,
        block_size=block_size,
        starts=starts,
        counts=np.ones_like(starts),
        blocks=table,
        groups=(),
        restore=None,
        highest_block=int(table.max()),
        highest_position=int(starts.max()),
    )


def _widened(table: Integers, width: int) -> Integers:
    """`table` [n, b] with its last column repeated up to `width` columns."""
    return np.pad(table, ((0, 0), (0, width - table.shape[1])), mode="edge")
