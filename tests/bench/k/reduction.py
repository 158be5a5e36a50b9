"""Turns timed stages into figures: rates, mean K, draft time at K = 0, switches, ratios.

Ratios are taken inside a round, where arms follow one another closely, before any median.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from scheduler.stats import Choice, Decision, Reason, StepStats
from tests.bench.figures import Spread, spread
from tests.bench.k.crowd import Timed
from tests.bench.k.figures import Arm, Idle, Level, Ramp, RampArm, RampStep

_LOOKS = (Reason.PROBE, Reason.BASELINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to choose K. `k` is None for auto."""

    name: str
    k: int | None


BARE = Way(name="no draft", k=0)
"""Without a draft model in memory."""
AUTO = Way(name="auto", k=None)


def fixed(k: int) -> Way:
    """The way that always drafts `k`."""
    return Way(name=f"K {k}", k=k)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A timed stage in numbers. `k_total` drafts were planned for `k_count` requests that could
    draft, summed over rounds."""

    tokens: int
    seconds: float
    steps: int
    k_total: int
    k_count: int
    switches: int
    lasting_switches: int
    idle: Idle

    @property
    def rate(self) -> float:
        """Committed tokens per second."""
        return self.tokens / self.seconds


def stretch(timed: Timed) -> Stretch:
    """The numbers of one stage."""
    choices = [free_choices(step) for step in timed.steps]
    ks = [choice.k for each in choices for choice in each]
    return Stretch(
        tokens=timed.tokens,
        seconds=timed.seconds,
        steps=len(timed.steps),
        k_total=sum(ks),
        k_count=len(ks),
        switches=switches(choices),
        lasting_switches=switches(choices, but=_LOOKS),
        idle=idle(timed.steps),
    )


def joined(stretches: Sequence[Stretch]) -> Stretch:
    """Several stretches as one."""
    return Stretch(
        tokens=sum(each.tokens for each in stretches),
        seconds=sum(each.seconds for each in stretches),
        steps=sum(each.steps for each in stretches),
        k_total=sum(each.k_total for each in stretches),
        k_count=sum(each.k_count for each in stretches),
        switches=sum(each.switches for each in stretches),
        lasting_switches=sum(each.lasting_switches for each in stretches),
        idle=Idle(
            rounds=sum(each.idle.rounds for each in stretches),
            draft_seconds=sum(each.idle.draft_seconds for each in stretches),
            draft_rows=sum(each.idle.draft_rows for each in stretches),
        ),
    )


def free_choices(step: StepStats) -> list[Choice]:
    """The choices of a round for requests that could draft: not those whose prompt ended in it,
    nor those that had one token left."""
    if step.decision is None:
        return []
    bound = {group.request for group in step.groups if group.prefilled}
    ended = {each.request for each in step.finished}
    return [
        choice
        for request, choice in step.decision.choices.items()
        if request not in bound and (choice.k or request not in ended)
    ]


def switches(rounds: Iterable[Sequence[Choice]], but: Sequence[Reason] = ()) -> int:
    """Turns between rounds that draft and rounds that do not. Choices with a reason in `but` do
    not count, nor do rounds that are left without any."""
    drafting = []
    for choices in rounds:
        counted = [choice.k for choice in choices if choice.reason not in but]
        if counted:
            drafting.append(any(counted))
    return sum(before is not after for before, after in pairwise(drafting))


def idle(steps: Iterable[StepStats]) -> Idle:
    """What the draft part took in rounds that had requests to draft for, and K = 0 for all."""
    found = [step for step in steps if _plain(step.decision)]
    return Idle(
        rounds=len(found),
        draft_seconds=sum(step.timings.draft for step in found),
        draft_rows=sum(step.draft_rows for step in found),
    )


def level(concurrency: int, window: int, runs: Mapping[Way, Sequence[Stretch]]) -> Level:
    """The figures of one concurrency. Run i of every way belongs to round i; K = 0, auto and no
    draft are among the ways."""
    rates = {way: [run.rate for run in found] for way, found in runs.items()}
    known = _fixed_ones(rates)
    best = best_k(known)
    return Level(
        concurrency=concurrency,
        window=window,
        arms=tuple(_arm(way, found) for way, found in runs.items()),
        best=best,
        over_best=ratio(rates[AUTO], known[best]),
        over_best_held_out=held_out(rates[AUTO], known),
        over_plain=ratio(rates[AUTO], known[0]),
        plain_over_no_draft=ratio(known[0], rates[BARE]),
    )


def ramp(window: int, traces: Mapping[Way, Sequence[Sequence[Timed]]]) -> Ramp:
    """The figures of whole traces. Trace i of every way belongs together; K = 0 and auto are among
    the ways."""
    runs = {way: [_whole(trace) for trace in found] for way, found in traces.items()}
    rates = {way: [run.rate for run in found] for way, found in runs.items()}
    known = _fixed_ones(rates)
    best = best_k(known)
    return Ramp(
        trace=tuple(each.stage.concurrency for each in traces[AUTO][0]),
        window=window,
        arms=tuple(_ramp_arm(way, runs[way], found) for way, found in traces.items()),
        best=best,
        over_best=ratio(rates[AUTO], known[best]),
        over_plain=ratio(rates[AUTO], known[0]),
    )


def ratio(over: Sequence[float], under: Sequence[float]) -> Spread:
    """The spread of ratios inside rounds."""
    return spread([high / low for high, low in zip(over, under, strict=True)])


def best_k(rates: Mapping[int, Sequence[float]]) -> int:
    """The K with the highest median rate; the least of equal ones."""
    return max(sorted(rates), key=lambda k: statistics.median(rates[k]))


def held_out(over: Sequence[float], rates: Mapping[int, Sequence[float]]) -> Spread | None:
    """Ratios to the K that is best in the other rounds; None for one round only."""
    if len(over) < 2:
        return None
    found = []
    for number, rate in enumerate(over):
        others = {k: [*all_[:number], *all_[number + 1 :]] for k, all_ in rates.items()}
        found.append(rate / rates[best_k(others)][number])
    return spread(found)


def _fixed_ones(rates: Mapping[Way, Sequence[float]]) -> dict[int, Sequence[float]]:
    return {way.k: found for way, found in rates.items() if way != BARE and way.k is not None}


def _arm(way: Way, runs: Sequence[Stretch]) -> Arm:
    whole = joined(runs)
    return Arm(
        name=way.name,
        k=way.k,
        tokens=whole.tokens,
        steps=whole.steps,
        rate=spread([run.rate for run in runs]),
        mean_k=_mean_k(whole),
        idle=whole.idle,
    )


def _ramp_arm(way: Way, runs: Sequence[Stretch], traces: Sequence[Sequence[Timed]]) -> RampArm:
    whole = joined(runs)
    return RampArm(
        name=way.name,
        k=way.k,
        rate=spread([run.rate for run in runs]),
        steps=tuple(_ramp_step(stages) for stages in zip(*traces, strict=True)),
        switches=whole.switches / whole.seconds,
        lasting_switches=whole.lasting_switches / whole.seconds,
        idle=whole.idle,
    )


def _ramp_step(stages: Sequence[Timed]) -> RampStep:
    """One step of the trace, over all traces."""
    parts = [stretch(each) for each in stages]
    return RampStep(
        concurrency=stages[0].stage.concurrency,
        rate=spread([part.rate for part in parts]),
        mean_k=_mean_k(joined(parts)),
    )


def _whole(trace: Sequence[Timed]) -> Stretch:
    """A trace as one stage, so that a switch between two of its own counts too."""
    return stretch(
        Timed(
            stage=trace[0].stage,
            tokens=sum(each.tokens for each in trace),
            seconds=sum(each.seconds for each in trace),
            steps=tuple(step for each in trace for step in each.steps),
        )
    )


def _mean_k(whole: Stretch) -> float | None:
    return whole.k_total / whole.k_count if whole.k_count else None


def _plain(decision: Decision | None) -> bool:
    return (
        decision is not None
        and bool(decision.choices)
        and not any(choice.k for choice in decision.choices.values())
    )
