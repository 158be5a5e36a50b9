"""Who chooses K in a simulation: fixed K, the goodput controller, and an oracle that knows all."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import product

from scheduler.controller import LoadView, fixed
from scheduler.speedup import expected_committed
from scheduler.stats import Decision, StepStats
from tests.bench.simulation.traffic import Profile
from tests.bench.simulation.truth import Truth

_CONTEXT_STEP = 512


class OracleController:
    """The best K for each profile that runs, uniform among its requests, by true costs and true
    acceptance. By brute force over all K of up to two profiles; with more all get one K."""

    def __init__(self, truth: Truth, k_max: int) -> None:
        self._truth = truth
        self._k_max = k_max
        self._known: dict[tuple[object, ...], Mapping[Profile, int]] = {}
        self.profile: Callable[[int], Profile] | None = None

    def decide(self, view: LoadView) -> Decision:
        """The best K for these requests at this load."""
        if not view.requests or self.profile is None:
            return Decision()
        profiles = {each.request: self.profile(each.request) for each in view.requests}
        counts = Counter(profiles.values())
        context = sum(each.context for each in view.requests) // len(view.requests)
        near = context // _CONTEXT_STEP * _CONTEXT_STEP
        key = (near, *sorted(counts.items()))
        if key not in self._known:
            self._known[key] = best_uniform(self._truth, counts, self._k_max, near)
        lengths = self._known[key]
        return fixed(
            {
                each.request: min(lengths[profiles[each.request]], each.room)
                for each in view.requests
            }
        )

    def learn(self, stats: StepStats) -> None:
        """It knows everything already."""

    def forget(self, request: int) -> None:
        """It keeps nothing about a request."""


def best_uniform(
    truth: Truth, counts: Mapping[Profile, int], k_max: int, context: float
) -> Mapping[Profile, int]:
    """K by profile with the most tokens a second in rounds of decoding alone."""
    profiles = sorted(counts)
    lengths = range(k_max + 1)
    tried: Iterable[tuple[int, ...]] = product(lengths, repeat=len(profiles))
    if len(profiles) > 2:
        tried = ((k,) * len(profiles) for k in lengths)
    choices = (dict(zip(profiles, each, strict=True)) for each in tried)
    return max(choices, key=lambda each: expected_rate(truth, counts, each, context))


def expected_rate(
    truth: Truth, counts: Mapping[Profile, int], lengths: Mapping[Profile, int], context: float
) -> float:
    """Tokens a second: sums of E[G] over true seconds, the usual lag of the draft included."""
    emitters = sum(counts.values())
    drafts = sum(counts[each] * k for each, k in lengths.items())
    tokens = lagging = 0.0
    for each, k in lengths.items():
        reach = extended(each, k)
        tokens += counts[each] * expected_committed(reach)
        full = 1.0 if k else 0.0
        for alpha in reach:
            full *= alpha
        lagging += counts[each] * full
    deepest = max(lengths.values())
    steps = [sum(counts[e] for e, k in lengths.items() if k > depth) for depth in range(deepest)]
    rows = emitters + drafts
    seconds = truth.target(emitters, rows, rows * (context - truth.context))
    seconds += truth.draft(steps, 0) + truth.catch_up * lagging
    return tokens / (seconds * math.prod(truth.factors(emitters, drafts)))


def extended(profile: Profile, k: int) -> Profile:
    """The first k positions; those past the end have the last value."""
    return (*profile, *[profile[-1]] * k)[:k]
