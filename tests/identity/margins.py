"""The teacher-forced rule of contract 11.3 b: how far an emitted token is from the reference's.

Plain float64 numpy over raw logits of a reference: filters, noise and margins are written anew.
"""

from dataclasses import dataclass

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """What a row is drawn from; None or 0 switches a filter off. Temperature 0 is the argmax."""

    temperature: float
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cuts:
    """Which tokens [V] a law keeps, and in logits over temperature: for a kept one how near it is
    to the nearest cut, for another one how far beyond the cuts that took it."""

    kept: np.ndarray
    distance: np.ndarray


def margin(logits: np.ndarray, law: Law, noise: np.ndarray | None, emitted: int) -> float:
    """The least change of a difference of two `logits` [V] float64 under which `emitted` is drawn.

    0 when it is drawn as they stand. Every better token must be overtaken, or cut; and an emitted
    token that is cut must come back. `noise` [V] is None at temperature 0.
    """
    if noise is None:
        return float(logits.max() - logits[emitted])
    scaled = logits / law.temperature
    cuts = _cuts(scaled, law)
    scores = np.where(cuts.kept, scaled + noise, -np.inf)
    gaps = scores - (scaled + noise)[emitted]
    better = cuts.kept & (gaps > 0)
    needed = np.minimum(gaps[better], cuts.distance[better]).max(initial=0.0)
    if not cuts.kept[emitted]:
        needed = max(needed, cuts.distance[emitted])
    return float(needed * law.temperature)


def noise_of(seed: int, position: int, vocabulary: int) -> np.ndarray:
    """Gumbel noise [V] of the token at an absolute position, choice 0, from the published key."""
    state = np.zeros(1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for field in (seed, 0, 4, position, 0):
            state = _mix((state ^ np.uint64(field)) + _GOLDEN)
        steps = np.arange(1, vocabulary + 1, dtype=np.uint64)
        bits = _mix(state + steps * _GOLDEN) >> np.uint64(12)
    return -np.log(-np.log((bits.astype(np.float64) + 0.5) * 2.0**-52))


def _mix(words: np.ndarray) -> np.ndarray:
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    return words ^ (words >> np.uint64(31))


def _cuts(scaled: np.ndarray, law: Law) -> _Cuts:
    order = np.lexsort((np.arange(len(scaled)), -scaled))
    ranked = scaled[order]
    kept = np.ones(len(scaled), dtype=bool)
    inside = np.full(len(scaled), np.inf)
    beyond = np.zeros(len(scaled))

    def cut(stays: np.ndarray, distance: np.ndarray) -> None:
        nonlocal kept, inside, beyond
        inside = np.where(stays, np.minimum(inside, distance), inside)
        beyond = np.where(stays, beyond, np.maximum(beyond, distance))
        kept = kept & stays

    if law.top_k is not None and law.top_k < len(scaled):
        cut(np.arange(len(scaled)) < law.top_k, _across(ranked, law.top_k))
    if law.top_p < 1.0:
        before = _mass_before(ranked, int(kept.sum()))
        stays = before < law.top_p
        stays[0] = True
        by_mass = np.abs(_logit(before) - _logit(law.top_p))
        cut(stays, np.minimum(by_mass, _across(ranked, int(stays.sum()))))
    if law.min_p > 0.0:
        floor = ranked[0] + np.log(law.min_p)
        cut(ranked >= floor, np.abs(ranked - floor))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return _Cuts(kept=kept[place], distance=np.where(kept, inside, beyond)[place])


def _across(ranked: np.ndarray, count: int) -> np.ndarray:
    """How far each of the `ranked` values is from changing sides with one across the cut."""
    if count >= len(ranked):
        return np.full(len(ranked), np.inf)
    inner, outer = ranked[count - 1], ranked[count]
    return np.where(np.arange(len(ranked)) < count, ranked - outer, inner - ranked)


def _mass_before(ranked: np.ndarray, count: int) -> np.ndarray:
    """The mass that stands before each place, in the law of the first `count`."""
    weights = np.exp(ranked - ranked[0])
    weights[count:] = 0.0
    sums = np.cumsum(weights)
    return (sums - weights) / sums[-1]


def _logit(mass: np.ndarray | float) -> np.ndarray:
    """Log odds: a shift of all logits on one side of a cut by x moves it by x."""
    with np.errstate(divide="ignore"):
        return np.log(mass) - np.log1p(-np.minimum(mass, 1.0))
