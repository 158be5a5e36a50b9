"""Exact law of whole rounds: executor, staging and ledger over every outcome of every draw.

Each possible outcome of a round is one group of one packed plan, with a seed of its own, and its
draws lie in the intervals that lead there. So every outcome runs beside all
others, of both requests, and any leak between groups shows as an error of the law. The intervals
come from NumPy formulas; what is decided comes from the product. A draw that is not keyed by the
published length of its own round is refused.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from scheduler.commit import Ledger, stage
from scheduler.plan import DeviceDraft, Group, HostDraft, Layout, Role, RoundPlan
from scheduler.request import Request
from scheduler.runtime.round import RoundExecutor
from scheduler.runtime.timed import TimedForward
from scheduler.sampling.rng import DrawKey, Stream
from scheduler.state import RequestState, RngState, initial_state, preempted
from scheduler.stats import CommitOutcome
from tests.oracles.enumeration import accepted_length, bounds, terminal_row
from tests.oracles.rows import Table
from tests.oracles.tabular import TabularForward


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One request with its oracle's laws, and the raw logits that both models give.

    `length(tokens)` is the K that history asks for; `host(tokens)` gives drafts known beforehand.
    """

    asked: Request
    target: Table
    draft: Table
    length: Callable[[tuple[int, ...]], int]
    host: Callable[[tuple[int, ...]], tuple[int, ...]] | None = None

    @property
    def rule(self):
        return self.asked.speculation.verifier.value


@dataclass(frozen=True, slots=True)
class Leaf:
    """One outcome of one round: its probability and the draws that lead to it."""

    client: Client
    state: RequestState
    draft: DeviceDraft | HostDraft | None
    weight: float
    draws: dict


class Fixed:
    """Randomness that knows only the draws that were planned."""

    def __init__(self):
        self.values = {}

    def uniforms(self, keys):
        return torch.tensor([self.values[key] for key in keys], dtype=torch.float64)

    def gumbel(self, keys, vocabulary, device):
        raise LookupError("no noise is planned")


class RoundLaw:
    """The law of the outputs of some clients after a number of rounds, and the serial one.

    `at` says where in its interval each draw lies: near 0 and near 1 the product's own break
    points show, in between only its decisions.

    `logits` are (target, draft) tables of raw rows that all clients share; prompts tell clients
    apart.
    """

    def __init__(self, clients, logits, vocabulary, *, rounds=2, at=0.5):
        self._clients = clients
        self._logits = logits
        self._vocabulary = vocabulary
        self._rounds = rounds
        self._at = at
        self._randomness = Fixed()
        self._width = max(len(c.asked.prompt) + c.asked.stop.max_tokens for c in clients) + 4
        self.groups = 0

    def found(self):
        """Probability of each output of each client: a list of dicts."""
        laws = [defaultdict(float) for _ in self._clients]
        live = {(i, c.asked.prompt): (1.0, _opened(c)) for i, c in enumerate(self._clients)}
        for number in range(1, self._rounds + 1):
            leaves = [
                (i, leaf)
                for (i, _), (weight, state) in live.items()
                for leaf in self._leaves(self._clients[i], state, weight)
            ]
            live = {}
            for (i, leaf), (state, ended) in zip(leaves, self._run(number, leaves), strict=True):
                if ended:
                    laws[i][state.tokens] += leaf.weight
                else:
                    before = live.get((i, state.tokens), (0.0, None))[0]
                    live[i, state.tokens] = (before + leaf.weight, state)
        for (i, tokens), (weight, _) in live.items():
            for whole, chance in completed(self._clients[i], tokens):
                laws[i][whole] += weight * chance
        return laws

    def expected(self):
        """The serial law of each client."""
        return [dict(completed(each, each.asked.prompt)) for each in self._clients]

    def deviation(self):
        """Largest difference of any output's probability."""
        return max(
            abs(found.get(tokens, 0.0) - wanted.get(tokens, 0.0))
            for found, wanted in zip(self.found(), self.expected(), strict=True)
            for tokens in found.keys() | wanted.keys()
        )

    def _leaves(self, client, state, weight):
        tokens = state.tokens
        budget = client.asked.stop.max_tokens - state.emitted - 1
        if client.host is not None:
            drafts = client.host(tokens)[:budget]
            draft = HostDraft(token_ids=drafts) if drafts else None
            # The product numbers these draws too, but nothing may depend on them.
            idle = {(Stream.PROPOSAL, place): float("nan") for place in range(len(drafts))}
            paths = [(drafts, 1.0, idle)]
        else:
            k = min(client.length(tokens), budget)
            draft = DeviceDraft(depth=k, rows=0, catch_up=len(tokens)) if k else None
            paths = list(_paths(client, tokens, k, self._at))
        for drafts, chance, draws in paths:
            for share, values in _verdicts(client, tokens, drafts, self._at):
                total = weight * chance * share
                yield Leaf(client, state, draft, total, {**draws, **values})

    def _run(self, number, leaves):
        """States after the round, and whether the request ended, for each leaf."""
        self.groups += len(leaves)
        ledger = Ledger()
        groups, requests = [], []
        self._randomness.values.clear()
        for n, (_, leaf) in enumerate(leaves):
            asked = leaf.client.asked
            sampling = replace(asked.sampling, seed=n)
            requests.append(replace(asked, request_id=n, sampling=sampling))
            ledger.open(n, leaf.state)
            groups.append(_group(requests[n], leaf))
            length = len(leaf.state.tokens)
            for (stream, offset), value in leaf.draws.items():
                key = DrawKey(seed=n, choice=0, stream=stream, position=length, offset=offset)
                self._randomness.values[key] = value
        plan = RoundPlan(
            round_id=number, layout=Layout.REPLAY_FRONTIER, groups=tuple(groups), digest="d"
        )
        result = self._executor(len(leaves)).run(plan)
        after = []
        for group, asked, each in zip(groups, requests, result.groups, strict=True):
            before = ledger.state(asked.request_id)
            staged = stage((number, plan.layout, "d"), group, before, asked, each)
            if ledger.publish(staged) is not CommitOutcome.PUBLISHED:
                raise RuntimeError("a leaf was not published")
            state = preempted(ledger.state(asked.request_id))
            after.append((state, staged.decision.ending is not None))
        return after

    def _executor(self, blocks):
        forwards = [
            TimedForward(
                TabularForward(table, self._vocabulary, blocks, self._width, dtype=torch.float64),
                time.perf_counter,
            )
            for table in self._logits
        ]
        return RoundExecutor(
            target=forwards[0],
            draft=forwards[1],
            vocabulary=self._vocabulary,
            randomness=self._randomness,
            clock=time.perf_counter,
        )


