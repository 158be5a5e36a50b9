"""Runs calls of known shapes over buffers that stay in place, by replays of what was recorded.

A replay repeats the device's work of a call without the host's: a call is filled into the buffers
of its shape, replayed, and its own rows are picked out. Knows shapes; no layers, no CUDA.
"""

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from scheduler.runtime.decoder import chosen
from scheduler.runtime.forward import Forward
from scheduler.runtime.rows import PackedRows

logger = logging.getLogger(__name__)

# Shapes that one forward keeps. Each has buffers, a recording and its kernels' arguments.
MOST_SHAPES = 256
# The call of a shape that has it recorded: the first may stay the only one.
_RECORDED_AT = 2

Shape = TypeVar("Shape", bound=Hashable)
Launch = Callable[[], Tensor]
# Makes of a launch one that repeats its work on the same memory without asking the host again. It
# may run the launch several times. Raises when the launch cannot be recorded.
Record = Callable[[Launch], Launch]


class FixedCall(Protocol):
    """One shape of call over buffers that stay in place."""

    def fill(self, token_ids: Tensor, rows: PackedRows) -> None:
        """Bring one call's int64 `token_ids` [N] and `rows` into the buffers, padded.

        Whatever has to be computed on the host happens here, and it waits for no device. Raises
        ValueError as `Forward.hidden` does.
        """
        ...

    def launch(self) -> Tensor:
        """Final hidden states of the buffers as they are; writes K/V. Running it again changes
        nothing. It reads nothing of the host that changes between calls."""
        ...

    def pick(self, states: Tensor, rows: PackedRows) -> Tensor:
        """The call's own rows [N, H] of what `launch` gave, in memory that no replay writes."""
        ...

    def bytes(self) -> int:
        """Bytes of the buffers."""
        ...


class Fixable(Forward, Protocol[Shape]):
    """A forward that can run calls of some shapes over buffers that stay in place."""

    def shape_of(self, rows: PackedRows) -> Shape | None:
        """The shape that holds `rows` with the least padding; None where there is none."""
        ...

    def fixed(self, shape: Shape) -> FixedCall:
        """Buffers for calls of `shape`, which `shape_of` gave."""
        ...


class _Kept:
    """A shape's buffers, and what runs them: their own launch until it is replaced."""

    def __init__(self, call: FixedCall) -> None:
        self.call = call
        self.run = call.launch
        self.calls = 0


class GraphedForward(Generic[Shape]):
    """A `Forward` that replays calls of known shapes and runs all others as `forward` does.

    A shape gets its buffers when it is met and is recorded when it is met again; what cannot be
    recorded runs over its buffers all the same, so that a call's arithmetic does not depend on how
    often its shape was met. With `most` shapes known, others run as `forward` runs them.
    `recorded` counts the shapes that are replayed, `prepared` the calls that met a shape or had it
    recorded: no other call of that shape takes their time.
    """

    def __init__(self, forward: Fixable[Shape], record: Record, most: int = MOST_SHAPES) -> None:
        self.inner = forward
        self.vocabulary = forward.vocabulary
        self.max_positions = forward.max_positions
        self.block_size = forward.block_size
        self.device = forward.device
        self._record = record
        self._most = most
        self._kept: dict[Shape, _Kept] = {}
        self.recorded = 0
        self.prepared = 0
        self._warned = False

    @property
    def numerics(self) -> str:
        """How a row's arithmetic depends on the rows beside it: here also by its call's shape."""
        return f"{self.inner.numerics}, padded"

    def hidden(self, token_ids: Tensor, rows: PackedRows, wanted: Tensor | None = None) -> Tensor:
        """Final hidden states [N, H] of int64 `token_ids` [N] at `rows`, or of the `wanted` rows
        alone; writes K/V.

        Raises ValueError when `rows` do not fit the pool, the context or the tokens.
        """
        with torch.inference_mode():
            kept = self._keep(self.inner.shape_of(rows))
            if kept is None:
                return self.inner.hidden(token_ids, rows, wanted)
            kept.call.fill(token_ids, rows)
            kept.calls += 1
            self.prepared += kept.calls <= _RECORDED_AT
            if kept.calls == _RECORDED_AT:
                kept.run = self._recording(kept.call)
            return chosen(kept.call.pick(kept.run(), rows), wanted)

    def logits(self, hidden: Tensor) -> Tensor:
        """Raw next-token logits [M, V] float32 of hidden states [M, H]."""
        return self.inner.logits(hidden)

    def clear_blocks(self, blocks: Sequence[int], first: int = 0) -> None:
        """Zero the K/V rows of a table of blocks from its row `first` on."""
        self.inner.clear_blocks(blocks, first)

    def memory_bytes(self) -> int:
        """Bytes of weights, K/V pool and buffers; not what recordings take beside them.

        May be asked from any thread, also while a call adds a shape.
        """
        buffers = sum(kept.call.bytes() for kept in tuple(self._kept.values()))
        return self.inner.memory_bytes() + buffers

    def _keep(self, shape: Shape | None) -> _Kept | None:
        """What is kept of a shape, made now if there is room for it."""
        if shape is None:
            return None
        if shape not in self._kept and len(self._kept) < self._most:
            self._kept[shape] = _Kept(self.inner.fixed(shape))
        return self._kept.get(shape)

    def _recording(self, call: FixedCall) -> Launch:
        """A replay of the filled `call`, its own launch where there can be none."""
        try:
            launch = self._record(call.launch)
        except Exception as problem:  # noqa: BLE001 - whatever some layer does not bear
            if not self._warned:
                logger.warning("a model call cannot be recorded, it runs without: %s", problem)
            self._warned = True
            return call.launch
        self.recorded += 1
        return launch
