"""Closed forms of speculative decoding: committed tokens, speed-up, best K, bytes.

Exact sums over plain floats. Knows no clock, tensor or request: acceptance and costs come as
arguments. A profile is the reach acceptance of every draft position, alpha_1 .. alpha_K: position
i counts only rounds that accepted all before it, so survival s_j is a plain product, whatever the
verifier. Times may have any one unit; rates are per that unit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

__all__ = [
    "Choice",
    "RoundBytes",
    "acceptance_mass",
    "accepted_law",
    "best_k",
    "block_expected_accepted",
    "break_even_acceptance",
    "committed_law",
    "discarded_rows",
    "expected_accepted",
    "expected_committed",
    "goodput",
    "iid_profile",
    "kv_row_bytes",
    "leverage",
    "marginal_gain",
    "ratio_speedup",
    "reach_profile",
    "round_bytes",
    "round_time",
    "sensitivity",
    "speedup",
    "survivals",
    "verify_line",
]

_MOST_BLOCKS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A draft length and its speed-up over plain decoding, at least 1 (K = 0 is plain)."""

    k: int
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundBytes:
    """Expected bytes of one request's round.

    `branch_kv`: K/V rows of the K drafts; `probabilities`: K + 1 target and K draft rows, of
    which plain decoding has one too; `discarded_kv`: the part of `branch_kv` that is given up;
    `committed_kv`: the lasting growth.
    """

    branch_kv: float
    probabilities: float
    discarded_kv: float
    committed_kv: float

    @property
    def temporary(self) -> float:
        """What has to be held until the round is decided."""
        return self.branch_kv + self.probabilities


# ---- how many tokens a round commits -------------------------------------------------------------


def iid_profile(alpha: float, k: int) -> tuple[float, ...]:
    """`k` positions of one acceptance `alpha` (Leviathan et al., arXiv 2211.17192, section 3.1)."""
    _check_share("alpha", alpha)
    _check_count("k", k)
    return (float(alpha),) * k


def reach_profile(reached: Sequence[float], accepted: Sequence[float]) -> tuple[float, ...]:
    """Profile from counts by position: accepted / reached, up to the first one never reached.

    Positions behind a rejection are censored: they count in neither (contract section 10).
    Raises ValueError when a position accepts more than reached it or the lengths differ.
    """
    if len(reached) != len(accepted):
        raise ValueError(f"accepted has {len(accepted)} positions, reached {len(reached)}")
    found = []
    for place, (tested, kept) in enumerate(zip(reached, accepted, strict=True)):
        if not 0 <= kept <= tested:
            raise ValueError(f"accepted[{place}] must lie in 0 .. {tested:g}, got {kept:g}")
        if tested == 0:
            break
        found.append(kept / tested)
    return tuple(found)


def survivals(profile: Sequence[float]) -> tuple[float, ...]:
    """s_1 .. s_K: s_j = P(A >= j) = alpha_1 ... alpha_j. Raises ValueError outside 0 .. 1."""
    _check_profile(profile)
    return tuple(accumulate(profile, mul))


def accepted_law(profile: Sequence[float]) -> tuple[float, ...]:
    """P(A = 0) .. P(A = K) = s_a - s_{a+1}, as s_a (1 - alpha_{a+1}): no cancellation near 1."""
    ends = (1.0, *survivals(profile))
    stops = (1.0 - alpha for alpha in profile)
    return (*map(mul, ends, stops), ends[-1])


def committed_law(profile: Sequence[float], horizon: int | None = None) -> tuple[float, ...]:
    """P(G = 1), P(G = 2), .. of G = min(A + 1, `horizon`).

    `horizon` is the tokens to the first stop token or the end of the budget, at least 1; None
    when neither is near.
    """
    return accepted_law(_within_horizon(profile, horizon))


def expected_accepted(profile: Sequence[float]) -> float:
    """E[A] = s_1 + .. + s_K, in drafts a round."""
    _check_profile(profile)
    total = 0.0
    for alpha in reversed(profile):
        total = alpha * (1.0 + total)
    return total


def expected_committed(profile: Sequence[float], horizon: int | None = None) -> float:
    """E[G] = 1 + s_1 + .. + s_K, in tokens a round: accepted drafts and the correction or bonus.

    For equal alphas (1 - alpha^(K+1)) / (1 - alpha), and K + 1 at alpha = 1 (Leviathan et al.,
    equation 1). Horner's rule has only positive terms, so it is as exact near 1 as elsewhere.
    `horizon` as for `committed_law`.
    """
    return 1.0 + expected_accepted(_within_horizon(profile, horizon))


def discarded_rows(profile: Sequence[float]) -> float:
    """K - E[A]: rows of drafts that the target scored for nothing, a round."""
    return len(profile) - expected_accepted(profile)


