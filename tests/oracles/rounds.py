"""Exact law of whole rounds: executor, staging and ledger over every outcome of every draw.

Each possible outcome of a round, for all requests of one world together, is a set of groups of one
packed plan, with a seed of its own, and its draws lie in the intervals that lead there. So every
outcome runs beside all others, and any leak between groups shows as an error of the law. The
intervals come from NumPy formulas; what is decided comes from the product. A draw that is not keyed
as the contract says finds another value, or none.
"""

import time
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import product

import torch

from scheduler.commit import Ledger, stage
from scheduler.plan import Coordinate, DeviceDraft, Group, HostDraft, Layout, Role, RoundPlan
from scheduler.runtime.draws import planned_depth
from scheduler.runtime.round import RoundExecutor
from scheduler.runtime.timed import TimedForward
from scheduler.sampling.processors import law as softmax
from scheduler.state import RequestState, RngState, initial_state, preempted
from scheduler.stats import CommitOutcome
from tests.oracles.leaves import Client, Fixed, drafted, draw_key, outcomes
from tests.oracles.tabular import TabularForward

REPLAY, RETAINED = Layout.REPLAY_FRONTIER, Layout.RETAINED_FRONTIER


@dataclass(frozen=True, slots=True)
class Part:
    """One request's share of one outcome."""

    client: Client
    state: RequestState
    draft: DeviceDraft | HostDraft | None
    draws: dict


@dataclass(frozen=True, slots=True)
class Leaf:
    """One outcome of one round of a world: its parts, None for requests that have ended."""

    world: int
    weight: float
    parts: tuple[Part | None, ...]
    tokens: tuple[tuple[int, ...], ...]


class RoundLaw:
    """The joint law of the outputs of worlds of clients after some rounds, and the serial one.

    A world is one client or several whose joint law is asked for. `at` says where in its interval
    each draw lies. `logits` are (target, draft) tables of raw rows that all clients share; prompts
    tell clients apart. Every outcome runs in each of `layouts`, whose successors are compared.
    """

    def __init__(
        self, worlds, logits, vocabulary, *, rounds=2, at=0.5, layouts=(REPLAY,), law=softmax
    ):
        self._worlds = [w if isinstance(w, tuple) else (w,) for w in worlds]
        self._logits = logits
        self._vocabulary = vocabulary
        self._rounds = rounds
        self._at = at
        self._layouts = layouts
        self._law = law
        everyone = [client for world in self._worlds for client in world]
        self._width = max(len(c.asked.prompt) + c.asked.stop.max_tokens for c in everyone) + 4
        self.groups = 0
        self.outputs = 0
        self.differing = []
        self.misplaced = []

    def found(self):
        """Probability of each joint output of each world: a list of dicts."""
        live = {
            (w, tuple(c.asked.prompt for c in world)): (1.0, tuple(map(_opened, world)))
            for w, world in enumerate(self._worlds)
        }
        ended = [defaultdict(float) for _ in self._worlds]
        for number in range(1, self._rounds + 1):
            leaves = [leaf for name, past in live.items() for leaf in self._leaves(*name, *past)]
            live = {}
            for leaf, states in zip(leaves, self._run(number, leaves), strict=True):
                tokens = tuple(
                    before if state is None else state.tokens[:]
                    for before, state in zip(leaf.tokens, states, strict=True)
                )
                if all(c.ended(t) for c, t in zip(self._worlds[leaf.world], tokens, strict=True)):
                    ended[leaf.world][tokens] += leaf.weight
                else:
                    before = live.get((leaf.world, tokens), (0.0, None))[0]
                    live[leaf.world, tokens] = (before + leaf.weight, states)
        return self._whole(ended, live)

    def expected(self):
        """The serial law of each world: the product of its clients' own."""
        prompts = [tuple(client.asked.prompt for client in world) for world in self._worlds]
        return [dict(self._completed(w, tokens)) for w, tokens in enumerate(prompts)]

    def deviation(self):
        """Largest difference of any joint output's probability; infinite where the layouts'
        successors differ, or the target computed another number of rows than a layout says."""
        worst = 0.0
        for found, wanted in zip(self.found(), self.expected(), strict=True):
            names = found.keys() | wanted.keys()
            self.outputs += len(names)
            gaps = [abs(found.get(name, 0.0) - wanted.get(name, 0.0)) for name in names]
            worst = max(worst, *gaps)
        return float("inf") if self.differing or self.misplaced else worst

    def _whole(self, ended, live):
        """All laws, completed by target transitions."""
        for (w, tokens), (weight, _) in live.items():
            for whole, chance in self._completed(w, tokens):
                ended[w][whole] += weight * chance
        return ended

    def _completed(self, w, tokens):
        parts = [c.completed(own) for c, own in zip(self._worlds[w], tokens, strict=True)]
        for whole in product(*parts):
            chance = 1.0
            for _, each in whole:
                chance *= each
            yield tuple(own for own, _ in whole), chance

    def _leaves(self, w, tokens, weight, states):
        choices = []
        for client, own, state in zip(self._worlds[w], tokens, states, strict=True):
            if client.ended(own):
                choices.append([(1.0, None)])
                continue
            draft = drafted(client, own)
            group = _group(client.asked, state, draft, rows=len(own), emits=True)
            choices.append(
                [
                    (share, Part(client, state, draft, draws))
                    for share, draws in outcomes(client, own, group, self._at)
                ]
            )
        for joint in product(*choices):
            total = weight
            for share, _ in joint:
                total *= share
            yield Leaf(w, total, tuple(part for _, part in joint), tokens)

    def _run(self, number, leaves):
        """Each leaf's states after the round (None for a request that had ended before)."""
        names = [
            (n, r) for n, leaf in enumerate(leaves) for r, part in enumerate(leaf.parts) if part
        ]
        self.groups += len(names)
        parts = [leaves[n].parts[r] for n, r in names]
        requests = [
            _request(part, place, name)
            for place, (name, part) in enumerate(zip(names, parts, strict=True))
        ]
        after = []
        for layout in self._layouts:
            executor, target = self._executor(names, parts)
            run = _LayoutRun(executor, number, layout, requests, parts)
            after.append(run.states())
            # No rows, no call.
            if target.calls[run.before_verifying :] != [run.verifying_rows][: run.verifying_rows]:
                self.misplaced.append((layout, target.calls, run.verifying_rows))
        for found in after[1:]:
            self.differing += [
                (one, other)
                for one, other in zip(after[0], found, strict=True)
                if replace(other, generation=other.generation - 1) != one
            ]
        states = dict(zip(names, map(preempted, after[0]), strict=True))
        return [
            tuple(states.get((n, r)) for r in range(len(leaf.parts)))
            for n, leaf in enumerate(leaves)
        ]

    def _executor(self, names, parts):
        """A new executor that knows the draws of all `parts`, and its target."""
        randomness = Fixed()
        for (n, r), part in zip(names, parts, strict=True):
            length = len(part.state.tokens)
            for name, value in part.draws.items():
                randomness.values[draw_key(n, r, length, name)] = value
        target, draft = (
            TabularForward(table, self._vocabulary, len(parts), self._width, dtype=torch.float64)
            for table in self._logits
        )
        executor = RoundExecutor(
            target=TimedForward(target, time.perf_counter),
            draft=TimedForward(draft, time.perf_counter),
            vocabulary=self._vocabulary,
            randomness=randomness,
            clock=time.perf_counter,
            law=self._law,
        )
        return executor, target


