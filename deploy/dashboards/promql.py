"""Writes PromQL of the few shapes that the dashboards use; knows no metric's meaning.

Names of metrics come without their prefix. Every selector is bound to the variables `$job` and
`$instance`, every window is `$__rate_interval`. `where` adds matchers, as `k!="0"`.
"""

__all__ = [
    "gauge",
    "highest",
    "mean",
    "per",
    "quantile",
    "rate",
    "ratio",
    "recorded",
    "selector",
    "share",
]

_SCOPE = 'job=~"$job",instance=~"$instance"'
_WINDOW = "[$__rate_interval]"


def selector(name: str, where: str = "", prefix: str = "fencepost_") -> str:
    """The series of one metric that the variables choose."""
    matchers = f"{_SCOPE},{where}" if where else _SCOPE
    return f"{prefix}{name}{{{matchers}}}"


def rate(name: str, by: str = "", where: str = "", prefix: str = "fencepost_") -> str:
    """Growth a second of a counter, summed over all labels but `by`."""
    return f"{_sum(by)} (rate({selector(name, where, prefix)}{_WINDOW}))"


def gauge(name: str, by: str = "", where: str = "", prefix: str = "fencepost_") -> str:
    """A gauge, summed over all labels but `by`."""
    return f"{_sum(by)} ({selector(name, where, prefix)})"


def highest(name: str, by: str = "", where: str = "") -> str:
    """A gauge, the largest over all labels but `by`."""
    grouping = f" by ({by})" if by else ""
    return f"max{grouping} ({selector(name, where)})"


def ratio(numerator: str, denominator: str) -> str:
    """A quotient of two vectors with the same labels; nothing where the denominator is 0."""
    return f"{numerator} / ({denominator} > 0)"


def per(numerator: str, denominator: str) -> str:
    """A quotient by one number; nothing while that is 0."""
    return f"{numerator} / on () group_left () ({denominator} > 0)"


def share(name: str, by: str, where: str = "") -> str:
    """The part of each value of the label `by` in a counter's growth; the parts add up to 1."""
    return per(rate(name, by, where), rate(name, "", where))


def mean(histogram: str, by: str = "", where: str = "") -> str:
    """The mean of what a histogram observed."""
    return ratio(rate(f"{histogram}_sum", by, where), rate(f"{histogram}_count", by, where))


def quantile(q: float, histogram: str, by: str = "", where: str = "") -> str:
    """The quantile `q` (0 to 1) of what a histogram observed."""
    grouping = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, {rate(f'{histogram}_bucket', grouping, where)})"


def recorded(name: str, by: str = "", where: str = "") -> str:
    """A recorded rate of the level `instance`, summed over all labels but `by`."""
    return gauge(name, by, where, prefix="instance:fencepost_")


def _sum(by: str) -> str:
    return f"sum by ({by})" if by else "sum"
