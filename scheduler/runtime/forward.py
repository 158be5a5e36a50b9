"""The forward of one model over a paged pool: packed rows to hidden states to logits.

`Forward` is all that a round sees of a model; `TransformersForward` is it for the models that
`loading` admits, where PyTorch runs them. Neither knows requests, drafts or sampling.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from scheduler.config import PoolConfig
from scheduler.runner import ModelIdentity
from scheduler.runtime.attention import Attention, PackedAttention
from scheduler.runtime.device import prepare_device
from scheduler.runtime.kv_cache import KvPool
from scheduler.runtime.loading import LoadedModel
from scheduler.runtime.rows import PackedRows


class Forward(Protocol):
    """One model and its K/V pool. Not thread-safe: one thread calls it."""

    vocabulary: int
    max_positions: int
    block_size: int
    device: torch.device

    @property
    def numerics(self) -> str:
        """How a row's arithmetic depends on the rows beside it."""
        ...

    @property
    def prepared(self) -> int:
        """Calls so far that made something ready for their like, which so take less time."""
        ...

    def hidden(
        self, token_ids: torch.Tensor, rows: PackedRows, wanted: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Final hidden states [N, H] of int64 `token_ids` [N] at `rows`; with int64 `wanted` [M]
        those rows' alone, [M, H] in that order, which may take less work.

        Writes the K/V rows of all inputs. A row sees exactly its own segment's rows at positions
        up to its own, cached ones and those of this call.
        """
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Raw next-token logits [M, V] float32 of hidden states [M, H]."""
        ...

    def clear_blocks(self, blocks: Sequence[int], first: int = 0) -> None:
        """Zero the K/V rows of a table of blocks from its row `first` on, so that nothing that is
        not finite stays in them."""
        ...

    def memory_bytes(self) -> int:
        """Bytes of weights and K/V pool."""
        ...


AttentionFactory = Callable[[KvPool, PackedRows, int], Attention]


class TransformersForward:
    """A loaded model with a K/V pool of its own; `attention` is made anew for each call."""

    numerics = "plain"
    prepared = 0

    def __init__(
        self, model: LoadedModel, pool: PoolConfig, attention: AttentionFactory = PackedAttention
    ) -> None:
        prepare_device(model.device)
        self.identity: ModelIdentity = model.identity
        self.vocabulary = model.head.vocabulary
        self.max_positions = model.max_positions
        self.block_size = pool.block_size
        self.device = model.device
        self.pool = KvPool(model.kv_shape, pool, model.device)
        self._decoder = model.decoder
        self._head = model.head
        self._heads = model.heads
        self._attention = attention

    def hidden(
        self, token_ids: torch.Tensor, rows: PackedRows, wanted: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Final hidden states [N, H] of int64 `token_ids` [N] at `rows`, or of the `wanted` rows
        alone; writes K/V.

        Raises ValueError when `rows` do not fit the pool, the context or the tokens.
        """
        rows.check_call(len(token_ids), self.max_positions)
        with torch.inference_mode():
            attention = self._attention(self.pool, rows, self._heads)
            self._decoder.reach(rows.highest_position + 1)
            return self._decoder.hidden(token_ids, rows.positions, attention, wanted)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Raw next-token logits [M, V] float32 of hidden states [M, H]."""
        with torch.inference_mode():
            return self._head.logits(hidden)

    def clear_blocks(self, blocks: Sequence[int], first: int = 0) -> None:
        """Zero the K/V rows of a table of blocks from its row `first` on."""
        with torch.inference_mode():
            self.pool.clear_blocks(blocks, first)

    def memory_bytes(self) -> int:
        """Bytes of weights and K/V pool."""
        return self._decoder.weight_bytes() + self._head.bytes() + self.pool.bytes()
