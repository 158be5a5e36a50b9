"""Exact law of whole lives: scheduler, controller, runner, landing and ledger over every draw.

Lives are enumerated by playing them again: a game runs all known lives, each a set of requests of
its own, for some rounds, and asks the scheduler for its next plan. Each life then splits into all
outcomes of that round, and a new game, one round longer, plays those. K is what the product's plan
says, from whatever its controller has learned.
"""

import time
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import product

import torch

from scheduler.config import PoolConfig
from scheduler.plan import Group, Layout
from scheduler.runtime.draws import planned_depth
from scheduler.runtime.torch_runner import Pair, TorchRunner
from scheduler.sampling.processors import law as softmax
from scheduler.stats import CommitOutcome, without_evidence
from tests.oracles.leaves import Fixed, draw_key, outcomes
from tests.oracles.rig import Rig, capabilities, config
from tests.oracles.tabular import TabularForward
from tests.telemetry.rounds import step

_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Life:
    """One way that things went so far: its probability and the draws that lead there, each
    (choice index, T of its round, its name within the round) and a value."""

    weight: float
    draws: tuple


@dataclass(frozen=True, slots=True)
class Position:
    """Where a life stands: for each request its tokens, the last (k, accepted) that it had, and
    its share of the coming round; and what else its policy knows."""

    tokens: tuple[tuple[int, ...], ...]
    traces: tuple[tuple[tuple[int, int], ...], ...]
    groups: tuple[Group | None, ...]
    known: object


class LifeLaw:
    """The joint law of clients that live together in one engine, and the serial one.

    Lives of a game share rounds; `controller()` makes the policy, to which request i of life n is
    number n * (clients) + i. It may look back at the last `memory` rounds of a life, and at what
    `known(policy, n)` says of life n. `runner` may wrap the product's runner.
    """

    def __init__(
        self,
        clients,
        logits,
        vocabulary,
        controller,
        *,
        rounds,
        at=0.5,
        layout=Layout.REPLAY_FRONTIER,
        law=softmax,
        memory=1,
        known=lambda policy, life: None,
        k_max=8,
        runner=lambda real: real,
    ):
        self._clients = clients
        self._logits = logits
        self._vocabulary = vocabulary
        self._controller = controller
        self._rounds = rounds
        self._at = at
        self._layout = layout
        self._law = law
        self._memory = memory
        self._known = known
        self._k_max = k_max
        self._runner = runner
        self.lives = 0
        self.outputs = 0
        self.depths = set()
        self.choices = tuple(range(len(clients)))

    def found(self):
        """Probability of each joint output."""
        lives = [Life(1.0, ())]
        ended = defaultdict(float)
        for number in range(self._rounds + 1):
            places = _Game(self, lives).positions(number)
            lives = self._onward(self._merged(lives, places), ended, last=number == self._rounds)
        return ended

    def expected(self):
        """The serial law: the product of the clients' own."""
        return dict(self._completed(tuple(client.asked.prompt for client in self._clients)))

    def deviation(self):
        """Largest difference of any joint output's probability."""
        found, wanted = self.found(), self.expected()
        names = found.keys() | wanted.keys()
        self.outputs = len(names)
        return max(abs(found.get(name, 0.0) - wanted.get(name, 0.0)) for name in names)

    def _onward(self, merged, ended, *, last):
        """Every life after one more round; those that are over go into `ended`."""
        lives = []
        for position, life in merged:
            over = all(c.ended(t) for c, t in zip(self._clients, position.tokens, strict=True))
            if over or last:
                for whole, chance in self._completed(position.tokens):
                    ended[whole] += life.weight * chance
            else:
                lives += self._split(position, life)
        self.lives += len(lives)
        return lives

    def _split(self, position, life):
        choices = []
        for client, tokens, group in zip(
            self._clients, position.tokens, position.groups, strict=True
        ):
            draws = [(1.0, {})]
            if group is not None and group.emits:
                draws = list(outcomes(client, tokens, group, self._at))
                self.depths.add(planned_depth(group))
            choices.append(draws)
        for joint in product(*choices):
            weight, draws = life.weight, life.draws
            for r, (share, values) in enumerate(joint):
                weight *= share
                length = len(position.tokens[r])
                choice = self.choices[r]
                draws += tuple(((choice, length, name), value) for name, value in values.items())
            yield Life(weight, draws)

    def _merged(self, lives, positions):
        """Pairs (position, life): lives that stand at one place are one, with all their
        probability."""
        found = {}
        for life, position in zip(lives, positions, strict=True):
            name = self._place(life, position)
            first, kept = found.get(name, (position, replace(life, weight=0.0)))
            found[name] = (first, replace(kept, weight=kept.weight + life.weight))
        return list(found.values())

    def _place(self, _life, position):
        """All that the rest of a life depends on."""
        shares = tuple(group and (group.emits, group.draft) for group in position.groups)
        return position.tokens, position.traces, position.known, shares

    def _completed(self, joint):
        parts = [c.completed(own) for c, own in zip(self._clients, joint, strict=True)]
        for whole in product(*parts):
            chance = 1.0
            for _, each in whole:
                chance *= each
            yield tuple(own for own, _ in whole), chance


