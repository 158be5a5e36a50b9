"""Turns raw logit rows into the law they are sampled from (contract section 8).

Knows rows and their settings; nothing of requests, drafts or randomness. The order is: bias and
penalties, masks, temperature, top-k, top-p, min-p. Every function leaves its inputs alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from scheduler.sampling.moving import flags, floats, integers

GREEDY_BELOW = 1e-5
_NEVER = float("-inf")

ToLaw = Callable[[Tensor], Tensor]
"""From kept rows [M, V] to probabilities: `law`, or another way to the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSettings:
    """Filters of M rows, with what the host knows of them so that unused ones cost nothing.

    Tensors are [M]: `temperature`, `top_p`, `min_p` float64, `top_k` int64 (the vocabulary size
    when off), `greedy` bool. A greedy row's `temperature` is stored as 1. `widest_k` is the
    largest `top_k` of all rows.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    greedy: Tensor
    widest_k: int
    any_temperature: bool
    any_top_k: bool
    any_top_p: bool
    any_min_p: bool
    any_greedy: bool
    all_greedy: bool


def row_settings(
    *,
    temperature: Sequence[float],
    top_k: Sequence[int | None],
    top_p: Sequence[float],
    min_p: Sequence[float],
    vocabulary: int,
    device: torch.device,
) -> RowSettings:
    """Settings of M rows from M plain values each.

    `top_k` None, `top_p` 1 and `min_p` 0 switch a filter off; a temperature under 1e-5 makes a
    row greedy. Values are taken as already range-checked.
    """
    greedy = [value < GREEDY_BELOW for value in temperature]
    warmth = [1.0 if cold else value for cold, value in zip(greedy, temperature, strict=True)]
    kept = [vocabulary if k is None else max(1, min(k, vocabulary)) for k in top_k]
    return RowSettings(
        temperature=floats(warmth, device),
        top_k=integers(kept, device),
        top_p=floats(top_p, device),
        min_p=floats(min_p, device),
        greedy=flags(greedy, device),
        widest_k=max(kept, default=vocabulary),
        any_temperature=any(value != 1.0 for value in warmth),
        any_top_k=any(k < vocabulary for k in kept),
        any_top_p=any(mass < 1.0 for mass in top_p),
        any_min_p=any(floor > 0.0 for floor in min_p),
        any_greedy=any(greedy),
        all_greedy=all(greedy),
    )


def add_bias(logits: Tensor, rows: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    """`logits` [M, V] with `values` [n] added at (`rows` [n], `ids` [n])."""
    return logits.index_put((rows, ids), values.to(logits.dtype), accumulate=True)


def forbid(logits: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
    """`logits` [M, V] with -inf at (`rows` [n], `ids` [n])."""
    return logits.index_put((rows, ids), logits.new_full((), _NEVER))


def penalise(
    logits: Tensor,
    in_prompt: Tensor,
    output_counts: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> Tensor:
    """`logits` [M, V] less the penalties for tokens seen before each row.

    `in_prompt` [M, V] (bool, or counts) and `output_counts` [M, V] describe the row's own prefix;
    `repetition`, `presence`, `frequency` are [M]. Repetition (Keskar et al., arXiv 1909.05858)
    divides a positive and multiplies a negative logit of every token of prompt or output; the
    OpenAI penalties then subtract `presence` once and `frequency` per occurrence in the output.
    """
    used = output_counts > 0
    factor = repetition.to(logits.dtype)[:, None]
    repeated = torch.where(logits > 0, logits / factor, logits * factor)
    penalised = torch.where(used | (in_prompt > 0), repeated, logits)
    penalised -= frequency.to(logits.dtype)[:, None] * output_counts
    return penalised - presence.to(logits.dtype)[:, None] * used


def filtered(logits: Tensor, settings: RowSettings) -> Tensor:
    """Logits [M, V] over temperature, with -inf at every token that a filter removes.

    Tokens are ordered by (scaled value descending, id ascending). top-k keeps the first k; top-p
    the shortest run whose mass in the top-k law is at least top_p; min-p every token at least
    min_p times as likely as the best. At least one token stays. A greedy row keeps its lowest-id
    argmax alone, with value 0: its law is an exact one-hot and noise cannot move it. A row that
    was not `usable` stays so.
    """
    if settings.all_greedy:
        return _only_argmax(logits)
    kept = logits
    if settings.any_temperature:
        kept = kept / settings.temperature.to(logits.dtype)[:, None]
    if settings.any_top_k or settings.any_top_p:
        kept = _leading(kept, settings)
    if settings.any_min_p:
        kept = _likely(kept, settings.min_p)
    if settings.any_greedy:
        kept = torch.where(settings.greedy[:, None], _only_argmax(logits), kept)
    return kept


def law(kept: Tensor) -> Tensor:
    """Probabilities [M, V] of rows that `filtered` gave; NaN where a row was not usable."""
    return torch.softmax(kept, dim=-1)


def greedy_choice(rows: Tensor) -> Tensor:
    """Lowest id among the largest values of each row: [M] int64. Any valid id for a NaN row."""
    # torch.argmax promises no order among equals, hence the ids and their minimum.
    vocabulary = rows.shape[-1]
    ids = torch.arange(vocabulary, dtype=torch.int32, device=rows.device)
    best = rows == rows.amax(dim=-1, keepdim=True)
    return torch.where(best, ids, vocabulary - 1).amin(dim=-1).to(torch.int64)


def usable(rows: Tensor) -> Tensor:
    """Whether each row [M, V] of logits (or of a law) has a law: [M] bool.

    False for a row with a NaN or +inf, and for one with nothing left but -inf.
    """
    return torch.isfinite(rows.amax(dim=-1))


def _only_argmax(logits: Tensor) -> Tensor:
    best = greedy_choice(logits)[:, None]
    # 0 on a usable row and NaN on any other.
    value = logits.amax(dim=-1, keepdim=True) * 0.0
    return torch.full_like(logits, _NEVER).scatter_(1, best, value)


def _leading(scaled: Tensor, settings: RowSettings) -> Tensor:
    """Keep as many leading tokens of each row as top-k and top-p together allow."""
    vocabulary = scaled.shape[-1]
    if settings.widest_k < vocabulary:
        ordered = scaled.topk(settings.widest_k, dim=-1).values
    else:
        ordered = _descending(scaled)
    count = settings.top_k
    if settings.any_top_p:
        count = _nucleus(ordered, count, settings.top_p)
    edge = ordered.gather(1, count[:, None] - 1)
    above = scaled > edge
    # The values alone fix all but the ties at the edge; the lowest ids of those stay.
    tied = scaled == edge
    room = count[:, None] - above.sum(dim=-1, keepdim=True)
    kept = above | (tied & (tied.cumsum(dim=-1, dtype=torch.int32) <= room))
    return torch.where(kept | scaled.isnan(), scaled, _NEVER)


def _descending(values: Tensor) -> Tensor:
    if values.device.type == "cpu":
        # NumPy's vectorised sort is ten times faster there, and bare values have no ties to keep.
        return torch.from_numpy(np.sort(values.detach().numpy(), axis=-1)).flip(-1)
    return values.sort(dim=-1, descending=True).values


def _nucleus(ordered: Tensor, count: Tensor, top_p: Tensor) -> Tensor:
    """How many leading values [M] have just `top_p` of the mass of the first `count`."""
    place = torch.arange(ordered.shape[-1], device=ordered.device)
    weight = torch.exp(ordered - ordered[:, :1])
    weight = torch.where(place < count[:, None], weight, 0.0)
    sums = weight.cumsum(dim=-1, dtype=torch.float64)
    needed = (top_p * sums[:, -1])[:, None]
    # A value stays while the mass before it falls short.
    short = 1 + (sums[:, :-1] < needed).sum(dim=-1)
    # At top_p = 1 rounding could end the run early, and close to 1 a parallel scan end it late.
    return torch.where(top_p < 1.0, torch.minimum(short, count), count)


def _likely(scaled: Tensor, min_p: Tensor) -> Tensor:
    floor = scaled.amax(dim=-1, keepdim=True) + min_p.log().to(scaled.dtype)[:, None]
    return torch.where(scaled < floor, _NEVER, scaled)
