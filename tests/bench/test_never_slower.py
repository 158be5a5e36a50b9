"""The goodput controller in the simulator: never slower than a fixed K or plain decoding.

The bar is 0.97 of the best fixed K and of K = 0, at every point of a part of the catalogue. Early
draws may be unlucky for a controller that knows nothing yet: a point below the bar is played with
two more seeds, and the median counts.
"""

from collections import Counter
from statistics import median

import pytest

from scheduler.controller import FixedController
from scheduler.goodput import GoodputController
from tests.bench.simulation.__main__ import run_point
from tests.bench.simulation.catalogue import catalogue
from tests.bench.simulation.table import FLOOR
from tests.bench.virtual import ran

# Steady scenarios are measured after the first fifth of the span, the others as a whole.
STRICT = (
    *(("iid-0.3/embedded", n) for n in (1, 16)),
    *(("iid-0.6/embedded", n) for n in (1, 16, 32)),
    *(("iid-0.9/gpu", n) for n in (1, 8, 32)),
    *(("dead/embedded", n) for n in (1, 16)),
    *(("iid-0.6/synthetic", n) for n in (1, 4, 8)),
    ("iid-0.85/synthetic", 16),
    *(("iid-0.85/graphs", n) for n in (2, 16)),
    *(("iid-0.85/moe", n) for n in (1, 8)),
    *(("iid-0.85/slow", n) for n in (4, 32)),
    *(("front/gpu", 4), ("back/embedded", 16), ("mixed/gpu", 8), ("masses-0.6/embedded", 8)),
    *(("down/embedded", 4), ("up/gpu", 16), ("recovery/gpu", 16), ("ramp/gpu", 32)),
    *(("within/gpu", 1), ("within/embedded", 2)),
    *(
        ("wrong-k-dear/embedded", 16),
        ("wrong-n/embedded", 32),
        *(("wrong-k-cheap/gpu", n) for n in (8, 32)),
        *(("wrong-step/embedded", 2), ("wrong-step/gpu", 4)),
    ),
    *(("prefill-full/gpu", 16), ("long/embedded", 8), ("recorded-token/embedded", 4)),
    *(("crowd/wide", n) for n in (128, 256)),
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "concurrency"), STRICT)
def test_the_controller_is_never_slower(name, concurrency):
    points = [played(name, concurrency, 1)]
    if not all(ratio >= FLOOR for ratio in ratios(points[0])):
        points += [played(name, concurrency, seed) for seed in (2, 3)]
    best, plain = (median(each) for each in zip(*map(ratios, points), strict=True))
    assert best >= FLOOR, points[0].best_fixed
    assert plain >= FLOOR
    for point in points:
        auto = next(each for each in point.arms if each.name == "auto")
        assert auto.flips <= 2 + auto.rounds // 40
        assert auto.idle_draft < 0.01


@pytest.mark.parametrize("concurrency", [128, 256])
@pytest.mark.parametrize("k", [None, 2, 4])
def test_where_rows_are_short_nobody_is_left_without_drafts(concurrency, k):
    """All accept alike, so that all are to have as much: a fixed K, and the controller's (None)."""
    scenario = next(each for each in catalogue() if each.name == "crowd/wide")
    where = scenario.world(concurrency, seed=1, share=0.3)
    controller = FixedController(k) if k else GoodputController(where.truth.table(), where.k_max)
    _, rounds, _ = ran(where, controller)
    drafted, emitted = Counter(), Counter()
    for done in rounds[len(rounds) // 3 :]:
        assert sum(share.rows + share.k for share in done.shares) <= 512
        for share in done.shares:
            emitted[share.live.number] += share.emits
            drafted[share.live.number] += share.k
    assert len(emitted) == concurrency
    means = [drafted[each] / count for each, count in emitted.items()]
    fair = min((512 - concurrency) / concurrency, 8 if k is None else k)
    assert min(means) >= 0.8 * fair
    assert max(means) <= 1.2 * fair


def played(name, concurrency, seed):
    scenario = next(each for each in catalogue() if each.name == name)
    return run_point(scenario, concurrency, seed=seed, share=0.8, fixed=(0, 1, 2, 3, 4, 6))


def ratios(point):
    """Auto over the best fixed K, and over plain decoding."""
    return point.over(point.best_fixed), point.over("k=0")
