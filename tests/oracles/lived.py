"""Goodput controllers that have served somebody before, and what their rounds took.

Costs are made by hand: a round costs its base and so much a row, a draft step the same for any
number of requests. Deterministic: no clock.
"""

from dataclasses import dataclass

from scheduler.controller import DraftView, LoadView
from scheduler.costs import CostTable, RoundCurve, rising
from scheduler.goodput import GoodputController
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
        return self.round(rows) + steps

    def round(self, rows):
        """A round without drafting."""
        return self.base + self.row * rows


def lived(costs, *, rounds, accepts, policy=Policy.TOKEN):
    """A controller for `costs` that has served one stranger for `rounds` rounds, which accepted
    `accepts(round, k)` drafts of k. Every place shows the share that was accepted."""
    controller = GoodputController(costs.table(), K_MAX)
    for number in range(rounds):
        k = controller.decide(_alone(policy)).k(_STRANGER)
        accepted = min(accepts(number, k), k)
        told = {"request": _STRANGER, "policy": policy, "position": 2}
        group = drafted(k, accepted, mass=accepted / k, **told) if k else plain(**told)
        seconds = costs.took(1 + k, k, k)
        controller.learn(step(group, target_rows=1 + k, draft_rows=k, round_seconds=seconds))
    controller.forget(_STRANGER)
    return controller


def _alone(policy):
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
    return LoadView(requests=(view,), rows=1, prefill_rows=0, load=LOAD)
