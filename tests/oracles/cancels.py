"""Cancels one request at a chosen moment of a chosen round, and names all that is then wrong.

Moments are those of the round itself, and those around a fault at one of its points. Knows scenes
and rigs; counts nothing.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from scheduler.commit import FaultPoint
from scheduler.request import FinishReason
from scheduler.stats import CommitOutcome
from tests.oracles.breakage import PUBLISHING, Breaker
from tests.oracles.rig import Rig, config, expected, request
from tests.oracles.scenes import (
    VICTIM,
    Kind,
    Style,
    leaks,
    picture,
    retained_by,
    scene,
    serial_texts,
    wrong_texts,
)


class Play:
    """One scene with its victim, and what was found wrong."""

    def __init__(self, kind, style, point=None):
        self.fault = Breaker(point)
        self.at = None
        self.cancelled = None
        self.wrong = []
        self.world = scene(kind, style, self._hook)
        self.rig = self.world.rig

    def _hook(self, point, number):
        """Cancels at a point, as the loop may while the worker stages; then perhaps breaks."""
        if (point, number) == (self.at, VICTIM):
            self.at = None
            self.cancel()
        self.fault(point, number)

    def cancel(self):
        """The client gives up, twice: the second time must change nothing."""
        entry = self.rig.book.entries.get(VICTIM)
        held = {} if entry is None else dict(entry.blocks)
        self.rig.cancel(VICTIM)
        self.cancelled = picture(self.rig, VICTIM)
        self.rig.cancel(VICTIM)
        if entry is not None and entry.blocks != held:
            self.wrong.append("blocks were taken before the next plan")

    def run(self):
        """The planned round, with whatever was armed; its landing."""
        result, staged = self.world.execute()
        return self.world.land(result, staged)

    def step(self):
        """Another whole round, of which plan and jobs become the planned ones."""
        self.world.plan, self.world.jobs = self.rig.plan()
        return self.run()

    def break_first(self):
        """The planned round breaks at the fault's point, once."""
        self.fault.left = 1
        self.run()

    def retry(self):
        """Rounds until the next one is the victim's own retry; that one is planned."""
        while True:
            self.world.plan, self.world.jobs = self.rig.plan()
            if [group.request for group in self.world.plan.groups] == [VICTIM]:
                return
            self.run()

    def expect_stale(self, landed):
        """The victim's share of a landed round must not have been published."""
        outcomes = {each.request: each.outcome for each in landed.groups}
        if outcomes.get(VICTIM, CommitOutcome.STALE) is not CommitOutcome.STALE:
            self.wrong.append(f"outcome {outcomes[VICTIM].value}")

    def end(self):
        """Drain, reuse the blocks, and look at everything."""
        self._next_plan()
        self.rig.drain()
        self._told_once()
        texts = serial_texts(self.world.asked)
        texts.pop(VICTIM, None)
        self.wrong += wrong_texts(self.rig, texts)
        later = [request(n, (n, 1) * n, max_tokens=5, k=2) for n in (7, 8)]
        self.rig.serve(*later)
        self.wrong += wrong_texts(self.rig, {each.request_id: expected(each) for each in later})
        self.wrong += leaks(self.rig)
        return self.wrong

    def _next_plan(self):
        """The next plan frees the blocks, and the round of it drops the retained row."""
        if self.rig.step() is not None and VICTIM in retained_by(self.rig):
            self.wrong.append("a row of the victim is retained")
        try:
            self.rig.book.tables.check_integrity(self.rig.book.entries.values())
        except ValueError as problem:
            self.wrong.append(str(problem))

    def _told_once(self):
        """One end, by the client's wish, and nothing after it."""
        ends = [each.reason for each in self.rig.finished if each.request == VICTIM]
        already = self.cancelled["finish"]
        wanted = [FinishReason.ABORT] if already is None else [already.reason]
        if ends != wanted:
            self.wrong.append(f"ends {ends}")
        if picture(self.rig, VICTIM) != self.cancelled:
            self.wrong.append("something came after the cancel")


def planned(play):
    """Before the round runs."""
    play.cancel()
    play.expect_stale(play.run())


def staged(play):
    """Between staging and publication."""
    result, ready = play.world.execute()
    play.cancel()
    play.expect_stale(play.world.land(result, ready))


def published(play):
    """Right after the round; it may have ended the request."""
    play.run()
    play.cancel()


