"""The acceptance rules of one request, in NumPy, straight from their definitions."""

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
