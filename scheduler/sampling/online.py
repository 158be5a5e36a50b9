"""Row laws from partial statistics of vocabulary slices: the second way to a softmax.

Each slice of a row gives its peak and its mass; merging two of them is associative and commutative
(Milakov and Gimelshein, arXiv 1805.02867), so slices may come in any order, and from workers that
hold a part of the vocabulary each. Knows kept rows only, as `processors.filtered` gives them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from scheduler.sampling.processors import ToLaw


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """What a slice of M rows says of their law: `peak` [M], the largest value, in the rows' dtype,
    and `mass` [M] float64, the sum of exp(value - peak). NaN once a row has no law."""

    peak: Tensor
    mass: Tensor


def partial(part: Tensor) -> Partial:
    """Statistics of a slice [M, v] of kept rows, v at least 1. A slice of -inf alone has no mass.

    A NaN or +inf anywhere makes the mass NaN.
    """
    peak = part.amax(dim=-1)
    weights = torch.exp(part - _floor(peak)[:, None])
    return Partial(peak=peak, mass=weights.sum(dim=-1, dtype=torch.float64))


def merge(one: Partial, other: Partial) -> Partial:
    """Statistics of two disjoint slices together."""
    peak = torch.maximum(one.peak, other.peak)
    return Partial(peak=peak, mass=_moved(one, peak) + _moved(other, peak))


def probabilities(part: Tensor, whole: Partial) -> Tensor:
    """Probabilities [M, v] of a slice, given the statistics of the `whole` rows; in the slice's
    dtype. NaN where the row has no law: with a NaN, a +inf, or nothing but -inf."""
    weights = torch.exp(part - _floor(whole.peak)[:, None])
    return weights / whole.mass.to(part.dtype)[:, None]


def merged(parts: Sequence[Partial]) -> Partial:
    """Statistics of all slices, at least one, merged from the left."""
    return reduce(merge, parts)


def online_law(width: int) -> ToLaw:
    """A law like `processors.law`, by slices of `width` ids: kept rows [M, V] to probabilities."""

    def law(kept: Tensor) -> Tensor:
        slices = kept.split(width, dim=-1)
        whole = merged([partial(each) for each in slices])
        return torch.cat([probabilities(each, whole) for each in slices], dim=-1)

    return law


def _floor(peak: Tensor) -> Tensor:
    """The peak, or 0 where there is none: -inf less -inf would be NaN."""
    return torch.where(peak == -torch.inf, 0.0, peak)


def _moved(one: Partial, peak: Tensor) -> Tensor:
    """The mass of `one` in units of exp(`peak`)."""
    # A slice at the peak keeps its bits, and one without mass meets no -inf less -inf.
    scale = torch.where(one.peak == peak, 1.0, torch.exp(one.peak.double() - peak.double()))
    return one.mass * scale
