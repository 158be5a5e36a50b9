"""Every outcome of one round of one request: its probability, and draws that lead to it.

The intervals come from the rules' definitions in NumPy; what a draw decides is left to the product.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from scheduler.plan import DeviceDraft, HostDraft
from scheduler.request import Request, Verifier
from scheduler.runtime.draws import planned_depth
from scheduler.sampling.rng import DrawKey, Stream
from tests.oracles.rig import request
from tests.oracles.rows import Processing, Table, random_logits
from tests.oracles.rules import accepted_length, bounds, others, races, terminal_row

# Close to the smallest normal float: its noise is 707, and a token with that would win any race.
TINY = 1e-307


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One request with its oracle's laws.

    `length(tokens)` is the K that history asks for; `host(tokens)` gives drafts known beforehand.
    """

    asked: Request
    target: Table
    draft: Table
    length: Callable[[tuple[int, ...]], int] = lambda _tokens: 2
    host: Callable[[tuple[int, ...]], tuple[int, ...]] | None = None

    @property
    def rule(self):
        return self.asked.speculation.verifier.value

    def ended(self, tokens):
        """Whether the request ends with `tokens`."""
        output = len(tokens) - len(self.asked.prompt)
        stopped = output > 0 and tokens[-1] in self.asked.stop.token_ids
        return stopped or output >= self.asked.stop.max_tokens

    def completed(self, tokens):
        """Every continuation of `tokens` by target transitions, with its probability."""
        if self.ended(tokens):
            return [(tokens, 1.0)]
        row = self.target.expected(tokens)
        return [
            (rest, row[v] * chance)
            for v in np.flatnonzero(row).tolist()
            for rest, chance in self.completed((*tokens, v))
        ]


class Torn(Table):
    """A table that may have NaN for a row: then there is no law."""

    def expected(self, prefix):
        row = self._logits(prefix)
        return row if np.isnan(row).any() else super().expected(prefix)


def tables(vocabulary, seeds=(3, 4)):
    """Raw logits of a target and of a draft."""
    return tuple(functools.cache(random_logits(seed, vocabulary)) for seed in seeds)


def client(
    verifier, logits, *, prompt=(0, 0), settings=None, length=lambda _: 2, host=None, **changes
):
    """A request for 4 tokens over raw `logits` (target, draft), with the oracle's tables under
    `settings`; `changes` as for `rig.request`."""
    settings = settings or Processing()
    asked = request(
        1,
        prompt,
        verifier=verifier,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
        repetition_penalty=settings.repetition,
        presence_penalty=settings.presence,
        frequency_penalty=settings.frequency,
        logit_bias=dict(settings.bias),
        min_tokens=settings.min_tokens,
        **{"max_tokens": 4, **changes},
    )
    target = Table(logits[0], prompt_length=len(prompt), settings=settings)
    draft = Torn(logits[1], prompt_length=len(prompt), settings=settings)
    return Client(asked=asked, target=target, draft=draft, length=length, host=host)


class Fixed:
    """Randomness that knows only the draws that were planned."""

    def __init__(self):
        self.values = {}

    def uniforms(self, keys):
        return torch.tensor([self.values[key] for key in keys], dtype=torch.float64)

    def gumbel(self, keys, vocabulary, device):
        return torch.from_numpy(np.stack([self.values[key] for key in keys]))


def drafted(client, tokens):
    """What the client's round drafts, as a plan says it, all rows of the draft's cache new."""
    budget = client.asked.stop.max_tokens - (len(tokens) - len(client.asked.prompt)) - 1
    if client.host is not None:
        drafts = client.host(tokens)[:budget]
        return HostDraft(token_ids=drafts) if drafts else None
    k = min(client.length(tokens), budget)
    floor = client.asked.speculation.min_confidence
    if not k:
        return None
    return DeviceDraft(depth=k, rows=0, catch_up=len(tokens), min_confidence=floor)