class _LayoutRun:
    """One round of all leaves in one layout, from no K/V rows at all.

    Every second leaf computes the rows before its frontier in a round of their own, as after a
    chunked prefill. In the retained layout a round appends the frontier before the one that
    verifies.
    """

    def __init__(self, executor, number, layout, requests, parts):
        self._executor = executor
        self._number = number
        self._layout = layout
        self._parts = parts
        self._calls = 0
        self._ledger = Ledger()
        self._requests = requests
        for place, part in enumerate(parts):
            self._ledger.open(place, part.state)
        self.before_verifying = 0
        self.verifying_rows = 0

    def states(self):
        """The state of every leaf after its verification."""
        everyone = range(len(self._parts))
        lengths = [len(part.state.tokens) for part in self._parts]
        chunked = [place for place in everyone if place % 2 and lengths[place] > 1]
        self._publish([(place, lengths[place] - 1) for place in chunked], emits=False)
        if self._layout is RETAINED:
            rest = [(p, lengths[p] - self._ledger.state(p).kv_rows) for p in everyone]
            self._publish(rest, emits=False)
        rest = [(p, lengths[p] - self._ledger.state(p).kv_rows) for p in everyone]
        self.before_verifying = self._calls
        run = self._publish(rest, emits=True)
        self.verifying_rows = sum(group.rows + _verified(group, each) for group, each in run)
        return [self._ledger.state(place) for place in everyone]

    def _publish(self, rows, *, emits):
        """Run one plan of (leaf, target rows) and publish all of it."""
        if not rows:
            return []
        self._calls += 1
        groups = []
        for place, count in rows:
            draft = self._parts[place].draft if emits else None
            state = self._ledger.state(place)
            groups.append(_group(self._requests[place], state, draft, rows=count, emits=emits))
        held = {p for p in range(len(self._parts)) if self._ledger.state(p).retained}
        plan = RoundPlan(
            round_id=self._number,
            layout=self._layout,
            groups=tuple(groups),
            coordinate=Coordinate(manifest="{}", digest="d"),
            held=frozenset(held),
        )
        self._number += 1
        result = self._executor.run(plan)
        for group, each in zip(groups, result.groups, strict=True):
            before = self._ledger.state(group.request)
            asked = self._requests[group.request]
            staged = stage((plan.round_id, self._layout, "d"), group, before, asked, each)
            if self._ledger.publish(staged) is not CommitOutcome.PUBLISHED:
                raise RuntimeError("a leaf was not published")
        return list(zip(groups, result.groups, strict=True))


def _verified(group, result):
    """Drafts that have a target row: all that were planned, or those before an unsure one."""
    confident = isinstance(group.draft, DeviceDraft) and group.draft.min_confidence > 0
    return len(result.outcomes) if confident else planned_depth(group)


def _request(part, place, name):
    """The request of one outcome: a seed and a choice that no other has."""
    asked = part.client.asked
    seed, choice = name
    sampling = replace(asked.sampling, seed=seed)
    return replace(asked, request_id=place, choice=choice, sampling=sampling)


def _opened(client):
    rng = RngState(seed=0, choice=0)
    return initial_state(client.asked.prompt, rng, client.asked.text.start())


def _group(asked, state, draft, *, rows, emits):
    """The next `rows` target rows of a state; its blocks have the request's own number."""
    n = asked.request_id
    return Group(
        request=n,
        generation=state.generation,
        tokens=state.tokens,
        prompt_length=state.prompt_length,
        start=state.kv_rows,
        rows=rows,
        emits=emits,
        retains=not emits and state.kv_rows + rows == len(state.tokens),
        max_emit=asked.stop.max_tokens - state.emitted,
        draft=draft,
        blocks={Role.TARGET: (n,), Role.DRAFT: (n,)},
        sampling=asked.sampling,
        verifier=asked.speculation.verifier,
        stop=asked.stop,
        choice=asked.choice,
    )
