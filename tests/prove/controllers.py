"""The output law with the goodput controller in the loop, by exact enumeration (contract 11.1).

Whole lives through scheduler and engine parts, each with a controller of its own that estimates,
prices and probes. What rounds took is a function of their rows. A law says nothing of a controller
that never chooses: each setting must show several K for one room to draft in.
"""

import copy
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from scheduler.controller import Controller
from scheduler.goodput import GoodputController
from scheduler.plan import Layout
from scheduler.request import Verifier
from scheduler.stats import Policy
from tests.oracles.apart import Apart, Minds
from tests.oracles.leaves import client, tables
from tests.oracles.lived import K_MAX, Costs, lived
from tests.oracles.lives import LifeLaw
from tests.oracles.rig import BLOCK, NOISE, TOKEN
from tests.oracles.rounds import REPLAY, RETAINED
from tests.oracles.twins import TwinLaw
from tests.oracles.worlds import VERIFIERS
from tests.prove.enumeration import SPOTS, STEPS, finding
from tests.prove.proof import Finding, Proof, Scope

_POLICIES = {TOKEN: Policy.TOKEN, BLOCK: Policy.BLOCK, NOISE: Policy.SHARED_NOISE}
_CLOSE = {REPLAY: Costs(row=0.43, step=0.43), RETAINED: Costs(row=0.2, step=0.2)}
"""Some drafts or none: what a fresh controller expects hardly decides,"""
_CLOSE_TO_TWO = {REPLAY: _CLOSE[REPLAY], RETAINED: Costs(row=0.1, step=0.1)}
"""nor where two are the most."""
_HOPEFUL = {REPLAY: Costs(row=0.03, step=0.03), RETAINED: Costs(base=0.02, row=0.5, step=0.001)}
"""Drafts that would pay if all were accepted, and are probed for that."""
_PROBING = {REPLAY: 46, RETAINED: 777}
"""Rounds after which a controller that saw nothing accepted there is about to probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Clients, as options of `leaves.client`, under a controller that each life starts with."""

    name: str
    clients: tuple[dict, ...]
    controller: Controller
    costs: Costs
    vocabulary: int = 2
    rounds: int = 3
    k_max: int = K_MAX


def _fresh(costs: Costs, k_max: int, layout: Layout) -> dict[str, object]:
    """A controller for `costs` that has seen nothing, as options of `Setting`."""
    controller = GoodputController(costs.table(), k_max, layout)
    return {"controller": controller, "costs": costs, "k_max": k_max}


def _settings(verifier: Verifier, scope: Scope, layout: Layout) -> Iterator[Setting]:
    long = scope is Scope.FULL
    one = {"verifier": verifier, "max_tokens": 6}
    yield Setting(name="fresh", clients=(one,), **_fresh(_CLOSE[layout], K_MAX, layout))
    unlucky = lived(
        _HOPEFUL[layout],
        rounds=_PROBING[layout],
        accepts=lambda *_: 0,
        policy=_POLICIES[verifier],
        layout=layout,
    )
    yield Setting(
        name="probing",
        clients=({**one, "max_tokens": 7 if long else 6},),
        controller=unlucky,
        costs=_HOPEFUL[layout],
    )
    # In the retained layout one draft alone never pays: two must be possible twice.
    tokens = 4 if layout is REPLAY else 5
    other = {"verifier": TOKEN, "prompt": (1, 0), "max_tokens": tokens}
    yield Setting(
        name="two requests",
        clients=({**one, "max_tokens": max(5 if long else 4, tokens)}, other),
        **_fresh(_CLOSE_TO_TWO[layout], 2, layout),
    )
    for vocabulary in (3, 4) if long else ():
        few = {"verifier": verifier, "max_tokens": 5}
        yield Setting(
            name=f"{vocabulary} tokens",
            clients=(few,),
            vocabulary=vocabulary,
            **_fresh(_CLOSE_TO_TWO[layout], 2, layout),
        )


