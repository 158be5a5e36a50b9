"""One model with its pool, as a round uses it: packs rows, adds up the seconds inside forwards."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from scheduler.runtime.forward import Forward
from scheduler.runtime.rows import Segment, pack
from scheduler.sampling.moving import integers


class TimedForward:
    """A `Forward` that takes segments. `seconds` grows by the time spent inside the model.

    On a device that runs ahead of the host this is launch time, not device time.
    """

    def __init__(self, forward: Forward, clock: Callable[[], float]) -> None:
        self._forward = forward
        self._clock = clock
        self.seconds = 0.0

    def hidden(
        self, token_ids: Tensor, segments: Sequence[Segment], wanted: Sequence[int]
    ) -> Tensor:
        """Hidden states [M, H] of the `wanted` ones of N packed rows; all K/V rows are written."""
        rows = pack(segments, self._forward.block_size, self._forward.device)
        started = self._clock()
        everything = list(wanted) == list(range(len(token_ids)))
        chosen = None if everything else integers(wanted, self._forward.device)
        hidden = self._forward.hidden(token_ids, rows, chosen)
        self.seconds += self._clock() - started
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [M, V] of chosen rows [M, H]."""
        started = self._clock()
        logits = self._forward.logits(hidden)
        self.seconds += self._clock() - started
        return logits

    def clear_blocks(self, blocks: Sequence[int], first: int = 0) -> None:
        """Zero the K/V rows of a table of blocks from its row `first` on."""
        self._forward.clear_blocks(blocks, first)

    @property
    def prepared(self) -> int:
        """Calls so far that made something ready for their like, which so take less time."""
        return self._forward.prepared

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self._forward.device
