"""The virtual engine: plans, times and settles rounds as the real one does, without a model.

Rows are granted as `scheduler.scheduler` grants them and drafts as `scheduler.drafts` does; the
draft cache's lag follows contract section 6. The clock advances by the true seconds; a controller
is told those times noise.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scheduler.controller import Controller, DraftView, LoadView
from scheduler.events import RequestStats
from scheduler.plan import RoundTimings, TerminalKind
from scheduler.request import FinishReason, ProposerKind
from scheduler.sharing import Turns
from scheduler.stats import (
    CommitOutcome,
    Decision,
    FinishedStats,
    GroupStats,
    LoadStats,
    Policy,
    PoolStats,
    Reason,
    SpeculationStats,
    StepStats,
)
from tests.bench.simulation.traffic import Live, Profile, Traffic, arrivals, make_request
from tests.bench.simulation.truth import Noise, Truth

_ROWS = 512
_FIRST_K = 4
_POOL = PoolStats(used=0, free=1 << 20, cached=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything that is true while controllers try. `span` is virtual seconds, `places` how many
    requests run at once; with `masses` acceptance is reported as the chance that it had, else as
    the outcome, 0 or 1."""

    truth: Truth
    traffic: Traffic
    noise: Noise
    span: float
    places: int = 64
    k_max: int = 8
    masses: bool = False
    policy: Policy = Policy.TOKEN
    seed: int = 1