def completed(client, tokens):
    """Every continuation of `tokens` by target transitions, with its probability."""
    asked = client.asked
    output = len(tokens) - len(asked.prompt)
    stopped = output and tokens[-1] in asked.stop.token_ids
    if stopped or output >= asked.stop.max_tokens:
        return [(tokens, 1.0)]
    row = client.target.expected(tokens)
    return [
        (rest, row[v] * chance)
        for v in np.flatnonzero(row).tolist()
        for rest, chance in completed(client, (*tokens, v))
    ]


def _opened(client):
    rng = RngState(seed=0, choice=0)
    return initial_state(client.asked.prompt, rng, client.asked.text.start())


def _group(asked, leaf):
    """The whole prefix is computed again, as after a preemption."""
    tokens, n = leaf.state.tokens, asked.request_id
    return Group(
        request=n,
        generation=leaf.state.generation,
        tokens=tokens,
        prompt_length=leaf.state.prompt_length,
        start=0,
        rows=len(tokens),
        emits=True,
        max_emit=asked.stop.max_tokens - leaf.state.emitted,
        draft=leaf.draft,
        blocks={Role.TARGET: (n,), Role.DRAFT: (n,)},
        sampling=asked.sampling,
        verifier=asked.speculation.verifier,
        stop=asked.stop,
        choice=0,
    )


def _pieces(row, at):
    """(id, probability, a draw in its interval) of each event of a law."""
    edges = np.concatenate([[0.0], np.cumsum(row)])
    return [
        (v, float(row[v]), low + at * (high - low))
        for v, (low, high) in enumerate(pairwise(edges.tolist()))
        if row[v] > 0
    ]


def _paths(client, tokens, k, at):
    """Drafts of K tokens with their probability and their proposal draws."""
    paths = [((), 1.0, {})]
    for place in range(k):
        paths = [
            ((*drafts, v), chance * share, {**draws, (Stream.PROPOSAL, place): draw})
            for drafts, chance, draws in paths
            for v, share, draw in _pieces(client.draft.expected(tokens + drafts), at)
        ]
    return paths


def _verdicts(client, tokens, drafts, at):
    """(probability, draws) of each combination of tests and terminal."""
    p = [client.target.expected(tokens + drafts[:i]) for i in range(len(drafts) + 1)]
    q = [client.draft.expected(tokens + drafts[:i]) for i in range(len(drafts))]
    if client.host is not None:
        q = [np.eye(len(p[0]))[d] for d in drafts]
    limits = [float(limit) for limit in bounds(client.rule, p, q, drafts)]
    tests = [(1.0, ())]
    for limit in limits:
        halves = [(limit, at * limit), (1.0 - limit, limit + at * (1.0 - limit))]
        tests = [
            (share * width, (*values, draw))
            for share, values in tests
            for width, draw in halves
            if width > 0
        ]
    for share, values in tests:
        accepted = accepted_length(client.rule, limits, values)
        row = terminal_row(client.rule, p, q, drafts, accepted)
        draws = {(Stream.ACCEPTANCE, place): value for place, value in enumerate(values)}
        for _, width, draw in _pieces(row, at):
            yield share * width, {**draws, (Stream.TERMINAL, 0): draw}
