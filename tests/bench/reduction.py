"""Turns runs into figures: rates, acceptance by position, rows a call, host share, loop lag.

Sums are taken over all rounds before any division (contract section 10): a mean of ratios would
weigh short rounds like long ones.
"""

import math
from collections.abc import Iterable, Sequence

from scheduler.stats import SpeculationStats, StepStats
from tests.bench.figures import Arm, Level, Position, RoundParts, spread
from tests.bench.load import Run


def arm(runs: Sequence[Run]) -> Arm:
    """The figures of one load over several runs of the same K."""
    steps = [step for run in runs for step in run.steps]
    decoding = [step for step in steps if not any(group.prefilled for group in step.groups)]
    busy = decoding or steps
    parts = _parts(busy)
    return Arm(
        k=runs[0].k,
        tokens=sum(run.tokens for run in runs),
        rounds=len(steps),
        rate=spread([run.rate for run in runs]),
        decode_rate=spread([run.decode_rate for run in runs]),
        committed_per_round=_committed_per_round(steps, runs[0].k),
        rows_per_call=sum(step.target_rows for step in busy) / len(busy),
        host_share=1.0 - parts.forward / parts.round,
        parts_ms=parts,
        lag_p99_ms=1e3 * percentile([lag for run in runs for lag in run.lags], 0.99),
        positions=positions(_speculations(steps)),
    )


def level(on: Sequence[Run], off: Sequence[Run]) -> Level:
    """Speculation on and off; run i of both belongs to the same round."""
    pairs = list(zip(on, off, strict=True))
    return Level(
        concurrency=len(on[0].arrivals),
        on=arm(on),
        off=arm(off),
        speedup=spread([drafted.rate / plain.rate for drafted, plain in pairs]),
        decode_speedup=spread(
            [drafted.decode_rate / plain.decode_rate for drafted, plain in pairs]
        ),
    )


def positions(rounds: Sequence[SpeculationStats]) -> tuple[Position, ...]:
    """Acceptance by draft position. Rounds that did not reach a position say nothing of it."""
    longest = max((each.reached for each in rounds), default=0)
    found = []
    for place in range(longest):
        reaching = [each for each in rounds if each.reached > place]
        accepted = sum(each.accepted > place for each in reaching)
        shown = [each for each in rounds if len(each.base) > place]  # by block, all with such a K
        base = sum(each.base[place] for each in shown)
        found.append(
            Position(
                reached=len(reaching),
                accepted=accepted,
                acceptance=accepted / len(reaching),
                mass_acceptance=sum(each.mass[place] for each in shown) / base,
            )
        )
    return tuple(found)


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed; 0 for no values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _speculations(steps: Iterable[StepStats]) -> list[SpeculationStats]:
    return [
        group.speculation
        for step in steps
        for group in step.groups
        if group.speculation is not None
    ]


def _committed_per_round(steps: Iterable[StepStats], k: int) -> float | None:
    """Mean G over rounds with all `k` drafts; the last rounds of a budget have fewer."""
    committed = [
        group.committed
        for step in steps
        for group in step.groups
        if group.speculation is not None and group.speculation.k == k
    ]
    return sum(committed) / len(committed) if committed else None


def _parts(steps: Sequence[StepStats]) -> RoundParts:
    def mean(seconds: Iterable[float]) -> float:
        return 1e3 * sum(seconds) / len(steps)

    return RoundParts(
        round=mean(step.round_seconds for step in steps),
        schedule=mean(step.schedule_seconds for step in steps),
        draft=mean(step.timings.draft for step in steps),
        verify=mean(step.timings.verify for step in steps),
        decide=mean(step.timings.decide for step in steps),
        commit=mean(step.commit_seconds for step in steps),
        forward=mean(step.timings.forward for step in steps),
    )