@dataclass(slots=True)
class Share:
    """One request in a round: its target rows, whether it emits, and what it drafts."""

    live: Live
    rows: int
    emits: bool
    room: int
    k: int = 0
    extra: int = 0
    chunk: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round did, for whoever watches. `start` and `seconds` are of the virtual clock,
    `draft_seconds` a part of the latter, `tokens` those committed beyond first ones."""

    start: float
    seconds: float
    draft_seconds: float
    shares: Sequence[Share]
    decision: Decision
    tokens: int
    finished: Sequence[Live]


class VirtualEngine:
    """Runs a world under one controller. `watch` sees every round after it is over."""

    def __init__(
        self, world: World, controller: Controller, watch: Callable[[Round], None]
    ) -> None:
        self.now = 0.0
        self.running: dict[int, Live] = {}
        self._world = world
        self._controller = controller
        self._watch = watch
        self._chance = random.Random(world.seed * 7919 + 17)
        self._rounds = 0
        self._made = 0
        self._due: list[float] = []
        if world.traffic.rate is not None:
            self._due = arrivals(world.traffic.rate, world.span, world.seed)[::-1]
        self._waiting: list[Live] = []
        self._turns = Turns()

    def run(self) -> None:
        """Rounds until the span is over or nothing is left to do."""
        while self.now < self._world.span:
            self._arrive()
            if self.running or self._waiting:
                self._round()
            elif self._due:
                self.now = self._due[-1]
            else:
                return

    def profile(self, number: int) -> Profile:
        """What drafts of a running request are accepted by now: for the oracle alone."""
        live = self.running[number]
        return live.domain.at(self.now / self._world.span, live.emitted)

    # ---- planning --------------------------------------------------------------------------------

    def _arrive(self) -> None:
        if self._world.traffic.rate is not None:
            while self._due and self._due[-1] <= self.now:
                self._due.pop()
                self._queue()
            return
        share, wanted = self.now / self._world.span, 0
        for start, count in self._world.traffic.load:
            wanted = count if share >= start else wanted
        for _ in range(wanted - len(self.running) - len(self._waiting)):
            self._queue()

    def _queue(self) -> None:
        self._waiting.append(make_request(self._world.traffic, self._made, self._world.seed))
        self._made += 1

    def _shares(self) -> list[Share]:
        """Rows: a frontier for those that decode, then chunks of prompts, then new requests."""
        shares = [self._decoding(each) for each in self.running.values() if each.emitted]
        spare = _ROWS - len(shares)
        budget = max(spare - sum(map(_wanted, shares)), (spare + 1) // 2)
        for live in [each for each in self.running.values() if not each.emitted]:
            rows = min(live.prompt - live.rows, budget)
            budget -= rows
            if rows:
                shares.append(self._chunk(live, rows))
        while self._waiting and budget > 0 and len(self.running) < self._world.places:
            live = self._waiting.pop(0)
            self.running[live.number] = live
            rows = min(live.prompt, budget)
            budget -= rows
            shares.append(self._chunk(live, rows))
        return shares

    def _decoding(self, live: Live) -> Share:
        room = min(self._world.k_max, live.budget - live.emitted - 1)
        return Share(live, rows=1, emits=True, room=room)

    def _chunk(self, live: Live, rows: int) -> Share:
        emits = live.rows + rows == live.prompt
        room = min(self._world.k_max, live.budget - 1) if emits and rows == 1 else 0
        return Share(live, rows=rows, emits=emits, room=room)

    def _decide(self, shares: Sequence[Share]) -> Decision:
        emitting = [share for share in shares if share.emits]
        view = LoadView(
            requests=tuple(map(self._view, emitting)),
            rows=sum(share.rows for share in shares),
            prefill_rows=sum(share.rows - share.emits for share in shares),
            spare=_ROWS - len(emitting),
            load=self._load(),
        )
        decision = self._controller.decide(view)
        wanted = {s.live.number: min(decision.k(s.live.number), s.room) for s in emitting}
        granted = self._turns.share(wanted, _ROWS - view.rows)
        for share in emitting:
            share.live.k, share.k = wanted[share.live.number], granted[share.live.number]
        self._catch_up(emitting)
        return _as_planned(decision, emitting)

    def _load(self) -> LoadStats:
        return LoadStats(
            running=len(self.running),
            waiting=len(self._waiting),
            target_pool=_POOL,
            draft_pool=_POOL,
        )

    def _view(self, share: Share) -> DraftView:
        live = share.live
        return DraftView(
            request=live.number,
            asked=None,
            room=share.room,
            policy=self._world.policy,
            proposer=ProposerKind.DRAFT_MODEL,
            lag=live.lag,
            context=live.tokens,
            emitted=live.emitted,
            left=live.budget - live.emitted,
        )

    def _catch_up(self, emitting: Sequence[Share]) -> None:
        """Draft rows go to those first that lag least; one with too many only catches up."""
        left = _ROWS
        for share in sorted(emitting, key=lambda each: each.live.lag):
            if not share.k:
                continue
            pending = share.live.lag + 1
            if pending > left:
                share.k, share.chunk = 0, left
                left = 0
            else:
                share.extra = pending - 1
                left -= pending

    # ---- the round -------------------------------------------------------------------------------

    def _round(self) -> None:
        shares = self._shares()
        decision = self._decide(shares)
        draft, target = seconds_of(self._world.truth, shares)
        start, position = self.now, {each.live.number: each.live.tokens for each in shares}
        self.now += draft + target
        groups, finished, tokens = [], [], 0
        for share in shares:
            first = not share.live.emitted
            group = self._settle(share, position[share.live.number], start)
            groups.append(group)
            tokens += group.committed - (first and group.committed > 0)
            if share.live.emitted >= share.live.length:
                finished.append(share.live)
        for live in finished:
            del self.running[live.number]
            self._controller.forget(live.number)
        self._report(groups, (shares, finished), (draft, target), decision)
        self._watch(
            Round(
                start=start,
                seconds=draft + target,
                draft_seconds=draft,
                shares=shares,
                decision=decision,
                tokens=tokens,
                finished=finished,
            )
        )

    def _settle(self, share: Share, position: int, start: float) -> GroupStats:
        """Publish one request's part: tokens, rows and the draft cache."""
        live = share.live
        live.rows += share.rows
        speculation, committed, terminal = None, 0, None
        if share.emits:
            profile = live.domain.at(start / self._world.span, live.emitted)
            share.accepted = live.accepted(share.k, profile)
            speculation, committed, terminal = self._verified(share, profile)
            live.rows = live.prompt + live.emitted + committed - 1
            live.emitted += committed
            if live.first is None:
                live.first = self.now
        if share.k:
            live.draft_rows = live.tokens - 1 - (share.accepted == share.k)
        live.draft_rows += share.chunk
        drafted = share.k or share.chunk
        return GroupStats(
            request=live.number,
            outcome=CommitOutcome.PUBLISHED,
            policy=self._world.policy,
            proposer=ProposerKind.DRAFT_MODEL if drafted else ProposerKind.NONE,
            domain="other",
            position=position,
            committed=committed,
            prefilled=share.rows - share.emits,
            terminal=terminal,
            speculation=speculation,
        )

    def _verified(
        self, share: Share, profile: Profile
    ) -> tuple[SpeculationStats | None, int, TerminalKind]:
        """What verification shows, how many tokens it commits, and how it ends."""
        k, left = share.k, share.live.length - share.live.emitted
        cut = share.accepted >= left
        accepted = min(share.accepted, left)
        committed = accepted if cut else accepted + 1
        if not k:
            return None, committed, TerminalKind.PLAIN
        reached = accepted if cut else min(accepted + 1, k)
        last = len(profile) - 1
        if self._world.masses:
            mass = tuple(profile[min(place, last)] for place in range(reached))
        else:
            mass = tuple(float(place < accepted) for place in range(reached))
        speculation = SpeculationStats(
            k=k, accepted=accepted, reached=reached, mass=mass, base=(1.0,) * reached
        )
        if cut:
            return speculation, committed, TerminalKind.STOP
        kind = TerminalKind.BONUS if accepted == k else TerminalKind.CORRECTION
        return speculation, committed, kind

    def _report(
        self,
        groups: Sequence[GroupStats],
        done: tuple[Sequence[Share], Sequence[Live]],
        seconds: tuple[float, float],
        decision: Decision,
    ) -> None:
        shares, finished = done
        factor = self._world.noise.factor(self._chance)
        draft, target = (factor * each for each in seconds)
        self._rounds += 1
        rows = sum(share.rows + share.k for share in shares)
        stats = StepStats(
            round_id=self._rounds,
            groups=tuple(groups),
            finished=tuple(_finished(live, self.now) for live in finished),
            timings=RoundTimings(draft=draft, verify=target, decide=0.0, forward=draft + target),
            round_seconds=draft + target,
            schedule_seconds=0.0,
            commit_seconds=0.0,
            target_rows=rows,
            draft_rows=sum(share.k + share.extra + share.chunk for share in shares),
            logit_rows=sum(1 + share.k for share in shares if share.emits),
            host_syncs=0,
            residual_fallbacks=0,
            preemptions=0,
            load=self._load(),
            decision=decision,
        )
        self._controller.learn(stats)


