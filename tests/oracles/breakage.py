"""Breaks one round at one point, once or twice, and names every field that is not as it must be.

A twin world goes on without the fault: what is published must be what it published, what is not
must be as before. Knows scenes and fault points; counts nothing.
"""

import itertools
from dataclasses import dataclass

from scheduler.commit import FaultPoint
from scheduler.request import FinishReason
from scheduler.staging import stage_round
from scheduler.stats import CommitOutcome
from tests.oracles.scenes import (
    NOT_REPEATED,
    VICTIM,
    Kind,
    Style,
    differing,
    leaks,
    picture,
    pictures,
    scene,
    serial_texts,
    wrong_texts,
)

PUBLISHING = {FaultPoint.BEFORE_PUBLICATION, FaultPoint.AFTER_PUBLICATION}


class Broken(RuntimeError):
    """The planted fault."""


class Breaker:
    """A fault hook: raises at one point for the victim while `left` is positive."""

    def __init__(self, point):
        self.point = point
        self.left = 0
        self.hits = 0

    def __call__(self, point, number):
        if self.left and (point, number) == (self.point, VICTIM):
            self.left -= 1
            self.hits += 1
            raise Broken(point.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """One case of the matrix; `times` is how often in a row the fault comes."""

    kind: Kind
    style: Style
    point: FaultPoint
    times: int

    @property
    def name(self):
        """The case in words."""
        parts = (self.kind.layout.value, self.kind.name, self.style.name, self.point.value)
        return " ".join((*parts, str(self.times)))


class Twin:
    """The same world without a fault: pictures before and after the round, and final texts."""

    def __init__(self, kind, style):
        world = scene(kind, style)
        self.before = pictures(world.rig, world.asked)
        result, staged = world.execute()
        self.result = result
        world.land(result, staged)
        self.after = pictures(world.rig, world.asked)
        world.rig.drain()
        self.texts = {number: world.rig.outputs[number].tokens for number in world.asked}
        self.wrong = wrong_texts(world.rig, {**self.texts, **serial_texts(world.asked)})


class Trial:
    """Plays one case; `wrong` collects what is not as it must be."""

    def __init__(self, case, twin):
        self.case, self.twin = case, twin
        self.fault = Breaker(case.point)
        self.world = scene(case.kind, case.style, self.fault)
        self.rig = self.world.rig
        self.wrong = list(twin.wrong)

    def play(self):
        """All that differs, by name; empty when the case holds."""
        self._compare("before", self.twin.before, frozenset())
        again = self._break()
        for _ in range(len(again) + self.case.times):
            if self._alive(again):
                self._retry(again)
        self.rig.drain()
        ended = self.case.times > 1 and self.case.point is not FaultPoint.AFTER_PUBLICATION
        if ended:
            self._check_ended()
        texts = {n: text for n, text in self.twin.texts.items() if not (ended and n == VICTIM)}
        self.wrong += wrong_texts(self.rig, texts)
        self.wrong += leaks(self.rig)
        return self.wrong

    def _compare(self, when, wanted, leaving):
        for number, picture_of_it in wanted.items():
            names = differing(picture(self.rig, number), picture_of_it, leaving)
            self.wrong += [f"{when}: {number}.{name}" for name in names]

    def _break(self):
        """The first try. Gives the groups that were not published, by request."""
        world, point = self.world, self.case.point
        self.fault.left = self.case.times
        result = self.rig.runner.run(world.plan)
        self.wrong += ["first result"] * (result.groups != self.twin.result.groups)
        landed = self._stage_and_land(world.plan, world.jobs, result)
        planned = {group.request: group for group in world.plan.groups}
        again = {} if point is FaultPoint.AFTER_PUBLICATION else {VICTIM: planned[VICTIM]}
        outcomes = {each.request: each.outcome for each in landed.groups}
        aborted = CommitOutcome.ABORTED
        wanted = {n: aborted if n in again else CommitOutcome.PUBLISHED for n in planned}
        self.wrong += ["outcomes"] * (outcomes != wanted)
        states = {
            number: (self.twin.before if number in again else self.twin.after)[number]
            for number in world.asked
        }
        self._compare("broken", states, frozenset())
        return again

    def _stage_and_land(self, plan, jobs, result):
        staged = stage_round(plan, jobs, result, self.fault)
        return self.rig.land(jobs, staged, result)

    def _alive(self, again):
        live = self.rig.book.entries
        return any(n in live and live[n].retry is not None for n in again)

    def _retry(self, again):
        """One more round: a request alone, with the drafts, the K and the draws of its first."""
        plan, jobs = self.rig.plan()
        (group,) = plan.groups
        number = group.request
        self.wrong += [f"retry plan of {number}"] * (group != again.get(number))
        before = {n: picture(self.rig, n) for n in self.world.asked}
        result = self.rig.runner.run(plan)
        first = next(each for each in self.twin.result.groups if each.request == number)
        self.wrong += [f"retry result of {number}"] * (result.groups != (first,))
        broken = number == VICTIM and self.fault.left > 0
        self._stage_and_land(plan, jobs, result)
        if not broken:
            before[number] = self.twin.after[number]
        else:
            del before[number]
        others = {n: each for n, each in before.items() if n != number}
        self._compare("retry of another", others, frozenset())
        mine = {n: each for n, each in before.items() if n == number}
        self._compare("retry", mine, NOT_REPEATED)

    def _check_ended(self):
        """The victim ended with an error and kept what it had."""
        output, before = self.rig.outputs[VICTIM], self.twin.before[VICTIM]
        ends = [each.reason for each in self.rig.finished if each.request == VICTIM]
        self.wrong += ["reason"] * (ends != [FinishReason.ERROR])
        self.wrong += ["kept"] * (tuple(output.tokens) != before["emitted"])
        self.wrong += ["text"] * (output.text != before["text"])


def break_round(case, twins):
    """Names of what is wrong in one case; `twins` remembers worlds without a fault."""
    key = (case.kind.name, case.kind.layout, case.style.name)
    if key not in twins:
        twins[key] = Twin(case.kind, case.style)
    trial = Trial(case, twins[key])
    wrong = trial.play()
    expected = case.times if case.point is not FaultPoint.AFTER_PUBLICATION else None
    if trial.fault.hits < 1 or (expected is not None and trial.fault.hits != expected):
        wrong.append(f"{trial.fault.hits} faults")
    return wrong


def all_breaks(kinds, styles, times=(1, 2)):
    """The matrix of cases."""
    return [
        Break(kind=kind, style=style, point=point, times=count)
        for kind, style, point, count in itertools.product(kinds, styles, FaultPoint, times)
    ]
