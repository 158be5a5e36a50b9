"""Pearson's chi-square test of observed texts against a law, many at once. Knows counts, no engine.

A statistic over several laws is the sum of theirs, and so are its degrees of freedom.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

# Below it the chi-square distribution is a poor approximation of a cell's (Cochran 1954).
_LEAST_EXPECTED = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How well `texts` observed texts fit: the statistic and its degrees of freedom. The statistic
    is infinite when a text was seen that the law cannot give."""

    texts: int = 0
    statistic: float = 0.0
    freedom: int = 0

    def __add__(self, other: "Fit") -> "Fit":
        return Fit(
            texts=self.texts + other.texts,
            statistic=self.statistic + other.statistic,
            freedom=self.freedom + other.freedom,
        )

    @property
    def p_value(self) -> float:
        """The chance of at least such a statistic under the law."""
        if math.isinf(self.statistic):
            return 0.0
        return survival(self.statistic, self.freedom)


def fit(counts: Mapping[Hashable, int], law: Mapping[Hashable, float]) -> Fit:
    """Pearson's statistic of `counts` against `law`, which sums to 1.

    Cells that expect fewer than 5 are pooled, together with the next smallest if that is still
    too few.
    """
    texts = sum(counts.values())
    possible = {cell: chance for cell, chance in law.items() if chance > 0.0}
    if any(count and cell not in possible for cell, count in counts.items()):
        return Fit(texts=texts, statistic=math.inf, freedom=len(possible) - 1)
    order = sorted(possible, key=lambda cell: possible[cell])
    expected = np.array([possible[cell] * texts for cell in order])
    observed = np.array([counts.get(cell, 0) for cell in order], dtype=np.float64)
    cut = _pooled(expected)
    expected = np.array([expected[:cut].sum(), *expected[cut:]])
    observed = np.array([observed[:cut].sum(), *observed[cut:]])
    if len(expected) < 2:
        return Fit(texts=texts)
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return Fit(texts=texts, statistic=statistic, freedom=len(expected) - 1)


def _pooled(ascending: np.ndarray) -> int:
    """How many leading cells become one."""
    few = int((ascending < _LEAST_EXPECTED).sum())
    sums = np.cumsum(ascending)
    enough = int(np.argmax(sums >= _LEAST_EXPECTED)) + 1 if sums[-1] >= _LEAST_EXPECTED else None
    return len(ascending) if enough is None else max(1, few, enough)


def survival(statistic: float, freedom: float) -> float:
    """P(X >= statistic) of a chi-square variable: the upper incomplete gamma function
    Q(freedom / 2, statistic / 2). 1 without freedom."""
    if freedom == 0:
        return 1.0
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: rejecting those of at most `level` has a
    family-wise error of at most `level`, however the tests depend on each other (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    found = [0.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        found[place] = highest
    return found


def power(total_variation: float, seen: Fit, level: float) -> float:
    """The least chance that a test of `level`, of as many texts and as much freedom as `seen`,
    rejects laws that are off by `total_variation` each.

    The statistic is then about non-central chi-square. By Cauchy and Schwarz its non-centrality
    N sum(d^2 / p) is at least N (sum |d|)^2 = 4 N TV^2, and its tail is the Poisson mixture of
    central ones.
    """
    if seen.freedom == 0:
        return 0.0
    half = 2.0 * seen.texts * total_variation**2
    steps = torch.arange(int(half + 12.0 * math.sqrt(half) + 40), dtype=torch.float64)
    weights = torch.exp(steps * math.log(half) - half - torch.lgamma(steps + 1.0))
    limit = torch.tensor(_critical(seen.freedom, level) / 2, dtype=torch.float64)
    tails = torch.special.gammaincc(seen.freedom / 2 + steps, limit.expand_as(steps))
    return float((weights * tails).sum())


def least_seen(seen: Fit, level: float, wanted: float = 0.99) -> float:
    """The smallest total variation that is rejected with at least the power `wanted`; 1 if none
    is."""
    low, high = 0.0, 1.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        if power(middle, seen, level) >= wanted:
            high = middle
        else:
            low = middle
    return high


def _critical(freedom: int, level: float) -> float:
    """The statistic whose survival is `level`."""
    low, high = 0.0, 4.0 * freedom + 4000.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        if survival(middle, freedom) > level:
            low = middle
        else:
            high = middle
    return high