class _Game:
    """One engine in which all lives run, round by round."""

    def __init__(self, law, lives):
        self._law = law
        self._count = len(law._clients)
        self._lives = lives
        self._traces = defaultdict(tuple)
        self._tokens = {}
        requests = [
            replace(
                client.asked,
                request_id=n * self._count + r,
                choice=law.choices[r],
                arrival=float(n * self._count + r),
                sampling=replace(client.asked.sampling, seed=n),
            )
            for n in range(len(lives))
            for r, client in enumerate(law._clients)
        ]
        self._policy = law._controller()
        self._rig = self._engine(len(requests))
        self._rig.submit(*requests)
        self._prompts = {each.request_id: each.prompt for each in requests}

    def positions(self, rounds):
        """Where every life stands after `rounds` rounds."""
        for number in range(rounds):
            self._step(number)
        work = self._rig.plan()
        groups = {} if work is None else {group.request: group for group in work[0].groups}
        return [self._position(n, groups) for n in range(len(self._lives))]

    def _position(self, n, groups):
        ids = range(n * self._count, (n + 1) * self._count)
        outputs = [self._rig.outputs[each].tokens for each in ids]
        return Position(
            tokens=tuple(
                (*self._prompts[each], *own) for each, own in zip(ids, outputs, strict=True)
            ),
            traces=tuple(self._traces[each] for each in ids),
            groups=tuple(groups.get(each) for each in ids),
            known=self._law._known(self._policy, n),
        )

    def _step(self, number):
        """One round, and all its retries if it breaks."""
        waiting = self._play(number)
        while waiting:
            waiting = (waiting | self._play(number)) & self._rig.book.entries.keys()
            waiting = {each for each in waiting if self._rig.book.entries[each].retry is not None}

    def _play(self, number):
        """Requests of one planned round that were not published."""
        landed = self._rig.step()
        if landed is None:
            return set()
        self._policy.learn(self._stats(number, landed))
        memory = self._law._memory
        for each in landed.groups:
            if each.speculation is not None and memory:
                seen = (each.speculation.k, each.speculation.accepted)
                self._traces[each.request] = (*self._traces[each.request], seen)[-memory:]
        return {each.request for each in landed.groups if each.outcome is CommitOutcome.ABORTED}

    def _stats(self, number, landed):
        """What the engine would tell the controller."""
        told = {"round_id": number, "finished": landed.finished, "load": self._rig.book.load()}
        return without_evidence(step(*landed.groups, **told))

    def _engine(self, count):
        law = self._law
        pool = PoolConfig(blocks=count, block_size=_BLOCK)
        settings = config(
            max_model_len=_BLOCK,
            draft_max_len=_BLOCK,
            max_batched_tokens=_BLOCK * count,
            max_requests=count,
            target_pool=pool,
            draft_pool=pool,
            layout=law._layout,
            k=0,
            k_max=law._k_max,
        )
        target, draft = (
            TabularForward(table, law._vocabulary, count, _BLOCK, dtype=torch.float64)
            for table in law._logits
        )
        real = TorchRunner(
            Pair(target=target, draft=draft, vocabulary=law._vocabulary),
            capabilities(vocabulary=law._vocabulary),
            self._field(),
            time.perf_counter,
            law._law,
        )
        return Rig(settings, controller=self._policy, runner=law._runner(real))

    def _field(self):
        """All lives' draws. What a later round names anew takes the place of what an earlier one
        could not depend on."""
        field = Fixed()
        for n, life in enumerate(self._lives):
            for (choice, length, name), value in life.draws:
                field.values[draw_key(n, choice, length, name)] = value
        return field
