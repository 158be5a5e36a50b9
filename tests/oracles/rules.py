"""The acceptance rules of one request, in NumPy, straight from their definitions.

A race on Gumbel noise g takes the largest ln p + g, which is the smallest E / p with E = exp(-g) a
standard exponential: from there come the closed forms of two races on the same noise.
"""

import math
from itertools import pairwise

import numpy as np


def bounds(rule, p, q, drafts):
    """Acceptance bounds of all drafts by `rule`, straight from the definitions."""
    ratios = [p[i][d] / q[i][d] for i, d in enumerate(drafts)]
    if rule == "token":
        return [min(1.0, ratio) for ratio in ratios]
    reach = reaches(p, q, drafts)
    found = []
    for i in range(1, len(drafts)):
        surplus = np.maximum(reach[i] * p[i] - q[i], 0.0).sum()
        spread = surplus + 1.0 - reach[i]
        found.append(surplus / spread if spread > 0 else 1.0)
    return [*found, reach[-1]][: len(drafts)]


def reaches(p, q, drafts):
    """P_0 .. P_K of block verification."""
    reach = [1.0]
    for i, d in enumerate(drafts):
        reach.append(min(1.0, reach[-1] * p[i][d] / q[i][d]))
    return reach


def accepted_length(rule, limits, uniforms):
    """How many drafts stand, by the definition of `rule`."""
    passed = [u < limit for u, limit in zip(uniforms, limits, strict=True)]
    if rule == "token":
        return passed.index(False) if False in passed else len(passed)
    return max((i + 1 for i, ok in enumerate(passed) if ok), default=0)


def terminal_row(rule, p, q, drafts, accepted):
    """Law of the token after `accepted` drafts."""
    if accepted == len(drafts):
        return p[accepted]
    scale = reaches(p, q, drafts)[accepted] if rule == "block" else 1.0
    left = np.maximum(scale * p[accepted] - q[accepted], 0.0)
    return left / left.sum() if left.sum() > 1e-14 else p[accepted]


def races(p, q):
    """(draft, target, probability, lowest, highest) of each outcome of two races on one noise.

    The draft's race on `q` and the target's on `p` have these winners while the target winner's
    exponential over the draft winner's lies between `lowest` and `highest` (both 1 when they
    agree), and the others are larger than `others` of that ratio.
    """
    winners = np.flatnonzero(q).tolist(), np.flatnonzero(p).tolist()
    found = [
        (i, j, *_race(p, q, i, j))
        for i in winners[0]
        for j in winners[1]
        if i == j or p[j] * q[i] > p[i] * q[j]
    ]
    return [each for each in found if each[2] > 0]


def others(p, q, i, j, ratio):
    """For each id the least exponential with which it does not win a race that i wins on `q` (with
    exponential 1) and j on `p` (with exponential `ratio`)."""
    return np.maximum(q / q[i], ratio * p / p[j])


def _race(p, q, i, j):
    """Probability that i wins on q and j on p, with the ends of E_j / E_i."""
    rest = np.array([v not in {i, j} for v in range(len(p))])
    if i == j:
        return 1.0 / (1.0 + others(p, q, i, i, 1.0)[rest].sum()), 1.0, 1.0
    low, high = q[j] / q[i], p[j] / p[i] if p[i] > 0 else math.inf
    # E_i is Exp(1), so the ratio r has density 1 / S(r)^2, S the sum of all `others` at r.
    bends = [q[k] * p[j] / (q[i] * p[k]) for k in np.flatnonzero(rest & (p > 0))]
    edges = [low, *sorted(b for b in bends if low < b < high), high]
    return sum(_mass(p, q, (i, j), rest, ends) for ends in pairwise(edges)), low, high


def _mass(p, q, winners, rest, ends):
    """Integral of 1 / S(r)^2 between two neighbouring bends of S, where it is a straight line."""
    i, j = winners
    a, b = ends
    inside = a + 1.0 if math.isinf(b) else (a + b) / 2
    moving = rest & (inside * p / p[j] > q / q[i])
    slope = 1.0 + (p / p[j])[moving].sum()
    level = 1.0 + (q / q[i])[rest & ~moving].sum()
    start = level + slope * a
    return 1.0 / (slope * start) if math.isinf(b) else (b - a) / (start * (level + slope * b))
