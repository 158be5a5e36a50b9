"""What tests of the simulator share: a small world, and controllers that watch or misbehave."""

import random

from scheduler.controller import FixedController, fixed
from tests.bench.simulation.arms import OracleController
from tests.bench.simulation.engine import VirtualEngine, World
from tests.bench.simulation.traffic import Traffic, steady
from tests.bench.simulation.truth import Noise, Truth, line

TRUTH = Truth(
    rows=line(10e-3, 1e-3), emitter=2e-3, step=line(3e-3, 0.5e-3), catch_up=0.1e-3, context=0
)
QUIET = Noise(spread=0.0, outliers=0.0)


def world(*domains, load=4, span=20.0, **more):
    traffic = {"prompts": (40, 90), "outputs": (50, 120), "stop": 0.004}
    traffic |= {name: more.pop(name) for name in list(more) if name in Traffic.__slots__}
    return World(
        truth=more.pop("truth", TRUTH),
        traffic=Traffic(domains=domains or (steady(0.7),), load=((0.0, load),), **traffic),
        noise=more.pop("noise", QUIET),
        span=span,
        **more,
    )


class Watched:
    """Any controller, with what it saw."""

    def __init__(self, inner):
        self.inner = inner
        self.views, self.stats, self.ended = [], [], []

    def decide(self, view):
        self.views.append(view)
        return self.inner.decide(view)

    def learn(self, stats):
        self.stats.append(stats)
        self.inner.learn(stats)

    def forget(self, request):
        self.ended.append(request)
        self.inner.forget(request)


class Erratic(FixedController):
    """K by chance, from 0 to beyond every room."""

    def __init__(self, seed):
        super().__init__(0)
        self._chance = random.Random(seed)

    def decide(self, view):
        return fixed(
            {each.request: self._chance.choice((0, 0, 1, 3, 12)) for each in view.requests}
        )


def ran(where, controller):
    rounds = []
    watched = Watched(controller)
    engine = VirtualEngine(where, watched, rounds.append)
    if isinstance(controller, OracleController):
        controller.profile = engine.profile
    engine.run()
    return watched, rounds, engine
