"""Exact laws of two requests with one seed that live together in one engine.

They meet the same draws, at the same lengths, in the same round or in different ones. So a life
carries each draw that was looked at, for whoever looks again. The rows of both are the same at
every prefix: then each draw falls into one of few cells, within which nothing depends on it.
"""

from collections import defaultdict
from itertools import pairwise, product

import numpy as np

from scheduler.runtime.draws import planned_depth
from scheduler.sampling.rng import Stream
from tests.oracles.leaves import client
from tests.oracles.lives import Life, LifeLaw
from tests.oracles.rows import constant_logits
from tests.oracles.rules import bounds, terminal_row


class TwinLaw(LifeLaw):
    """The law of each of some requests that share their draws: `p` of the target and `q` of the
    draft at every prefix, drafts up to `depth`. Clients are options of `leaves.client`."""

    def __init__(self, clients, p, q, controller, *, rule, depth, **options):
        logits = (constant_logits(*p), constant_logits(*q))
        made = [client(rule, logits, **each) for each in clients]
        super().__init__(made, logits, len(p), controller, **options)
        self.choices = (0,) * len(made)
        self._cells = _cells(rule.value, np.array(p), np.array(q), depth)

    def deviations(self):
        """For each request the largest difference of any output's probability from the serial
        law. Raises RuntimeError where lives are left: what completes them is not independent."""
        found = self.found()
        return [self._deviation(found, r) for r in range(len(self._clients))]

    def _deviation(self, found, r):
        law = defaultdict(float)
        for joint, chance in found.items():
            law[joint[r]] += chance
        own = self._clients[r]
        wanted = dict(own.completed(own.asked.prompt))
        return max(abs(law[name] - wanted.get(name, 0.0)) for name in law.keys() | wanted.keys())

    def _completed(self, joint):
        if not all(c.ended(own) for c, own in zip(self._clients, joint, strict=True)):
            raise RuntimeError("lives are left after the last round")
        return super()._completed(joint)

    def _place(self, life, position):
        """With the draws that somebody may yet look at."""
        least = min(map(len, position.tokens))
        kept = [draw for draw in life.draws if draw[0][1] >= least]
        return frozenset(kept), super()._place(life, position)

    def _split(self, position, life):
        seen, names = dict(life.draws), {}
        for tokens, group in zip(position.tokens, position.groups, strict=True):
            if group is not None and group.emits:
                depth = planned_depth(group)
                self.depths.add(depth)
                streams = product((Stream.PROPOSAL, Stream.ACCEPTANCE), range(depth))
                for name in (*streams, (Stream.TERMINAL, 0)):
                    names[0, len(tokens), name] = None
        fresh = [name for name in names if name not in seen]
        for cells in product(*(self._cells[name[2][0]] for name in fresh)):
            weight, draws = life.weight, life.draws
            for name, (low, high) in zip(fresh, cells, strict=True):
                weight *= high - low
                draws += ((name, low + self._at * (high - low)),)
            yield Life(weight, draws)


def _cells(rule, p, q, depth):
    """By stream the parts of [0, 1) within which a draw decides the same, whatever was drafted."""
    tests, terminals = set(), set(np.cumsum(p))
    for length in range(1, depth + 1):
        for drafts in product(np.flatnonzero(q).tolist(), repeat=length):
            rows = [p] * (length + 1), [q] * length
            tests |= set(bounds(rule, *rows, drafts))
            for accepted in range(length + 1):
                terminals |= set(np.cumsum(terminal_row(rule, *rows, drafts, accepted)))
    return {
        Stream.PROPOSAL: _between(np.cumsum(q)),
        Stream.ACCEPTANCE: _between(tests),
        Stream.TERMINAL: _between(terminals),
    }


def _between(edges):
    inner = sorted({round(float(edge), 12) for edge in edges} - {0.0, 1.0})
    return list(pairwise([0.0, *inner, 1.0]))