def leverage(profile: Sequence[float]) -> tuple[float, ...]:
    """dE[G] / d alpha_i of every position: s_{i-1} (1 + alpha_{i+1} (1 + ..)), in tokens.

    Early positions pull harder: all later ones need them to survive.
    """
    ends = (1.0, *survivals(profile))
    return tuple(
        ends[place] * expected_committed(profile[place + 1 :]) for place in range(len(profile))
    )


def acceptance_mass(p: Sequence[float], q: Sequence[float]) -> float:
    """sum_x min(p(x), q(x)) = 1 - TV(p, q): the token rule's acceptance of a draft from `q`.

    `p` and `q` are laws over the same events (Leviathan et al., theorem 3.5).
    """
    _check_laws(p, q)
    return math.fsum(map(min, p, q))


def block_expected_accepted(p: Sequence[float], q: Sequence[float], k: int) -> float:
    """E[A] = E[P_1] + .. + E[P_k] of block verification when every row is `p` and `q`.

    P_i = min(1, P_{i-1} p(x_i) / q(x_i)), P_0 = 1, x_i from q (Sun et al., arXiv 2403.10444).
    Enumerates all drafts: refuses more than 2^20 of them with ValueError.
    """
    _check_laws(p, q)
    _check_count("k", k)
    choices = [(there, here) for there, here in zip(p, q, strict=True) if here > 0]
    if len(choices) ** k > _MOST_BLOCKS:
        raise ValueError(f"k = {k} with {len(choices)} events has too many drafts to enumerate")
    total = 0.0
    reaches = [(1.0, 1.0)]  # P and the probability of the drafts that led to it
    for _ in range(k):
        reaches = [
            (min(1.0, reach * there / here), weight * here)
            for reach, weight in reaches
            for there, here in choices
        ]
        total += math.fsum(reach * weight for reach, weight in reaches)
    return total


# ---- what a round costs and what it brings -------------------------------------------------------


def verify_line(base: float, slope: float, k: int) -> float:
    """base + slope k: a target call over k + 1 rows whose time grows evenly with k."""
    _check_count("k", k)
    _check_time("base", base)
    _check_time("slope", slope)
    return base + slope * k


def round_time(k: int, *, draft: float, verify: float, other: float = 0.0) -> float:
    """Time of a round with `k` drafts: k draft steps, one target call over k + 1 rows, the rest."""
    _check_count("k", k)
    for name, time in (("draft", draft), ("verify", verify), ("other", other)):
        _check_time(name, time)
    return k * draft + verify + other


def goodput(profile: Sequence[float], time: float) -> float:
    """E[G] / `time`: committed tokens per unit of time when every round takes `time`.

    Total tokens over total time (renewal reward), not the mean of their ratios.
    """
    _check_positive("time", time)
    return expected_committed(profile) / time


def speedup(profile: Sequence[float], time: float, plain: float) -> float:
    """E[G] `plain` / `time`: `time` a round against `plain` for each token of plain decoding."""
    _check_positive("time", time)
    _check_positive("plain", plain)
    return expected_committed(profile) * plain / time  # in this order exactly 1 for plain decoding


def ratio_speedup(profile: Sequence[float], c: float, verify_ratio: float = 1.0) -> float:
    """E[G] / (verify_ratio + K c), all times in target steps of one row.

    `c` is a draft step, `verify_ratio` the call over K + 1 rows. At 1 this is Leviathan et al.,
    theorem 3.8: (1 - alpha^(K+1)) / ((1 - alpha)(1 + K c)).
    """
    return goodput(profile, round_time(len(profile), draft=c, verify=verify_ratio))


def break_even_acceptance(k: int, time: float, plain: float) -> float | None:
    """The least equal acceptance of `k` drafts at which a round is no slower than plain decoding.

    None when not even acceptance 1 would do: `time` is over k + 1 plain steps. With c and a flat
    verify cost, k = 1 breaks even at c (Leviathan et al., corollary 3.9).
    """
    _check_count("k", k)
    _check_positive("time", time)
    _check_positive("plain", plain)
    needed = time / plain
    if k + 1 < needed:
        return None
    low, high = 0.0, 1.0
    if needed <= 1.0:
        return low
    while low < (middle := 0.5 * (low + high)) < high:
        if expected_committed(iid_profile(middle, k)) >= needed:
            high = middle
        else:
            low = middle
    return high


def best_k(profile: Sequence[float], times: Mapping[int, float]) -> Choice:
    """The K with the highest goodput among those in `times`; the smaller K wins a tie.

    `times` gives the time of a round at each K; 0 must be there, as plain decoding, so that no K
    slower than plain is ever chosen. All K are looked at: costs need not be smooth.
    """
    found = _speedups(profile, times)
    k = min(found, key=lambda each: (-found[each], each))
    return Choice(k=k, speedup=found[k])


