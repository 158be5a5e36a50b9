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


def margin(logits: np.ndarray, law: Law, noise: np.ndarray | None, emitted: int) -> float:
    """The least change of a difference of two `logits` [V] float64 under which `emitted` is drawn.

    0 when it is drawn as they stand. Every better token must be overtaken, or cut; and an emitted
    token that is cut must come back. `noise` [V] is None at temperature 0.
    """
    if noise is None:
        return float(logits.max() - logits[emitted])
    scaled = logits / law.temperature
    cuts = _Cuts(scaled, law)
    gaps = scaled + noise - (scaled + noise)[emitted]
    better = np.flatnonzero(cuts.kept & (gaps > 0))
    needed = [min(gaps[token], cuts.distance(token)) for token in better]
    if not cuts.kept[emitted]:
        needed.append(cuts.distance(emitted))
    return float(max(needed, default=0.0) * law.temperature)


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


class _Cuts:
    """Which tokens [V] a law keeps of `scaled` logits (over temperature), and what would change it.

    Tokens are looked at by rank. The first `count` stand after top-k; top-p goes by the mass before
    a token in the law of those.
    """

    def __init__(self, scaled: np.ndarray, law: Law) -> None:
        self._law = law
        order = np.lexsort((np.arange(len(scaled)), -scaled))
        self._ranked = scaled[order]
        self._rank = np.empty_like(order)
        self._rank[order] = np.arange(len(order))
        self._count = min(len(scaled), law.top_k or len(scaled))
        self._weights = np.exp(self._ranked - self._ranked[0])
        self._sums = np.concatenate([[0.0], np.cumsum(self._weights[: self._count])])
        self._floor = self._ranked[0] + np.log(law.min_p) if law.min_p > 0.0 else -np.inf
        kept = np.arange(len(order)) < self._count
        if law.top_p < 1.0:
            before = self._sums[np.minimum(np.arange(len(order)), self._count)]
            kept &= before < law.top_p * self._sums[-1]
            kept[0] = True
        self.kept = (kept & (self._ranked >= self._floor))[self._rank]

    def distance(self, token: int) -> float:
        """The least change of a difference of two scaled logits that may cut a kept token, or bring
        another one back past every cut that took it."""
        rank = int(self._rank[token])
        value = self._ranked[rank]
        if self.kept[token]:
            return min(self._out_of_top_k(rank), self._out_of_mass(rank), value - self._floor)
        return max(self._into_top_k(rank), self._into_mass(rank), self._floor - value)

    def _out_of_top_k(self, rank: int) -> float:
        if self._count == len(self._ranked):
            return np.inf
        return self._ranked[rank] - self._ranked[self._count]

    def _into_top_k(self, rank: int) -> float:
        return max(self._ranked[self._count - 1] - self._ranked[rank], 0.0)

    def _out_of_mass(self, rank: int) -> float:
        """Others pass the token, down to some later one, until too much mass stands before it.

        Where differences change by x at most, so do the log odds of any mass.
        """
        if self._law.top_p >= 1.0:
            return np.inf
        passing = np.arange(rank, self._count)
        before = self._sums[passing + 1] - self._weights[rank]
        odds = _log_odds(before, self._sums[-1] - before)
        needed = np.maximum(self._ranked[rank] - self._ranked[passing], self._limit - odds)
        return float(needed.min())

    def _into_mass(self, rank: int) -> float:
        """The token passes others, up to some place, until little enough mass stands before it. One
        that top-k took is counted in the last one's stead."""
        if self._law.top_p >= 1.0:
            return 0.0
        total, last = self._sums[-1], min(rank, self._count - 1)
        if rank >= self._count:
            total += self._weights[rank] - self._weights[self._count - 1]
        passed = np.arange(last + 1)
        odds = _log_odds(self._sums[passed], total - self._sums[passed])
        needed = np.maximum(self._ranked[passed] - self._ranked[rank], odds - self._limit)
        return max(float(needed.min()), 0.0)

    @property
    def _limit(self) -> float:
        return float(np.log(self._law.top_p) - np.log1p(-self._law.top_p))


def _log_odds(mass: np.ndarray, rest: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(mass, 0.0)) - np.log(rest)