def next_planned(play):
    """In the round after: between verification and append, or the other way round."""
    play.run()
    if VICTIM not in play.rig.book.entries:
        play.cancel()
        return
    play.world.plan, play.world.jobs = play.rig.plan()
    planned(play)


def preempted(play):
    """While it waits again, its blocks gone, the round still in flight."""
    result, ready = play.world.execute()
    play.rig.book.preempt(play.rig.book.entries[VICTIM])
    play.cancel()
    play.expect_stale(play.world.land(result, ready))


def preempted_later(play):
    """While it waits again, after its round has come back as stale."""
    result, ready = play.world.execute()
    play.rig.book.preempt(play.rig.book.entries[VICTIM])
    play.expect_stale(play.world.land(result, ready))
    play.cancel()


def finished(play):
    """After its own end: nothing to cancel."""
    play.rig.land(play.world.jobs, *reversed(play.world.execute()))
    play.rig.drain()
    play.cancel()


def before_fault(play):
    """Before the round that is to break."""
    play.fault.left = 1
    play.cancel()
    play.run()


def at_point(play):
    """While the worker passes the point; nothing breaks."""
    play.at = play.fault.point
    play.expect_stale(play.run())


def at_fault(play):
    """At the point, which then breaks the round."""
    play.at = play.fault.point
    play.fault.left = 1
    play.run()


def after_fault(play):
    """With the retry pending; after the last point, with the round published."""
    play.break_first()
    play.cancel()


def in_retry(play):
    """With the retry planned."""
    play.break_first()
    if play.fault.point is not FaultPoint.AFTER_PUBLICATION:
        play.retry()
        play.cancel()
        play.expect_stale(play.run())
    else:
        play.cancel()


def in_broken_retry(play):
    """With the retry planned, which breaks too."""
    play.break_first()
    if play.fault.point is not FaultPoint.AFTER_PUBLICATION:
        play.retry()
        play.fault.left = 1
    play.cancel()
    play.run()
    play.fault.left = 0


def after_retry(play):
    """After the retry was published."""
    play.break_first()
    if play.fault.point is not FaultPoint.AFTER_PUBLICATION:
        play.retry()
        play.run()
    play.cancel()


PLAIN_MOMENTS = (planned, staged, published, next_planned, preempted, preempted_later, finished)
FAULT_MOMENTS = (before_fault, after_fault, in_retry, in_broken_retry, after_retry)
STAGING_MOMENTS = (at_point, at_fault)  # later points belong to the loop itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """One case: `point` None for a moment without a fault."""

    kind: Kind
    style: Style
    moment: Callable[[Play], None]
    point: FaultPoint | None

    @property
    def name(self):
        """The case in words."""
        point = "no fault" if self.point is None else self.point.value
        moment = self.moment.__name__
        return " ".join((self.kind.layout.value, self.kind.name, self.style.name, moment, point))


def cancel_at(case):
    """Names of what is wrong in one case."""
    play = Play(case.kind, case.style, case.point)
    case.moment(play)
    return play.end()


def moments():
    """Every moment with its fault point."""
    staging = [point for point in FaultPoint if point not in PUBLISHING]
    return [
        *((moment, None) for moment in PLAIN_MOMENTS),
        *itertools.product(FAULT_MOMENTS, FaultPoint),
        *itertools.product(STAGING_MOMENTS, staging),
    ]


def all_cancels(kinds, styles):
    """The matrix of cases."""
    return [
        Cancel(kind=kind, style=style, moment=moment, point=point)
        for kind, style, (moment, point) in itertools.product(kinds, styles, moments())
    ]


def cancel_in_the_queue(layout, in_flight):
    """Names of what is wrong when a request that never ran is cancelled, between rounds or while
    another one's round is in flight."""
    rig = Rig(config(layout=layout, max_requests=1))
    asked = {n: request(n, (n, 1), max_tokens=6) for n in (1, VICTIM, 3)}
    rig.submit(*asked.values())
    plan, jobs = rig.plan()
    ready = rig.execute(plan, jobs)
    if in_flight:
        rig.cancel(VICTIM)
    rig.land(jobs, *reversed(ready))
    rig.cancel(VICTIM)
    rig.drain()
    texts = serial_texts(asked) | {VICTIM: []}
    ends = [each.reason for each in rig.finished if each.request == VICTIM]
    wrong = ["ends"] if ends != [FinishReason.ABORT] else []
    return wrong + wrong_texts(rig, texts) + leaks(rig)