def play(setting: Setting, layout, at: float) -> tuple[LifeLaw, Minds]:
    """The law of a setting, not asked for yet, and the minds of its lives."""
    minds = Minds(lambda: copy.deepcopy(setting.controller))

    def controller() -> Apart:
        return Apart(minds, len(setting.clients), setting.costs.took, retained=layout is RETAINED)

    logits = tables(setting.vocabulary)
    law = LifeLaw(
        [client(logits=logits, **each) for each in setting.clients],
        logits,
        setting.vocabulary,
        controller,
        # The decision after the last round is asked for too.
        rounds=(setting.rounds + 1) * STEPS[layout] - 1,
        layout=layout,
        at=at,
        memory=0,
        known=Apart.known,
        k_max=setting.k_max,
    )
    return law, minds


def choices(minds: Minds) -> dict[int, set[int]]:
    """Every K that was chosen freely, by room."""
    found = defaultdict(set)
    for view, decision in minds.decided():
        for each in view.requests:
            if each.asked is None and not each.shared_seed:
                found[each.room].add(decision.k(each.request))
    return found


def _with_controller(scope: Scope) -> Finding:
    gaps, cases, histories, still = [], 0, 0, []
    every = [
        (verifier, each, layout)
        for verifier in VERIFIERS
        for pair in zip(*(_settings(verifier, scope, layout) for layout in STEPS), strict=True)
        for each, layout in zip(pair, STEPS, strict=True)
    ]
    for turn, (verifier, each, layout) in enumerate(every):
        if scope is Scope.FAST and layout is not (REPLAY, RETAINED)[turn // 2 % 2]:
            continue
        spot = [*SPOTS][(turn // 2 + turn % 2) % 3]  # either layout sees all of them
        law, minds = play(each, layout, SPOTS[spot])
        name = f"{verifier.value}, {each.name}, {layout.value}, {spot}"
        gaps.append((name, law.deviation()))
        cases += law.outputs
        histories += minds.count
        if all(len(ks) == 1 for ks in choices(minds).values()):
            still.append((f"{name}: K never changes", float("inf")))
    return finding(cases, gaps + still, "joint outputs", f"{histories} histories of controllers")


# --- two requests with one seed ------------------------------------------------------------------

P, Q = (0.25, 0.75), (0.5, 0.5)


def twins(rule: Verifier, layout, at: float, made=None) -> TwinLaw:
    """Two requests with one seed, of which the first has its own K and is ahead of the other."""
    costs = Costs(row=0.05, step=0.05)
    minds = Minds(made or (lambda: GoodputController(costs.table(), 1, layout)))
    first = {"k": 1, "max_tokens": 5, "own_seed": True}
    return TwinLaw(
        [first, {"max_tokens": 5, "own_seed": True}],
        P,
        Q,
        lambda: Apart(minds, 2, costs.took, retained=layout is RETAINED),
        rule=rule,
        depth=1,
        rounds=5 * STEPS[layout],
        layout=layout,
        at=at,
        memory=0,
        known=Apart.known,
        k_max=1,
    )


def _one_seed(scope: Scope) -> Finding:
    gaps, cases = [], 0
    for turn, (rule, layout, spot) in enumerate(product((TOKEN, BLOCK), STEPS, SPOTS)):
        if scope is Scope.FAST and turn % 10 != 1:
            continue
        law = twins(rule, layout, SPOTS[spot])
        for which, gap in zip(("first", "second"), law.deviations(), strict=True):
            gaps.append((f"{rule.value}, {layout.value}, {spot}, {which}", gap))
            cases += 1
    return finding(cases, gaps, "laws of one of two")


PROOFS = (
    Proof(
        name="enumeration-controller",
        section="11.1",
        oracle="enumeration through controller and scheduler",
        run=_with_controller,
    ),
    Proof(
        name="enumeration-one-seed",
        section="3",
        oracle="enumeration over draws that two requests share",
        run=_one_seed,
    ),
)
