"""The scenarios: what is accepted, what it costs, who comes. Frozen; runs nothing.

`embedded` and `synthetic` costs are fitted to the rounds in `tests/bench/results` (contexts of
about 200 tokens); the others are shapes that hardware is known to have.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from scheduler.costs import Curve
from scheduler.stats import Policy
from tests.bench.simulation.engine import World
from tests.bench.simulation.traffic import Domain, Traffic, steady
from tests.bench.simulation.truth import Noise, Truth, bent, line, stairs

CONCURRENCIES = (1, 2, 4, 8, 16, 32)
RECORDED = Path(__file__).with_name("recorded.json")

_CAPTURED = (1, 2, 4, 8, 16, 32, 64, 128)
_ROUNDS = 2400
_FEWEST_ROUNDS = 1500

COSTS: Mapping[str, Truth] = {
    "embedded": Truth(
        rows=line(6.25e-3, 0.25e-3),
        emitter=0.5e-3,
        step=line(1.1e-3, 0.11e-3),
        catch_up=0.05e-3,
        row_key=0.1e-6,
    ),
    "synthetic": Truth(
        rows=bent(
            *((1, 51.5e-3), (5, 62e-3), (8, 83e-3), (16, 130e-3), (31, 197e-3)), slope=4.1e-3
        ),
        step=line(7.5e-3, 0.5e-3),
        catch_up=0.5e-3,
        row_key=0.5e-6,
    ),
    "gpu": Truth(
        rows=bent((1, 20e-3), (64, 20.3e-3), slope=0.31e-3),
        step=line(2e-3, 0.01e-3),
        catch_up=0.01e-3,
        row_key=0.05e-6,
    ),
    "graphs": Truth(
        rows=stairs(_CAPTURED, 10e-3, 0.15e-3),
        step=stairs(_CAPTURED, 1.2e-3, 0.02e-3),
        catch_up=0.01e-3,
    ),
    "moe": Truth(
        rows=bent((1, 15e-3), (8, 36e-3), (64, 36.5e-3), slope=0.2e-3),
        step=line(1.5e-3, 0.01e-3),
        catch_up=0.01e-3,
    ),
    "slow": Truth(
        rows=bent((1, 20e-3), (32, 21e-3), slope=0.3e-3),
        step=line(10e-3, 0.05e-3),
        catch_up=0.05e-3,
    ),
    "wide": Truth(rows=line(10e-3, 5e-6), step=line(0.7e-3, 1e-6), catch_up=2e-6),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is true, and what is believed at first: the table is made from `believed` where that is
    given. `traffic` has no load yet unless it is `whole`, which has one place for all of it.

    `warm` is the share of the span that is not counted. `pressure` makes arrivals Poisson: requests
    a second, as a multiple of what plain decoding can serve at this concurrency. `paced`: judged by
    the pace of requests, not by tokens a second.
    """

    name: str
    truth: Truth
    traffic: Traffic
    believed: Truth | None = None
    concurrencies: tuple[int, ...] = CONCURRENCIES
    whole: bool = False
    warm: float = 0.2
    pressure: float | None = None
    paced: bool = False
    masses: bool = False
    policy: Policy = Policy.TOKEN
    noise: Noise = field(default_factory=Noise)
    longer: float = 1.0

    def world(self, concurrency: int, *, seed: int, share: float = 1.0) -> World:
        """The world at one concurrency; `share` shortens it."""
        traffic = self.traffic
        if not self.whole:
            traffic = replace(traffic, load=((0.0, concurrency),))
        if self.pressure is not None:
            traffic = replace(traffic, rate=self.pressure * self._capacity(concurrency))
        if traffic.long_every:
            traffic = replace(traffic, long_every=concurrency)
        rounds = max(_ROUNDS / max(concurrency / 4, 1.0), _FEWEST_ROUNDS) * share * self.longer
        return World(
            truth=self.truth,
            traffic=traffic,
            noise=self.noise,
            span=rounds * self.truth.target(concurrency, concurrency),
            places=max(concurrency, *(count for _, count in traffic.load)),
            masses=self.masses,
            policy=self.policy,
            seed=seed,
        )

    def _capacity(self, concurrency: int) -> float:
        """Requests a second that plain decoding serves: mean output and mean prompt."""
        output = sum(self.traffic.outputs) / 2
        prompt = sum(self.traffic.prompts) / 2
        plain = self.truth.target(concurrency, concurrency)
        more = self.truth.target(concurrency, concurrency + int(prompt)) - plain
        return 1.0 / (output * plain / concurrency + more)


def _curve_times(curve: Curve, factor: float) -> Curve:
    return Curve(points=tuple((count, seconds * factor) for count, seconds in curve.points))


def _steady(name: str, domains: tuple[Domain, ...], costs: str, **more: object) -> Scenario:
    traffic = Traffic(domains=domains)
    start = Scenario(name=f"{name}/{costs}", truth=COSTS[costs], traffic=traffic)
    return replace(start, **more)  # type: ignore[arg-type]


