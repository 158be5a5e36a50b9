"""How many drafts are verified: the policies of contract section 3, exact and biased.

Each is a scenario by rule. A biased one looks at a token that it then leaves out, or at something
that follows from it; with shared noise even those are exact.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scheduler.sampling.rng import Stream
from tests.oracles.leaves import Torn
from tests.oracles.rows import Processing, Table, constant_logits, random_logits
from tests.oracles.scenario import Case, Policy, scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A policy on requests where it matters. `noisy` says whether its laws are of two tokens, so
    that shared noise can be enumerated too."""

    name: str
    cases: tuple[Case, ...]
    policy: Policy
    rounds: int = 2
    horizon: int = 4
    noisy: bool = True

    def under(self, rule, at=0.5):
        """The scenario of this policy under one rule."""
        return scenario(
            *self.cases,
            rule=rule,
            policy=self.policy,
            rounds=self.rounds,
            horizon=self.horizon,
            at=at,
        )


# --- policies that look at what they leave out ---------------------------------------------------


def drop_unlikely(drafts):
    """Give up a drawn token because its own q is low."""
    kept = []
    for drawn in drafts:
        low = [d.row[d.token] < 0.5 for d in drawn]
        kept.append(low.index(True) if True in low else len(drawn))
    return kept


def wait_for_confidence(drafts):
    """Verify the first draft only when the row after it is confident."""
    return [1 if len(d) > 1 and d[1].row.max() > 0.7 else 0 for d in drafts]


def budget_by_global_argmax(drafts):
    """Choose the depth by the best ratio of live scores to a cost with a step."""
    cost = np.array([1.0, 1.6, 1.85])
    kept = []
    for drawn in drafts:
        gain = 1 + np.cumsum([0.0, *np.cumprod([d.row.max() for d in drawn])])
        kept.append(int(np.argmax(gain / cost[: len(gain)])))
    return kept


def rising_scores(drafts):
    """One slot a request on average, by scores that may rise along a chain."""
    scores = [
        (-d.row.max(), place, r) for r, drawn in enumerate(drafts) for place, d in enumerate(drawn)
    ]
    kept = [0] * len(drafts)
    for _, place, r in sorted(scores):
        if sum(kept) < 2:
            kept[r] = max(kept[r], place + 1)
    return kept


def throw_away_after_a_bad_row(drafts):
    """The row after token 0 is unusable, and the drafts before it go with it."""
    return [0 if d and d[0].token == 0 else len(d) for d in drafts]


def redo_shorter(drafts):
    """The round broke on a run that ends with token 0, and is done again without it; the draws are
    the same."""
    return [len(d) - 1 if d and d[-1].token == 0 else len(d) for d in drafts]


def before_illegal(drafts):
    """Trim a sampled run before its first token 2, which the grammar forbids."""
    tokens = [[d.token for d in drawn] for drawn in drafts]
    return [t.index(2) if 2 in t else len(t) for t in tokens]


# --- policies that do not ------------------------------------------------------------------------


def after_illegal(drafts):
    """End a run with its first illegal token, which verification rejects."""
    tokens = [[d.token for d in drawn] for drawn in drafts]
    return [t.index(2) + 1 if 2 in t else len(t) for t in tokens]


def best_first(budget):
    """Verify the `budget` slots with the largest products of row maxima, over all requests; ties
    go to the smaller place."""

    def trim(drafts):
        scores = []
        for r, drawn in enumerate(drafts):
            chances = np.cumprod([d.row.max() for d in drawn])
            scores += [(-score, place, r) for place, score in enumerate(chances)]
        kept = sorted(scores)[:budget]
        return [sum(owner == r for _, _, owner in kept) for r in range(len(drafts))]

    return trim


def follow_acceptance(_r, _tokens, trace):
    """Up after full acceptance, down after a rejection."""
    if not trace:
        return 1
    k, accepted = trace[-1]
    return min(k + 1, 3) if accepted == k else accepted


def entropy(row):
    """In nats."""
    some = row[row > 0]
    return -(some * np.log(some)).sum()


def torn(prefix):
    """Rows of which there is none after a draft of token 0."""
    broken = len(prefix) > 1 and prefix[-1] == 0
    return np.full(2, np.nan) if broken else np.log(np.array([2 / 3, 1 / 3]))


def two(*_):
    """Always two drafts."""
    return 2


def one(*_):
    """Always one draft."""
    return 1


def even_odds(*_):
    """No draft or two, by a fair coin."""
    return np.array([0.5, 0.0, 0.5])


