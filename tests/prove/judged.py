"""From the fits of a Monte Carlo to its finding: many tests, one family-wise error, the power said.

Knows statistics, nothing of where the texts came from.
"""

from collections.abc import Mapping

from tests.prove.chance import Fit, adjusted, least_seen, power
from tests.prove.proof import Finding

BIAS = 0.03
"""The total variation that must not go unseen."""
WHOLE = "everything"
_HEAD = ("texts of", "texts", "chi-square", "freedom", "p", "adjusted p", "TV seen with power 0.99")


def judge(fits: Mapping[str, Fit], level: float) -> Finding:
    """Whether all fits stand together, at a family-wise error of `level` by Holm's rule.

    The power is that of Bonferroni's rule, which rejects no more than Holm's does.
    """
    share = level / len(fits)
    p_values = adjusted([fit.p_value for fit in fits.values()])
    slices = [fit for name, fit in fits.items() if name != WHOLE]
    whole = power(BIAS, fits[WHOLE], share)
    alone = min((power(BIAS, fit, share) for fit in slices), default=whole)
    rows = [
        (
            name,
            str(fit.texts),
            f"{fit.statistic:.1f}",
            str(fit.freedom),
            f"{fit.p_value:.4f}",
            f"{p_value:.4f}",
            f"{least_seen(fit, share):.3f}",
        )
        for (name, fit), p_value in zip(fits.items(), p_values, strict=True)
    ]
    return Finding(
        cases=fits[WHOLE].texts,
        unit="texts",
        worst=min(p_values),
        limit=f"p > {level:g} (Holm, {len(fits)} tests)",
        holds=min(p_values) > level,
        note=(
            f"worst is the smallest adjusted p; a TV of {BIAS:g} is seen with power "
            f"{_floor(whole)} in all texts, at least {_floor(alone)} in those of one slice alone; "
            f"all texts show a TV of {least_seen(fits[WHOLE], share):.3f} with power 0.99"
        ),
        rows=(_HEAD, *rows),
    )


def _floor(chance: float) -> str:
    """Three digits, rounded down."""
    return f"{int(chance * 1000) / 1000:.3f}"
