"""Works out the ledger: one row a K, the best K, what else was asked. Knows no way to show it."""

from dataclasses import dataclass

from scheduler.speedup import (
    Choice,
    RoundBytes,
    best_k,
    break_even_acceptance,
    committed_law,
    discarded_rows,
    expected_accepted,
    expected_committed,
    goodput,
    leverage,
    marginal_gain,
    round_bytes,
    round_time,
    sensitivity,
    speedup,
    survivals,
)
from server.ledger.inputs import Inputs

__all__ = ["SHOWN_ALPHAS", "Figures", "Row", "Step", "work_out"]

SHOWN_ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
"""Acceptances of the sensitivity table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """From the K above to this one: `tokens` and `time` more a round.

    `gain` is `tokens` less what the time would commit at the goodput of the K above: positive
    when the step pays.
    """

    tokens: float
    time: float
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One K. Times in the unit of the inputs; `survival` is s_K, `law` P(G = 1), P(G = 2), ..

    `break_even` is the equal acceptance from which this K is no slower than plain decoding, None
    when there is none. `tokens_per_second` is None without milliseconds, `bytes` without sizes.
    """

    k: int
    survival: float
    expected_accepted: float
    expected_committed: float
    discarded_rows: float
    law: tuple[float, ...]
    draft_time: float
    verify_time: float
    other_time: float
    round_time: float
    tokens_per_second: float | None
    speedup: float
    break_even: float | None
    step: Step | None
    bytes: RoundBytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The whole ledger. `sensitivity` has a row for each of SHOWN_ALPHAS, a column a K."""

    rows: tuple[Row, ...]
    best: Choice
    leverage: tuple[float, ...]
    sensitivity: tuple[tuple[float, ...], ...]


def work_out(inputs: Inputs) -> Figures:
    """All figures of one question."""
    times = {k: _round_time(inputs, k) for k in inputs.ks}
    steps = [None, *(_step(inputs, times, k) for k in zip(inputs.ks, inputs.ks[1:], strict=False))]
    rows = tuple(_row(inputs, times, k, step) for k, step in zip(inputs.ks, steps, strict=True))
    return Figures(
        rows=rows,
        best=best_k(inputs.profile, times),
        leverage=leverage(inputs.profile),
        sensitivity=sensitivity(SHOWN_ALPHAS, times),
    )


def _round_time(inputs: Inputs, k: int) -> float:
    costs = inputs.costs
    if k == 0:
        return costs.plain
    return round_time(k, draft=costs.draft, verify=costs.verify[k], other=costs.other)


def _row(inputs: Inputs, times: dict[int, float], k: int, step: Step | None) -> Row:
    costs, sizes, profile = inputs.costs, inputs.sizes, inputs.profile[:k]
    return Row(
        k=k,
        survival=(1.0, *survivals(profile))[-1],
        expected_accepted=expected_accepted(profile),
        expected_committed=expected_committed(profile),
        discarded_rows=discarded_rows(profile),
        law=committed_law(profile),
        draft_time=k * costs.draft,
        verify_time=costs.verify[k] if k else costs.plain,
        other_time=costs.other if k else 0.0,
        round_time=times[k],
        tokens_per_second=1e3 * goodput(profile, times[k]) if costs.in_ms else None,
        speedup=speedup(profile, times[k], costs.plain),
        break_even=break_even_acceptance(k, times[k], costs.plain),
        step=step,
        bytes=None
        if sizes is None
        else round_bytes(
            profile,
            row_bytes=sizes.row_bytes,
            vocabulary=sizes.vocabulary,
            number_bytes=sizes.number_bytes,
        ),
    )


def _step(inputs: Inputs, times: dict[int, float], between: tuple[int, int]) -> Step:
    above, here = between
    rate = goodput(inputs.profile[:above], times[above])
    tokens = expected_accepted(inputs.profile[:here]) - expected_accepted(inputs.profile[:above])
    time = times[here] - times[above]
    return Step(tokens=tokens, time=time, gain=marginal_gain(tokens, time, rate))
