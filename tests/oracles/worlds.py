"""What is enumerated through the executor: requests, row rules and ways to draft, by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.oracles.leaves import Client, client, tables
from tests.oracles.rig import BLOCK, NOISE, TOKEN
from tests.oracles.rows import Processing

VERIFIERS = (TOKEN, BLOCK, NOISE)

ROWS = {
    "plain": Processing(),
    "temperature": Processing(temperature=0.6),
    "greedy": Processing(temperature=0.0),
    "top-k": Processing(top_k=2),
    "top-p": Processing(top_p=0.7),
    "min-p": Processing(temperature=1.5, min_p=0.3),
    "all filters": Processing(temperature=0.5, top_k=2, top_p=0.8, min_p=0.05),
    "bias": Processing(bias={1: 2.0, 2: -1.0}),
    "repetition": Processing(repetition=1.7),
    "presence, frequency": Processing(presence=0.6, frequency=0.9),
    "penalties that favour": Processing(repetition=0.6, frequency=-0.5),
    "late stop": Processing(late=(1,), min_tokens=2),
    "everything": Processing(
        temperature=0.8,
        top_p=0.95,
        repetition=1.3,
        presence=0.4,
        frequency=0.3,
        bias={1: 0.5},
        late=(1,),
        min_tokens=1,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Requests that share packed rounds. `worlds(logits)` gives one client each, or several whose
    joint law is asked for."""

    name: str
    vocabulary: int
    worlds: Callable[[Sequence], list[Client | tuple[Client, ...]]]
    rounds: int = 2
    logits: Callable[[int], tuple] = tables

    def parts(self):
        """Arguments of a `RoundLaw`."""
        logits = self.logits(self.vocabulary)
        return self.worlds(logits), logits, self.vocabulary


def by_history(tokens):
    """K from published tokens alone: none, one or two drafts."""
    return (2 * tokens[-1] + len(tokens)) % 3


def always(k):
    """The same K in every round."""
    return lambda _tokens: k


def _every(**options):
    return lambda logits: [client(verifier, logits, **options) for verifier in VERIFIERS]


def _lengths(logits):
    return [
        client(verifier, logits, length=always(k), max_tokens=5)
        for verifier in VERIFIERS
        for k in range(4)
    ]


def _row_rules(names):
    def worlds(logits):
        return [
            client(verifier, logits, settings=ROWS[name], token_ids=frozenset(ROWS[name].late))
            for name in names
            for verifier in VERIFIERS
        ]

    return worlds


def _known(tokens):
    """Drafts that the host knew: none, one, two or three."""
    return {0: (1, 2), 1: (0,), 2: (2, 2, 0)}[tokens[-1]][: len(tokens)]


def _joint(one, other):
    """Two requests of one seed that differ in verifier, K and stop rules."""

    def worlds(logits):
        first = client(one, logits, length=always(2))
        second = client(other, logits, prompt=(1,), length=by_history, token_ids=frozenset({0}))
        return [(first, second)]

    return worlds


def _ragged(logits):
    """Many settings beside each other, so that every group has neighbours unlike itself."""
    prompts = [(0,), (1, 2), (2, 0, 1), (0, 0, 2, 1)]
    names = ["plain", "top-k", "presence, frequency", "late stop"]
    return [
        client(
            VERIFIERS[(turn + place) % 3],
            logits,
            prompt=prompts[place],
            settings=ROWS[name],
            length=always((turn + place) % 4),
            token_ids=frozenset(ROWS[name].late),
            max_tokens=3,
        )
        for turn, name in enumerate(names)
        for place in range(4)
    ]


def _torn(vocabulary):
    """A draft that has no row after two of the prefixes."""
    target, draft = tables(vocabulary, (11, 12))

    def row(prefix):
        if len(prefix) > 2 and sum(prefix) % 3 == 1:
            return np.full(vocabulary, np.nan)
        return draft(prefix)

    return target, row


_ORDER = list(ROWS)

PACKED = (
    Packed(name="K from 0 to 3", vocabulary=2, worlds=_lengths, rounds=3),
    Packed(
        name="a horizon past the round",
        vocabulary=3,
        worlds=_every(length=by_history, max_tokens=5),
    ),
    Packed(
        name="stops in accepted runs",
        vocabulary=3,
        worlds=_every(token_ids=frozenset({2}), max_tokens=5),
    ),
    Packed(name="a budget of one round", vocabulary=3, worlds=_every(length=always(3))),
    Packed(name="row rules, first part", vocabulary=3, worlds=_row_rules(_ORDER[:5])),
    Packed(name="row rules, second part", vocabulary=3, worlds=_row_rules(_ORDER[5:9])),
    Packed(name="row rules, third part", vocabulary=3, worlds=_row_rules(_ORDER[9:])),
    Packed(
        name="drafts of the host",
        vocabulary=3,
        rounds=3,
        worlds=_every(host=_known, settings=ROWS["presence, frequency"], max_tokens=5),
    ),
    Packed(name="early stop", vocabulary=3, worlds=_every(min_confidence=0.5, length=always(3))),
    Packed(
        name="early stop after top-k",
        vocabulary=3,
        worlds=_every(min_confidence=0.7, settings=ROWS["top-k"], length=always(3)),
    ),
    Packed(name="draft rows without a law", vocabulary=3, worlds=_every(), logits=_torn),
    Packed(name="sixteen unlike neighbours", vocabulary=3, worlds=_ragged),
    Packed(name="token beside token", vocabulary=2, worlds=_joint(TOKEN, TOKEN)),
    Packed(name="block beside token", vocabulary=2, worlds=_joint(BLOCK, TOKEN)),
    Packed(name="noise beside block", vocabulary=2, worlds=_joint(NOISE, BLOCK)),
    Packed(name="noise beside noise", vocabulary=2, worlds=_joint(NOISE, NOISE)),
    Packed(name="four tokens", vocabulary=4, worlds=_every(length=always(1), max_tokens=3)),
)

LONG = (
    Packed(name="four tokens, two drafts", vocabulary=4, worlds=_every()),
    Packed(
        name="three drafts of three tokens",
        vocabulary=3,
        worlds=_every(length=always(3), max_tokens=5),
    ),
    Packed(
        name="three drafts, three rounds",
        vocabulary=2,
        rounds=3,
        worlds=_every(length=always(3), max_tokens=7),
    ),
    Packed(
        name="three rounds of three tokens",
        vocabulary=3,
        rounds=3,
        worlds=_every(length=by_history, max_tokens=6),
    ),
)
