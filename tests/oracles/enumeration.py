"""Exact joint law of speculative rounds, enumerated through the product's own functions.

Randomness is a field over `DrawKey`. A key that has been looked at carries an interval of [0, 1):
the part of its law that led to this branch. Where a decision changes inside the interval the
branch splits, with the exact widths as weights, and the product gets one value of the interval:
its middle, where only decisions show, or one next to an end, where the product's own break points
do. A key that is looked at again in a later round thus keeps its conditional law, and a draw that
is used twice shows as an error of the output law. The break points come from `rules`, which is
independent of the product; what is decided comes from the product.
"""

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import torch

from scheduler.sampling.draw import inverse_cdf
from scheduler.sampling.rng import DrawKey
from scheduler.sampling.verify import DraftBatch
from tests.oracles.rules import accepted_length, bounds, terminal_row
from tests.oracles.scenario import Drawn, Scenario, Tokens, Trace


class Branch(NamedTuple):
    """One class of outcomes: `weight` its probability, the rest what has happened in it."""

    weight: float
    tokens: tuple[Tokens, ...]
    traces: tuple[Trace, ...]
    field: dict[DrawKey, tuple[float, float]]
    lengths: Tokens = ()
    drafts: tuple[Tokens, ...] = ()

    def value(self, key, at):
        """What the product gets for `key`: a value `at` that part of what is still possible."""
        low, high = self.field.get(key, (0.0, 1.0))
        return low + at * (high - low)

    def split(self, key, cuts):
        """This branch, divided at the ascending `cuts` of the law of `key`."""
        low, high = self.field.get(key, (0.0, 1.0))
        edges = [low, *(cut for cut in cuts if low < cut < high), high]
        return [
            self._replace(
                weight=self.weight * (b - a) / (high - low), field={**self.field, key: (a, b)}
            )
            for a, b in pairwise(edges)
            if a < b
        ]


class Laws:
    """What the definitions say of a scenario's rows, cached."""

    def __init__(self, setting: Scenario):
        self._cases = setting.cases
        self._rule = setting.rule
        self._horizon = setting.horizon
        self._limits = {}
        self._terminals = {}
        self._finals = {}

    def _rows(self, r, tokens, drafts):
        case = self._cases[r]
        runs = [tokens + drafts[:i] for i in range(len(drafts) + 1)]
        p = [case.target.expected(run) for run in runs]
        return p, [case.draft.expected(run) for run in runs[:-1]]

    def limits(self, r, tokens, drafts):
        """Acceptance bounds of request `r`'s drafts."""
        name = (r, tokens, drafts)
        if name not in self._limits:
            self._limits[name] = bounds(self._rule, *self._rows(*name), drafts)
        return self._limits[name]

    def terminal(self, r, tokens, drafts, accepted):
        """Law of request `r`'s token after `accepted` drafts."""
        name = (r, tokens, drafts, accepted)
        if name not in self._terminals:
            p, q = self._rows(r, tokens, drafts)
            self._terminals[name] = terminal_row(self._rule, p, q, drafts, accepted)
        return self._terminals[name]

    def done(self, r, tokens):
        """Whether request `r` ends with `tokens`."""
        case = self._cases[r]
        output = len(tokens) - len(case.prompt)
        return output >= self._horizon or (output > 0 and tokens[-1] in case.stop)

    def completed(self, joint):
        """Every joint continuation of `joint` by target transitions, with its probability."""
        singles = [self._final(r, tokens) for r, tokens in enumerate(joint)]
        return [
            (tuple(tokens for tokens, _ in parts), np.prod([chance for _, chance in parts]))
            for parts in product(*singles)
        ]

    def _final(self, r, tokens):
        if (r, tokens) not in self._finals:
            found = [(tokens, 1.0)]
            if not self.done(r, tokens):
                row = self._cases[r].target.expected(tokens)
                found = [
                    (rest, row[v] * chance)
                    for v in range(len(row))
                    for rest, chance in self._final(r, (*tokens, v))
                ]
            self._finals[r, tokens] = found
        return self._finals[r, tokens]