def seconds_of(truth: Truth, shares: Sequence[Share]) -> tuple[float, float]:
    """True seconds of a round: its draft, and all else."""
    emitters = sum(share.emits for share in shares)
    drafts = sum(share.k for share in shares)
    rows = drafts + sum(share.rows for share in shares)
    keys = 0.0
    if truth.row_key:
        keys = sum((s.rows + s.k) * (_cached(s) - truth.context) for s in shares)
    steps: list[int] = []
    for share in shares:
        for depth in range(share.k):
            if depth == len(steps):
                steps.append(0)
            steps[depth] += 1
    extra = sum(share.extra + share.chunk for share in shares)
    by_n, by_k = truth.factors(emitters, drafts)
    decoding = truth.target(emitters, emitters + drafts)
    target = truth.target(emitters, rows, keys) + (by_k - 1.0) * decoding
    return by_n * by_k * truth.draft(steps, extra), by_n * target


def _finished(live: Live, now: float) -> FinishedStats:
    stop = live.length < live.budget
    return FinishedStats(
        request=live.number,
        reason=FinishReason.STOP if stop else FinishReason.LENGTH,
        speculated=live.draft_rows > 0,
        prompt_tokens=live.prompt,
        request_stats=RequestStats(
            steps=0,
            drafted=0,
            accepted=0,
            histogram=(),
            rounds=0,
            completion_tokens=live.emitted,
            cached_tokens=0,
            arrival=0.0,
            admitted=0.0,
            first_token=live.first,
            finished=now,
        ),
    )


def _cached(share: Share) -> int:
    """Tokens that a row of this round sees on average."""
    live = share.live
    return live.tokens if live.emitted else live.rows + share.rows // 2


def _wanted(share: Share) -> int:
    last = _FIRST_K if share.live.k is None else share.live.k
    return min(last, share.room)


def _as_planned(decision: Decision, emitting: Sequence[Share]) -> Decision:
    """The decision with what rows left of it."""
    choices = dict(decision.choices)
    for share in emitting:
        number = share.live.number
        if number in choices and share.k < choices[number].k:
            choices[number] = replace(choices[number], k=share.k, reason=Reason.ROWS)
    return replace(decision, choices=choices)
