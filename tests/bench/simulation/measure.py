"""Runs the arms of one point and reduces them to figures. Knows no scenario and prints nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.controller import Controller, FixedController
from scheduler.costs import CostTable
from scheduler.goodput import GoodputController
from scheduler.stats import Reason
from tests.bench.simulation.arms import OracleController
from tests.bench.simulation.engine import Round, VirtualEngine, World

EVERY_K = tuple(range(9))
_PROBES = frozenset({Reason.PROBE, Reason.BASELINE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One controller's run, after the warm-up.

    `rate` is committed tokens (first ones left out) a second, `pace` the same for the mean request
    between its first token and its last, None when none ended. `flips` are switches between
    drafting and not drafting anything from one round of decoding alone to the next such, `changes`
    those of a request's K; probes and cuts for want of room count for neither. `probing` is the
    share of time in rounds with a probe or a baseline, `idle_draft` that of draft work in rounds
    where nothing but probes drafts. `mean_k` is drafts an emitting request and round.
    """

    name: str
    rate: float
    pace: float | None
    tokens: int
    rounds: int
    seconds: float
    flips: int
    changes: int
    emitted: int
    probing: float
    idle_draft: float
    mean_k: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """All arms of one scenario at one concurrency."""

    scenario: str
    concurrency: int
    paced: bool
    arms: tuple[Arm, ...]

    def score(self, name: str) -> float:
        """What the named arm is judged by."""
        arm = next(each for each in self.arms if each.name == name)
        return arm.rate if not self.paced or arm.pace is None else arm.pace

    @property
    def best_fixed(self) -> str:
        """The name of the best fixed K."""
        return max((a.name for a in self.arms if a.name.startswith("k=")), key=self.score)

    def over(self, name: str) -> float:
        """The controller's score over the named arm's."""
        return self.score("auto") / self.score(name)

    @property
    def worst(self) -> float:
        """The lower of the ratios that have a bar: over the best fixed K, and over plain."""
        return min(self.over(self.best_fixed), self.over("k=0"))


class Tally:
    """Adds up rounds that start after `since`."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._start: float | None = None
        self._end = since
        self._drafting: bool | None = None
        self._last: dict[int, int] = {}
        self.tokens = self.rounds = self.flips = self.changes = self.emitted = self.drafts = 0
        self.probing = self.idle = 0.0
        self._paced_tokens, self._paced_seconds = 0, 0.0

    def add(self, done: Round) -> None:
        """One round."""
        choices = done.decision.choices
        probed = {each for each, choice in choices.items() if choice.reason in _PROBES}
        counted = done.start >= self._since
        flips, changes = self._switches(done, probed)
        if not counted:
            return
        self._start = done.start if self._start is None else self._start
        self._end = done.start + done.seconds
        self.tokens += done.tokens
        self.rounds += 1
        self.flips += flips
        self.changes += changes
        self.emitted += sum(share.emits for share in done.shares)
        self.drafts += sum(share.k for share in done.shares)
        self.probing += done.seconds if probed else 0.0
        self.idle += 0.0 if self._drafts_at_will(done, probed) else done.draft_seconds
        self._pace(done)

    def _drafts_at_will(self, done: Round, probed: set[int]) -> bool:
        """Whether any drafts that a probe did not ask for, or would if none were probed deeper."""
        free = any(share.k and share.live.number not in probed for share in done.shares)
        return free or bool(probed and self._drafting)

    def _pace(self, done: Round) -> None:
        for live in done.finished:
            if live.emitted > 1 and live.first is not None:
                self._paced_tokens += live.emitted - 1
                self._paced_seconds += self._end - live.first

    def _switches(self, done: Round, probed: set[int]) -> tuple[int, int]:
        seen = [s for s in done.shares if s.emits and s.room and s.live.number not in probed]
        if not seen:
            return 0, 0
        flips = 0
        if all(share.rows == 1 for share in done.shares):
            drafting = any(share.k for share in seen)
            flips = int(self._drafting is not None and drafting != self._drafting)
            self._drafting = drafting
        changes = 0
        for share in seen:
            before = self._last.get(share.live.number)
            changes += before is not None and before != share.k and before <= share.room
            self._last[share.live.number] = share.k
        return flips, changes

    def arm(self, name: str) -> Arm:
        """The figures."""
        start = self._since if self._start is None else self._start
        seconds = max(self._end - start, 1e-12)
        pace = self._paced_tokens / self._paced_seconds if self._paced_seconds else None
        return Arm(
            name=name,
            rate=self.tokens / seconds,
            pace=pace,
            tokens=self.tokens,
            rounds=self.rounds,
            seconds=seconds,
            flips=self.flips,
            changes=self.changes,
            emitted=self.emitted,
            probing=self.probing / seconds,
            idle_draft=self.idle / seconds,
            mean_k=self.drafts / max(self.emitted, 1),
        )


def run_arm(world: World, controller: Controller, name: str, warm: float) -> Arm:
    """One controller in one world; the first `warm` of the span is not counted."""
    tally = Tally(warm * world.span)
    engine = VirtualEngine(world, controller, tally.add)
    if isinstance(controller, OracleController):
        controller.profile = engine.profile
    engine.run()
    return tally.arm(name)


def run_arms(world: World, table: CostTable, warm: float, fixed: Sequence[int]) -> tuple[Arm, ...]:
    """Every fixed K, the controller and the oracle, with the same seeds."""
    arms = [run_arm(world, FixedController(k), f"k={k}", warm) for k in fixed]
    auto = GoodputController(table, world.k_max)
    arms.append(run_arm(world, auto, "auto", warm))
    oracle = OracleController(world.truth, world.k_max)
    arms.append(run_arm(world, oracle, "oracle", warm))
    return tuple(arms)