class Enumeration:
    """All branches of a scenario, round by round."""

    def __init__(self, setting: Scenario):
        self._s = setting
        self._at = setting.at
        self._cases = setting.cases
        names = {(case.seed, case.choice) for case in setting.cases}
        if len(names) < len(setting.cases):
            raise ValueError("two requests share a seed and a choice")
        self._made = {}
        self._laws = Laws(setting)

    def branches(self):
        """Everything that can have happened after all rounds."""
        start = tuple(case.prompt for case in self._cases)
        branches = [Branch(1.0, start, tuple(() for _ in start), {})]
        for _ in range(self._s.rounds):
            branches = self._round(branches)
        return branches

    def law(self):
        """Probability of every joint output, after all rounds and completion."""
        found = defaultdict(float)
        for branch in self.branches():
            for joint, chance in self._laws.completed(branch.tokens):
                found[joint] += branch.weight * chance
        return dict(found)

    def expected(self):
        """The serial law: the product of target rows."""
        return dict(self._laws.completed(tuple(case.prompt for case in self._cases)))

    def _round(self, branches):
        branches = [piece for branch in branches for piece in self._planned(branch)]
        deepest = max((max(branch.lengths) for branch in branches), default=0)
        for place in range(deepest):
            for r in range(len(self._cases)):
                branches = self._drafted(branches, r, place)
        branches = [self._trimmed(branch) for branch in branches]
        for r in range(len(self._cases)):
            branches = [piece for branch in branches for piece in self._tested(branch, r)]
        return self._merged(self._decided(branches))

    def _planned(self, branch):
        """The branch with a length for every request; split where a coin chooses it."""
        empty = tuple(() for _ in self._cases)
        pieces = [branch._replace(lengths=(), drafts=empty)]
        for r in range(len(self._cases)):
            pieces = [
                piece._replace(lengths=(*piece.lengths, k))
                for whole in pieces
                for piece, k in self._lengths(whole, r)
            ]
        return pieces

    def _lengths(self, branch, r):
        policy, tokens = self._s.policy, branch.tokens[r]
        if self._laws.done(r, tokens):
            return [(branch, 0)]
        if policy.coin is None:
            return [(branch, policy.length(r, tokens, branch.traces[r]))]
        row = policy.coin(r, tokens, branch.traces[r])
        key = self._tossed(r, len(tokens))
        pieces = branch.split(key, np.cumsum(row)[:-1])
        values = torch.tensor([piece.value(key, self._at) for piece in pieces])
        ids = inverse_cdf(torch.from_numpy(row).expand(len(pieces), -1), values.double())
        return list(zip(pieces, ids.tolist(), strict=True))

    def _tossed(self, r, length):
        """The key of a policy's coin."""
        case = self._cases[r]
        stream = self._s.policy.tossed
        return DrawKey(seed=case.seed, choice=case.choice, stream=stream, position=length, offset=0)

    def _drafted(self, branches, r, place):
        draft = self._cases[r].draft
        rest, pieces = [], []
        for branch in branches:
            row = None
            if place < branch.lengths[r] and len(branch.drafts[r]) == place:
                row = draft.expected(branch.tokens[r] + branch.drafts[r])
            if row is None or not self._s.policy.goes_on(row):
                rest.append(branch)
                continue
            key = self._proposal_key(branch, r, place)
            pieces.extend((piece, key) for piece in branch.split(key, np.cumsum(row)[:-1]))
        if not pieces:
            return rest
        rows = draft.rows([piece.tokens[r] + piece.drafts[r] for piece, _ in pieces])
        values = [piece.value(key, self._at) for piece, key in pieces]
        ids = self._draw(rows, torch.tensor(values, dtype=torch.float64)).tolist()
        return rest + [_drew(piece, r, d) for (piece, _), d in zip(pieces, ids, strict=True)]

    def _proposal_key(self, branch, r, place):
        return self._keys(branch, r, branch.lengths[r])[0][place]

    def _draw(self, rows, values):
        return inverse_cdf(rows, values)

    def _trimmed(self, branch):
        seen = []
        for case, tokens, drafts in zip(self._cases, branch.tokens, branch.drafts, strict=True):
            rows = [case.draft.expected(tokens + drafts[:i]) for i in range(len(drafts))]
            seen.append([Drawn(token=d, row=row) for d, row in zip(drafts, rows, strict=True)])
        kept = self._s.policy.trim(seen)
        drafts = tuple(d[:k] for d, k in zip(branch.drafts, kept, strict=True))
        return branch._replace(drafts=drafts)

    def _tested(self, branch, r):
        """Split on every acceptance test of request `r`, then on its terminal draw."""
        if self._laws.done(r, branch.tokens[r]):
            return [branch]
        drafts = branch.drafts[r]
        _, tests, last = self._keys(branch, r, len(drafts))
        limits = self._laws.limits(r, branch.tokens[r], drafts)
        found = []
        for piece in self._split_tests(branch, tests, limits):
            uniforms = [piece.value(key, self._at) for key in tests]
            accepted = accepted_length(self._s.rule, limits, uniforms)
            row = self._laws.terminal(r, branch.tokens[r], drafts, accepted)
            found.extend(piece.split(last, np.cumsum(row)[:-1]))
        return found

    def _split_tests(self, branch, keys, limits):
        pieces, ended = [branch], []
        for key, limit in zip(keys, limits, strict=True):
            parts = [part for piece in pieces for part in piece.split(key, (limit,))]
            pieces = [part for part in parts if part.value(key, self._at) < limit]
            failed = [part for part in parts if part.value(key, self._at) >= limit]
            if self._s.rule == "token":
                # Nothing looks at the tests after the first that fails.
                ended += failed
            else:
                pieces += failed
        return pieces + ended

    def _decided(self, branches):
        """One verification by the product for all branches and requests."""
        work = [
            (i, r)
            for i, branch in enumerate(branches)
            for r, tokens in enumerate(branch.tokens)
            if not self._laws.done(r, tokens)
        ]
        if not work:
            return branches
        verdict = self._verdict([(branches[i], r) for i, r in work])
        after = list(branches)
        for (i, r), accepted, token in zip(
            work, verdict.accepted.tolist(), verdict.terminal.tolist(), strict=True
        ):
            after[i] = self._committed(after[i], r, accepted, token)
        return after

    def _verdict(self, work):
        batch, p, q = self._batch(work)
        return self._s.verify(batch, p, q, *self._uniforms(work))

    def _uniforms(self, work):
        """Values of all acceptance tests, padded, and of the terminal draws."""
        tests, last = [], []
        for branch, r in work:
            _, test_keys, last_key = self._keys(branch, r, len(branch.drafts[r]))
            tests.append([branch.value(key, self._at) for key in test_keys])
            last.append(branch.value(last_key, self._at))
        return padded(tests, torch.float64), torch.tensor(last, dtype=torch.float64)

    def _batch(self, work):
        """Ragged batch; branches that agree on tokens and drafts point at the same rows."""
        prefixes = [([], []) for _ in self._cases]
        places = {}
        for branch, r in work:
            tokens, drafts = branch.tokens[r], branch.drafts[r]
            if (r, tokens, drafts) not in places:
                on_target, on_draft = prefixes[r]
                places[r, tokens, drafts] = (len(on_target), len(on_draft))
                runs = [tokens + drafts[:i] for i in range(len(drafts) + 1)]
                on_target.extend(runs)
                on_draft.extend(runs[:-1])
        p = [case.target.rows(t) for case, (t, _) in zip(self._cases, prefixes, strict=True) if t]
        q = [
            (case.claimed or case.draft).rows(d)
            for case, (_, d) in zip(self._cases, prefixes, strict=True)
            if d
        ]
        starts = np.cumsum([(0, 0), *((len(t), len(d)) for t, d in prefixes)], axis=0)
        rows = [starts[r] + places[r, b.tokens[r], b.drafts[r]] for b, r in work]
        k = [len(branch.drafts[r]) for branch, r in work]
        batch = DraftBatch(
            drafts=padded([branch.drafts[r] for branch, r in work], torch.int64),
            k=torch.tensor(k),
            target_row=torch.tensor([int(t) for t, _ in rows]),
            draft_row=torch.tensor([int(d) for _, d in rows]),
        )
        p = torch.cat(p)
        return batch, p, torch.cat(q) if q else p.new_zeros(0, p.shape[1])

    def _committed(self, branch, r, accepted, token):
        """The branch after request `r` took its run, cut at the first stop and at the horizon."""
        tokens = branch.tokens[r]
        for new in (*branch.drafts[r][:accepted], token):
            if self._laws.done(r, tokens):
                break
            tokens += (new,)
        memory = self._s.policy.memory
        trace = (*branch.traces[r], (len(branch.drafts[r]), accepted))
        trace = trace[-memory:] if memory else ()
        return branch._replace(
            tokens=_replaced(branch.tokens, r, tokens), traces=_replaced(branch.traces, r, trace)
        )

    def _merged(self, branches):
        merged = {}
        for branch in branches:
            known = self._remembered(branch)
            name = (branch.tokens, branch.traces, tuple(known.items()))
            weight = merged[name].weight if name in merged else 0.0
            merged[name] = Branch(weight + branch.weight, branch.tokens, branch.traces, known)
        return list(merged.values())

    def _remembered(self, branch):
        return {} if self._s.forget else branch.field

    def _keys(self, branch, r, k):
        case, length = self._cases[r], len(branch.tokens[r])
        if (r, length, k) not in self._made:
            proposal, tests, last = self._s.keys(case.seed, case.choice, length, k)
            if self._s.forget and any(key.position != length for key in (*proposal, *tests, last)):
                raise ValueError("forgetting is sound only for keys of the current T")
            self._made[r, length, k] = (proposal, tests, last)
        return self._made[r, length, k]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """How far an enumerated law is from the serial one."""

    largest: float
    total_variation: float
    outputs: int


def deviation(setting, enumerated=Enumeration):
    """Compare the law of `setting` with the serial law."""
    enumeration = enumerated(setting)
    found, expected = enumeration.law(), enumeration.expected()
    gaps = [abs(found.get(x, 0.0) - expected.get(x, 0.0)) for x in found.keys() | expected.keys()]
    return Deviation(largest=max(gaps), total_variation=sum(gaps) / 2, outputs=len(gaps))


def _drew(branch, r, token):
    return branch._replace(drafts=_replaced(branch.drafts, r, (*branch.drafts[r], token)))


def padded(runs, dtype):
    """Runs of different lengths as one tensor, with 0 past their ends."""
    longest = max(len(run) for run in runs)
    rows = [[*run, *[0] * (longest - len(run))] for run in runs]
    return torch.tensor(rows, dtype=dtype).reshape(len(runs), longest)


def _replaced(parts, r, value):
    return (*parts[:r], value, *parts[r + 1 :])
