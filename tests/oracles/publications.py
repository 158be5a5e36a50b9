"""Publishes in every order, late, twice and under another's name; names what is then wrong.

What must happen is told by a counter of its own: a round is taken if it is the next one, repeated
if it was the last one, and stale otherwise. Knows ledgers, rigs and scenes.
"""

import hashlib
import itertools
import json
from dataclasses import replace

from scheduler.commit import Ledger
from scheduler.errors import CommitRejected, IllegalTransition
from scheduler.plan import Coordinate
from scheduler.staging import stage_round
from scheduler.state import preempted
from scheduler.stats import CommitOutcome
from tests.oracles.scenes import VICTIM, leaks, picture, scene, serial_texts, wrong_texts

PUBLISHED, STALE, REPLAYED = (
    CommitOutcome.PUBLISHED,
    CommitOutcome.STALE,
    CommitOutcome.REPLAYED,
)
WINDOW = 3


def chain(kind, style):
    """The victim's staged rounds from the scene on, each with the state that it started from."""
    world = scene(kind, style)
    rig, found = world.rig, []
    work = (world.plan, world.jobs)
    while work is not None:
        plan, jobs = work
        result, staged = rig.execute(plan, jobs)
        found += [
            (job.state, each)
            for job, each in zip(jobs, staged, strict=True)
            if job.group.request == VICTIM
        ]
        rig.land(jobs, staged, result)
        work = rig.plan()
    return found


class Counting:
    """What a ledger must answer, by counting rounds: `at` were taken, `last` was the last."""

    def __init__(self):
        self.at, self.last, self.floor, self.dropped = 0, None, -1, False

    def publish(self, number):
        """The outcome of publishing round `number` of the window; None when it must be refused: a
        preemption makes a generation, and only the identities tell that it is another one."""
        if self.last == number:
            return REPLAYED
        if number != self.at + self.dropped or number <= self.floor:
            return STALE
        if self.dropped:
            return None
        self.at, self.last = self.at + 1, number
        return PUBLISHED

    def state(self, states):
        """The state there must be."""
        state = states[self.at]
        return preempted(state) if self.dropped else state


def _act(symbol, ledger, counting, window):
    """One act on both; what differs."""
    if symbol == "preempt":
        if not counting.dropped:
            ledger.replace(VICTIM, preempted(ledger.state(VICTIM)))
            counting.dropped = True
        return []
    act, number = symbol
    if act == "abort":
        try:
            ledger.abort(VICTIM, window[number][1].record.round_id)
        except IllegalTransition:
            return [] if number == counting.last else ["abort refused"]
        counting.floor = max(counting.floor, number)
        return ["abort of what is published"] if number == counting.last else []
    wanted = counting.publish(number)
    try:
        found = ledger.publish(window[number][1])
    except CommitRejected:
        found = None
    return [] if found is wanted else [f"{found} for {wanted}"]


def orders(rounds, length=4):
    """(cases, what differed): every sequence of acts on windows of `rounds`, from `chain`."""
    acts = [(act, n) for act in ("publish", "abort") for n in range(WINDOW)]
    sequences = list(itertools.product([*acts, "preempt"], repeat=length))
    cases, wrong = 0, []
    for first in range(len(rounds) - WINDOW + 1):
        window = rounds[first : first + WINDOW]
        states = [state for state, _ in window] + [window[-1][1].successor]
        for sequence in sequences:
            ledger, counting = Ledger(), Counting()
            ledger.open(VICTIM, states[0])
            for symbol in sequence:
                wrong += _act(symbol, ledger, counting, window)
            if ledger.state(VICTIM) != counting.state(states):
                wrong.append(f"state after {sequence}")
            cases += 1
    return cases, wrong


def late_results(kind, style):
    """(cases, what differed): after every round, each earlier one is landed again."""
    world = scene(kind, style)
    rig, work = world.rig, (world.plan, world.jobs)
    past, last, cases, wrong = [], {}, 0, []
    while work is not None:
        plan, jobs = work
        result, staged = rig.execute(plan, jobs)
        rig.land(jobs, staged, result)
        past.append((jobs, staged, result))
        last |= {group.request: plan.round_id for group in plan.groups}
        before = {n: picture(rig, n) for n in world.asked}
        for each in past:
            landed = rig.land(*each)
            cases += 1
            for stats in landed.groups:
                live = rig.book.ledger.state(stats.request) is not None
                again = live and last[stats.request] == each[2].round_id
                if stats.outcome is not (REPLAYED if again else STALE):
                    wrong.append(f"late {stats.outcome.value}")
            if landed.events or landed.finished or landed.itl_seconds:
                wrong.append("a late result was told")
        if before != {n: picture(rig, n) for n in world.asked}:
            wrong.append("a late result changed something")
        work = rig.plan()
    return cases, wrong + wrong_texts(rig, serial_texts(world.asked)) + leaks(rig)


def mixed_up(kind, style):
    """(cases, what differed): results that are another group's, another generation's or another
    round's. Each must be refused by name, and the right one taken afterwards."""
    world = scene(kind, style)
    rig, plan, jobs = world.rig, world.plan, world.jobs
    result = rig.runner.run(plan)
    before = {n: picture(rig, n) for n in world.asked}
    swapped = replace(result, groups=(result.groups[1], result.groups[0], *result.groups[2:]))
    trials = [("request", swapped), ("round_id", replace(result, round_id=plan.round_id - 1))]
    for shift, place in itertools.product((-1, 1), range(len(plan.groups))):
        groups = list(result.groups)
        groups[place] = replace(groups[place], generation=groups[place].generation + shift)
        trials.append(("generation", replace(result, groups=tuple(groups))))
    trials += [
        (path, replace(result, coordinate=changed))
        for path, changed in changed_coordinates(plan.coordinate)
    ]
    wrong = [
        f"{name} was not refused by name"
        for name, trial in trials
        if not _refused(plan, jobs, trial, name)
    ]
    if before != {n: picture(rig, n) for n in world.asked}:
        wrong.append("a refused result changed something")
    rig.land(jobs, stage_round(plan, jobs, result), result)
    rig.drain()
    return len(trials), wrong + wrong_texts(rig, serial_texts(world.asked)) + leaks(rig)


def _refused(plan, jobs, result, name):
    try:
        stage_round(plan, jobs, result)
    except CommitRejected as refusal:
        return f"stale result: {name} " in str(refusal)
    return False


def changed_coordinates(coordinate):
    """Each leaf of the manifest changed alone: (its path, the coordinate that has it)."""
    whole = json.loads(coordinate.manifest)
    for path in list(_leaves(whole, ())):
        changed = json.loads(coordinate.manifest)
        home = changed
        for step in path[:-1]:
            home = home[step]
        home[path[-1]] = _other(home[path[-1]])
        text = json.dumps(changed, separators=(",", ":"))
        yield _spelled(path), Coordinate(manifest=text, digest=_digest(text))


def _leaves(value, path):
    if isinstance(value, dict) or (isinstance(value, list) and value):
        steps = value if isinstance(value, dict) else range(len(value))
        for step in steps:
            yield from _leaves(value[step], (*path, step))
    else:
        yield path


def _other(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return [0] if isinstance(value, list) else f"{value}?"


def _spelled(path):
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _digest(text):
    return hashlib.sha256(text.encode()).hexdigest()