def _profiles() -> list[Scenario]:
    found = []
    for costs in ("embedded", "gpu"):
        found += [
            _steady(f"iid-{alpha:g}", (steady(alpha),), costs) for alpha in (0.3, 0.6, 0.75, 0.9)
        ]
        found.append(_steady("front", (steady(0.95, 0.9, 0.6, 0.4),), costs))
        found.append(_steady("back", (steady(0.4, 0.6, 0.9, 0.95),), costs))
        found.append(_steady("mixed", (steady(0.9), steady(0.2)), costs))
        found.append(_steady("dead", (steady(0.02),), costs))
    found.append(_steady("masses-0.6", (steady(0.6),), "embedded", masses=True))
    return found


def _costs() -> list[Scenario]:
    return [
        _steady(f"iid-{alpha:g}", (steady(alpha),), costs)
        for costs in ("synthetic", "graphs", "moe", "slow")
        for alpha in (0.6, 0.85)
    ]


def _changes() -> list[Scenario]:
    down = Domain(phases=((0.0, (0.8,)), (0.5, (0.2,))))
    up = Domain(phases=((0.0, (0.2,)), (0.5, (0.8,))))
    within = Domain(phases=((0.0, (0.9,)), (64.0, (0.3,))), by_tokens=True)
    recovery = Domain(phases=((0.0, (0.8,)), (0.3, (0.02,)), (0.6, (0.8,))))
    domains = {"down": down, "up": up, "within": within, "recovery": recovery}
    return [
        _steady(name, (domain,), costs, warm=0.0, longer=2.0)
        for costs in ("embedded", "gpu")
        for name, domain in domains.items()
    ]


def _loads() -> list[Scenario]:
    ramp = ((0.0, 1), (0.15, 4), (0.3, 16), (0.45, 32), (0.6, 16), (0.75, 4), (0.85, 1))
    found = []
    for costs in ("embedded", "gpu", "moe"):
        traffic = Traffic(domains=(steady(0.75),), load=ramp)
        start = _steady("ramp", (steady(0.75),), costs, warm=0.0, longer=4.0)
        found.append(replace(start, traffic=traffic, whole=True, concurrencies=(32,)))
    for costs in ("embedded", "gpu"):
        heavy = Traffic(domains=(steady(0.7),), prompts=(256, 1024), outputs=(32, 96))
        full = _steady("prefill-full", (), costs, traffic=heavy, pressure=2.0, longer=5.0)
        found.append(replace(full, concurrencies=(4, 16, 32)))
        half = _steady("prefill-half", (), costs, traffic=heavy, pressure=0.6, longer=5.0)
        found.append(replace(half, concurrencies=(4, 16, 32), paced=True))
        long = Traffic(domains=(steady(0.75),), long_every=1)
        one = _steady("long", (), costs, traffic=long, concurrencies=(4, 8, 16))
        found.append(replace(one, longer=5.0))
    # More drafts pay than a round has rows for: 512 less a frontier each.
    many = Traffic(domains=(steady(0.8),), prompts=(16, 32), outputs=(1500, 2500), stop=0.0)
    crowd = _steady("crowd", (), "wide", traffic=many, concurrencies=(128, 256), longer=0.5)
    return [*found, crowd]


def _wrong_tables() -> list[Scenario]:
    found = []
    for costs in ("embedded", "gpu"):
        base = COSTS[costs]
        dear = base.with_factors(by_k=((0, 1.0), (0.3, 1.2), (3.5, 1.4)))
        cheap = base.with_factors(by_k=((0, 1.0), (0.3, 0.75)))
        loads = base.with_factors(by_n=((1, 1.0), (4, 1.5), (16, 2.5)))
        slow = replace(base, step=_curve_times(base.step, 3.0))
        for name, truth in {"k-dear": dear, "k-cheap": cheap, "n": loads, "step": slow}.items():
            one = _steady(f"wrong-{name}", (steady(0.7),), costs, believed=base)
            found.append(replace(one, truth=truth))
    return found


def _recorded() -> list[Scenario]:
    if not RECORDED.exists():
        return []
    kept = json.loads(RECORDED.read_text("utf-8"))
    found = []
    for policy in (Policy.GREEDY, Policy.TOKEN):
        strings = tuple(kept[policy.value])
        tested = "".join(strings)
        share = tested.count("1") / max(len(tested), 1)
        domain = Domain(phases=((0.0, (share,)),), recorded=strings)
        one = _steady(f"recorded-{policy.value}", (domain,), "embedded", policy=policy)
        found.append(one)
    return found


@cache
def catalogue() -> tuple[Scenario, ...]:
    """All scenarios, by name in the order in which they are printed."""
    return (
        *_profiles(),
        *_costs(),
        *_changes(),
        *_loads(),
        *_wrong_tables(),
        *_recorded(),
    )