def sensitivity(
    alphas: Sequence[float], times: Mapping[int, float]
) -> tuple[tuple[float, ...], ...]:
    """Speed-ups for equal acceptances: a row for each of `alphas`, a column for each K, rising."""
    longest = max(times, default=0)
    rows = [_speedups(iid_profile(alpha, longest), times) for alpha in alphas]
    return tuple(tuple(row[k] for k in sorted(row)) for row in rows)


def marginal_gain(added_tokens: float, added_time: float, rate: float) -> float:
    """Tokens that longer drafts bring, less what their time would bring at `rate`.

    `added_tokens` is s_{K+1} for one more draft, `added_time` how much longer the round gets,
    `rate` tokens per unit of time. With the goodput at K as `rate`, the gain is positive exactly
    when the longer round has the higher goodput (Dinkelbach's parametric form of a ratio).
    """
    _check_time("added_tokens", added_tokens)
    _check_time("rate", rate)
    if not math.isfinite(added_time):
        raise ValueError(f"added_time must be finite, got {added_time}")
    return added_tokens - rate * added_time


# ---- bytes ---------------------------------------------------------------------------------------


def kv_row_bytes(layers: int, kv_heads: int, head_dim: int, number_bytes: int) -> int:
    """Bytes of one token's K/V row in all layers: a key and a value a head."""
    sizes = {"layers": layers, "kv_heads": kv_heads, "head_dim": head_dim}
    for name, size in (sizes | {"number_bytes": number_bytes}).items():
        _check_count(name, size)
    return 2 * layers * kv_heads * head_dim * number_bytes


def round_bytes(
    profile: Sequence[float], *, row_bytes: int, vocabulary: int, number_bytes: int = 4
) -> RoundBytes:
    """Temporary bytes of a round against those it commits.

    `row_bytes` is a K/V row, `number_bytes` one probability. The replayed frontier's row is no
    branch row: plain decoding computes it too. Either layout commits E[G] rows a round.
    """
    sizes = {"row_bytes": row_bytes, "vocabulary": vocabulary, "number_bytes": number_bytes}
    for name, size in sizes.items():
        _check_count(name, size)
    k = len(profile)
    return RoundBytes(
        branch_kv=k * row_bytes,
        probabilities=(2 * k + 1) * vocabulary * number_bytes,
        discarded_kv=discarded_rows(profile) * row_bytes,
        committed_kv=expected_committed(profile) * row_bytes,
    )


# ---- checks --------------------------------------------------------------------------------------


def _speedups(profile: Sequence[float], times: Mapping[int, float]) -> dict[int, float]:
    if 0 not in times:
        raise ValueError("times needs an entry for K = 0, plain decoding")
    for k in times:
        _check_count("times", k)
    if max(times) > len(profile):
        raise ValueError(f"times has K = {max(times)}, the profile {len(profile)} positions")
    return {k: speedup(profile[:k], time, times[0]) for k, time in times.items()}


def _within_horizon(profile: Sequence[float], horizon: int | None) -> Sequence[float]:
    """The positions whose acceptance still matters: G = min(A + 1, H) looks at H - 1 of them."""
    _check_profile(profile)
    if horizon is None:
        return profile
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1, got {horizon}")
    return profile[: horizon - 1]


def _check_profile(profile: Sequence[float]) -> None:
    for place, alpha in enumerate(profile):
        _check_share(f"profile[{place}]", alpha)


def _check_laws(p: Sequence[float], q: Sequence[float]) -> None:
    if len(p) != len(q):
        raise ValueError(f"q has {len(q)} events, p {len(p)}")
    for name, law in (("p", p), ("q", q)):
        for place, value in enumerate(law):
            _check_share(f"{name}[{place}]", value)
        if not math.isclose(math.fsum(law), 1.0, abs_tol=1e-9):
            raise ValueError(f"{name} must sum to 1, got {math.fsum(law)}")


def _check_share(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:  # also catches NaN
        raise ValueError(f"{name} must lie in 0 .. 1, got {value}")


def _check_count(name: str, value: int) -> None:
    if value < 0:
        raise ValueError(f"{name} must not be negative, got {value}")


def _check_time(name: str, value: float) -> None:
    if not 0.0 <= value < math.inf:
        raise ValueError(f"{name} must be a number of at least 0, got {value}")


def _check_positive(name: str, value: float) -> None:
    if not 0.0 < value < math.inf:
        raise ValueError(f"{name} must be above 0, got {value}")