def one_or_none(*_):
    """No draft or one, by a fair coin."""
    return np.array([0.5, 0.5])


def contrasts(prefix):
    """Rows that are confident after token 0 and open after token 1."""
    return np.log(np.array([0.9, 0.1] if prefix[-1] == 0 else [0.5, 0.5]))


TEXTBOOK = Case(
    target=Table(constant_logits(1 / 3, 2 / 3)), draft=Table(constant_logits(2 / 3, 1 / 3))
)
_TELLING = {"target": Table(constant_logits(0.2, 0.8)), "draft": Table(contrasts), "prompt": (1,)}
_LEGAL = Table(constant_logits(0.3, 0.7, 0.0))
_ILLEGAL = Case(target=_LEGAL, draft=Table(constant_logits(0.4, 0.1, 0.5)))
_SURE = Case(
    target=_LEGAL,
    draft=Table(constant_logits(0.4, 0.1, 0.5), settings=Processing(temperature=0.0)),
)


def _random(seed, choice=0):
    return Case(
        target=Table(random_logits(seed, 2)), draft=Table(random_logits(seed + 1, 2)), choice=choice
    )


def _example(name: str, case: Case, policy: Callable, **kwargs) -> Example:
    return Example(name=name, cases=(case,), policy=policy, **kwargs)


BIASED = (
    _example("drops a token of low q", TEXTBOOK, Policy(length=two, trim=drop_unlikely)),
    _example(
        "waits for the next row", Case(**_TELLING), Policy(length=two, trim=wait_for_confidence)
    ),
    _example(
        "budget by a global argmax",
        Case(**_TELLING),
        Policy(length=two, trim=budget_by_global_argmax),
    ),
    Example(
        name="scores that rise",
        cases=tuple(Case(**_TELLING, choice=choice) for choice in (0, 1)),
        policy=Policy(length=two, trim=rising_scores),
    ),
    _example(
        "trims before an illegal token",
        _ILLEGAL,
        Policy(length=two, trim=before_illegal),
        noisy=False,
    ),
    _example(
        "drops all drafts at a bad row",
        TEXTBOOK,
        Policy(length=two, trim=throw_away_after_a_bad_row),
    ),
    _example("redoes at another K", TEXTBOOK, Policy(length=one, trim=redo_shorter)),
    _example(
        "tosses the first test's draw",
        TEXTBOOK,
        Policy(length=two, coin=one_or_none, tossed=Stream.ACCEPTANCE),
    ),
    _example(
        "tosses the first draft's draw",
        TEXTBOOK,
        Policy(length=two, coin=even_odds, tossed=Stream.PROPOSAL),
    ),
    _example(
        "tosses the terminal draw",
        TEXTBOOK,
        Policy(length=two, coin=even_odds, tossed=Stream.TERMINAL),
    ),
)

EXACT = (
    _example("K from acceptance", _random(6), Policy(length=follow_acceptance, memory=1), rounds=3),
    _example(
        "K from text",
        _random(5),
        Policy(length=lambda _r, tokens, _trace: (3 * sum(tokens) + len(tokens)) % 4),
        rounds=3,
    ),
    _example("stops at max q", _random(7), Policy(length=two, goes_on=lambda row: row.max() < 0.8)),
    _example(
        "stops at low entropy",
        _random(8),
        Policy(length=two, goes_on=lambda row: entropy(row) > 0.4),
    ),
    *(
        Example(
            name=f"best {budget} slots",
            cases=(_random(14), _random(24, choice=1)),
            policy=Policy(length=two, trim=best_first(budget)),
            horizon=3,
        )
        for budget in (1, 2, 3)
    ),
    Example(
        name="best slots, ties",
        cases=(TEXTBOOK, Case(target=TEXTBOOK.target, draft=TEXTBOOK.draft, choice=1)),
        policy=Policy(length=two, trim=best_first(2)),
        horizon=3,
    ),
    _example("tosses a coin", TEXTBOOK, Policy(length=two, coin=even_odds)),
    _example(
        "keeps drafts before a bad row",
        Case(target=TEXTBOOK.target, draft=Torn(torn), prompt=(1,)),
        Policy(length=two, goes_on=lambda row: not np.isnan(row).any()),
    ),
    _example("retries at the same K", TEXTBOOK, Policy(length=two)),
    _example(
        "cuts after an illegal token", _ILLEGAL, Policy(length=two, trim=after_illegal), noisy=False
    ),
    _example(
        "trims a one-hot run before an illegal token",
        _SURE,
        Policy(length=two, trim=before_illegal),
        noisy=False,
    ),
)
