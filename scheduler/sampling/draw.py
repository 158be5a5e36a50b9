"""Draws one event of each row from given randomness.

Knows rows, uniforms and noise; nothing of where they come from or what is decided with them.
"""

import torch
from torch import Tensor

from scheduler.sampling.processors import greedy_choice


def inverse_cdf(rows: Tensor, uniforms: Tensor) -> Tensor:
    """Draw from weights `rows` [M, V] by `uniforms` [M] in [0, 1): ids [M] int64.

    The first event whose cumulative float64 sum exceeds u times the row's total. Rows need not
    be normalised. Never an event of zero weight, not at u = 0 and not at a u that rounds past
    the last sum (then the last event with weight). A row without weight gives a valid id.
    """
    sums = rows.cumsum(dim=-1, dtype=torch.float64)
    if rows.device.type == "cpu":
        return _bisected(sums, uniforms)
    vocabulary = rows.shape[-1]
    ids = torch.arange(vocabulary, dtype=torch.int32, device=rows.device)
    # A parallel scan may round an event without weight into a step: hence the test of the weight.
    weighty = rows > 0
    passed = sums > (uniforms * sums[:, -1])[:, None]
    first = torch.where(passed & weighty, ids, vocabulary - 1).amin(dim=-1)
    last = torch.where(weighty, ids, 0).amax(dim=-1)
    return torch.minimum(first, last).to(torch.int64)


def _bisected(sums: Tensor, uniforms: Tensor) -> Tensor:
    """`inverse_cdf` on sums [M, V] of a scan in order: they grow exactly where there is weight."""
    total = sums[:, -1:].contiguous()
    first = torch.searchsorted(sums, uniforms[:, None] * total, right=True)
    last = torch.searchsorted(sums, total)
    return torch.minimum(first, last).clamp_(max=sums.shape[-1] - 1)[:, 0]


def race(kept: Tensor, gumbel: Tensor) -> Tensor:
    """Gumbel-max draw: argmax of `kept` + `gumbel` in float64, lowest id on ties: [M] int64.

    `kept` [M, V] are rows of `processors.filtered`, `gumbel` [M, V] is float64. A -inf never
    wins, and a greedy row has one finite entry, so that noise does not matter to it.
    """
    return greedy_choice(kept.to(torch.float64) + gumbel)