def outcomes(client, tokens, group, at):
    """(probability, draws) of each outcome of a `group` planned for the client's `tokens`.

    `at` says where in its interval a draw lies: near 0 and near 1 the product's own break points
    show, in between only its decisions. Draws are by (stream, place); of those that the product
    asks for, though nothing may depend on them, uniforms are NaN and noise is 0.
    """
    depth = planned_depth(group)
    if client.asked.sampling.greedy:
        yield 1.0, {}
    elif client.asked.speculation.verifier is Verifier.SHARED_NOISE:
        idle = np.zeros(len(client.target.expected(tokens)))
        unused = {(Stream.NOISE, place): idle for place in range(depth + 1)}
        for chance, draws in _raced(_Rows(client, tokens, group), (), depth, at):
            yield chance, {**unused, **draws}
    else:
        streams = (Stream.PROPOSAL, Stream.ACCEPTANCE)
        unused = {(stream, place): np.nan for stream in streams for place in range(depth)}
        rows = _Rows(client, tokens, group)
        for drafts, chance, draws in _paths(rows, depth, at):
            for share, values in _verdicts(rows, drafts, at):
                yield chance * share, {**unused, **draws, **values}


def draw_key(seed, choice, length, name):
    """The production key of a draw that `outcomes` names, in a round that starts at `length`."""
    stream, place = name
    if stream is Stream.NOISE:
        length, place = length + place, 0
    return DrawKey(seed=seed, choice=choice, stream=stream, position=length, offset=place)


class _Rows:
    """The oracle's rows of one group by drafts so far."""

    def __init__(self, client, tokens, group):
        self.rule = client.rule
        self.known = isinstance(group.draft, HostDraft)
        self._client = client
        self._tokens = tokens
        self._draft = group.draft

    def p(self, drafts):
        return self._client.target.expected(self._tokens + drafts)

    def q(self, drafts):
        """The law of the next draft; None where drafting ends before it."""
        if self.known:
            return np.eye(len(self.p(())))[self._draft.token_ids[len(drafts)]]
        row = self._client.draft.expected(self._tokens + drafts)
        unsure = np.isnan(row).any() or row.max() < self._draft.min_confidence
        return None if unsure else row


def _pieces(row, at):
    """(id, probability, a draw in its interval) of each event of a law."""
    edges = np.concatenate([[0.0], np.cumsum(row)])
    return [
        (v, float(row[v]), low + at * (high - low))
        for v, (low, high) in enumerate(pairwise(edges.tolist()))
        if row[v] > 0
    ]


def _paths(rows, depth, at, drafts=()):
    """(drafts, probability, proposal draws) of each run of drafts."""
    place = len(drafts)
    row = rows.q(drafts) if place < depth else None
    if row is None:
        yield drafts, 1.0, {}
        return
    for v, share, draw in _pieces(row, at):
        first = {} if rows.known else {(Stream.PROPOSAL, place): draw}
        for run, chance, draws in _paths(rows, depth, at, (*drafts, v)):
            yield run, share * chance, {**first, **draws}


def _verdicts(rows, drafts, at):
    """(probability, draws) of each combination of tests and terminal."""
    p = [rows.p(drafts[:i]) for i in range(len(drafts) + 1)]
    q = [rows.q(drafts[:i]) for i in range(len(drafts))]
    limits = [float(limit) for limit in bounds(rows.rule, p, q, drafts)]
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
        accepted = accepted_length(rows.rule, limits, values)
        row = terminal_row(rows.rule, p, q, drafts, accepted)
        draws = {(Stream.ACCEPTANCE, place): value for place, value in enumerate(values)}
        for _, width, draw in _pieces(row, at):
            yield share * width, {**draws, (Stream.TERMINAL, 0): draw}


def _raced(rows, drafts, depth, at):
    """(probability, noise) of each outcome of the races up to the first difference.

    The noise after it may be anything: it is met again by the round that begins there.
    """
    place, p = len(drafts), rows.p(drafts)
    q = rows.q(drafts) if place < depth else None
    if q is None:
        for j in np.flatnonzero(p).tolist():
            yield float(p[j]), {(Stream.NOISE, place): _noise(p, p, (j, j), 1.0, at)}
        return
    for i, j, chance, low, high in races(p, q):
        ratio = low + at / (1.0 - at) if np.isinf(high) else low + at * (high - low)
        own = {(Stream.NOISE, place): _noise(p, q, (i, j), ratio, at)}
        if i != j:
            yield chance, own
            continue
        for share, draws in _raced(rows, (*drafts, i), depth, at):
            yield chance * share, {**own, **draws}


def _noise(p, q, winners, ratio, at):
    """Gumbel noise with which i wins on `q` and j on `p`; a removed token has all but won."""
    i, j = winners
    least = others(p, q, i, j, ratio) / (1.0 - at)
    least[j], least[i] = ratio, 1.0
    return -np.log(np.maximum(least, TINY))
