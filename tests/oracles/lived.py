"""Goodput controllers that have served somebody before, and what their rounds took.

Costs are made by hand: a round costs its base and so much a row, a draft step the same for any
number of requests. Deterministic: no clock.
"""

from dataclasses import dataclass

from scheduler.controller import DraftView, LoadView
from scheduler.costs import CostTable, RoundCurve, rising
from scheduler.goodput import GoodputController
from scheduler.plan import Layout
from scheduler.request import ProposerKind
from scheduler.stats import Policy
from tests.telemetry.rounds import LOAD, drafted, plain, step

K_MAX = 3
_STRANGER = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of rounds: `base`, for each target `row`, for each draft `step`, for each draft row
    that is caught up."""

    base: float = 1.0
    row: float = 0.05
    step: float = 0.1
    caught: float = 0.0

    def table(self):
        """The start-up profile of a machine like that."""
        numbers = (1, 2, 4, 8, 16, 32)
        return CostTable(
            context=0,
            rounds=tuple(
                RoundCurve(
                    emitters=n,
                    seconds=rising(
                        (n * (k + 1), self.round(n * (k + 1))) for k in range(K_MAX + 1)
                    ),
                )
                for n in numbers
            ),
            step=rising((n, self.step) for n in numbers),
            catch_up=rising((rows, self.step + self.caught * rows) for rows in (1, 256)),
        )

    def took(self, rows, drafts, drafted):
        """A round of `rows` target rows with `drafts` drafts, and `drafted` rows of the draft."""
        steps = self.step * drafts + self.caught * (drafted - drafts)
        return (self.round(rows) if rows else 0.0) + steps

    def round(self, rows):
        """A round without drafting."""
        return self.base + self.row * rows


def lived(costs, *, rounds, accepts, policy=Policy.TOKEN, layout=Layout.REPLAY_FRONTIER):
    """A controller for `costs` that has served one stranger for `rounds` rounds, which accepted
    `accepts(round, k)` drafts of k. Every place shows the share that was accepted. In the retained
    layout an append comes after each."""
    controller = GoodputController(costs.table(), K_MAX, layout)
    frontier = int(layout is Layout.REPLAY_FRONTIER)
    for number in range(rounds):
        k = controller.decide(_alone(policy, frontier)).k(_STRANGER)
        accepted = min(accepts(number, k), k)
        told = {"request": _STRANGER, "policy": policy, "position": 2}
        group = drafted(k, accepted, mass=accepted / k, **told) if k else plain(**told)
        seconds = costs.took(frontier + k, k, k)
        controller.learn(_step(group, frontier + k, k, seconds))
        if not frontier:
            append = plain(**told, terminal=None, committed=0)
            controller.learn(_step(append, 1, 0, costs.took(1, 0, 0)))
    controller.forget(_STRANGER)
    return controller


def _step(group, rows, drafted_rows, seconds):
    return step(group, target_rows=rows, draft_rows=drafted_rows, round_seconds=seconds)


def _alone(policy, rows):
    view = DraftView(
        request=_STRANGER,
        asked=None,
        room=K_MAX,
        policy=policy,
        proposer=ProposerKind.DRAFT_MODEL,
        lag=1,
        context=2,
        emitted=1,
        left=10**6,
    )
    return LoadView(requests=(view,), rows=rows, prefill_rows=0, spare=512, load=LOAD)
