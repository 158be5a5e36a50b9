"""What is booked of acceptance, against acceptance itself: all that can happen, weighed exactly.

Drafts, verdicts and records come from production. Uniforms are independent, and each matters only
by the side of its bound that it falls on: so all patterns of sides, weighed by the bounds, are all
that can happen.
"""

import math
from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scheduler.acceptance import AcceptanceBook
from scheduler.commit import stage
from scheduler.landing import Job, _group_stats
from scheduler.plan import DraftOutcome
from scheduler.request import ProposerKind
from scheduler.sampling.verify import DraftBatch, verify_block, verify_match, verify_token
from scheduler.stats import CommitOutcome, Policy, SpeculationStats
from tests.oracles.rig import BLOCK, NOISE, TOKEN, request
from tests.scheduler.staging import PLAN, PROMPT, decoding, verified
from tests.telemetry.rounds import drafted

F64 = torch.float64
MIRRORED = ([1 / 3, 2 / 3], [2 / 3, 1 / 3])  # p, q: the contract's two letters (section 2)
RATIO = {TOKEN: verify_token, BLOCK: verify_block}


@dataclass(frozen=True)
class Outcome:
    """One thing that can happen: `accepted` by verification, and what is booked of it."""

    weight: float
    accepted: int
    booked: SpeculationStats


def batch_of(drafts, count):
    """`count` times the same drafts, over the same rows."""
    k = len(drafts)
    return DraftBatch(
        drafts=torch.tensor([drafts]).expand(count, k),
        k=torch.full((count,), k),
        target_row=torch.zeros(count, dtype=torch.int64),
        draft_row=torch.zeros(count, dtype=torch.int64),
    )


def booked(rule, drafts, verdict, row, stops=(), **sampling):
    """The record of one verdict, staged and published."""
    asked = request(
        5,
        PROMPT,
        **({"max_tokens": 20, "temperature": 1.0} | sampling),
        verifier=rule,
        token_ids=frozenset(stops),
    )
    state = decoding(asked)
    accepted, terminal = verdict.accepted[row].item(), verdict.terminal[row].item()
    group, result = verified(state, accepted, terminal, drafts, verifier=rule)
    outcomes = tuple(
        DraftOutcome(
            token=token, target_prob=0.5, draft_prob=0.5, uniform=0.1, mass=mass, base=base
        )
        for token, mass, base in zip(
            drafts, verdict.mass[row].tolist(), verdict.base[row].tolist(), strict=True
        )
    )
    result = replace(result, outcomes=outcomes)
    staged = stage(PLAN, group, state, asked, result)
    return _group_stats(Job(group, state, asked), staged, CommitOutcome.PUBLISHED).speculation


def by_ratio(rule, laws, k, stops=()):
    """All that can happen to `k` drafts; `laws(prefix)` are p and q after these drafts."""
    verifier = RATIO[rule]
    for drafts in product(range(len(laws(())[0])), repeat=k):
        rows = [laws(drafts[:place]) for place in range(k + 1)]
        chance = math.prod(rows[place][1][token] for place, token in enumerate(drafts))
        if not chance:
            continue
        p = torch.tensor([row[0] for row in rows], dtype=F64)
        q = torch.tensor([row[1] for row in rows[:k]], dtype=F64)
        last = torch.tensor([0.5], dtype=F64)
        seen = verifier(batch_of(drafts, 1), p, q, torch.zeros(1, k, dtype=F64), last)
        bounds = seen.bound[0]
        passes = torch.tensor(list(product((True, False), repeat=k)))
        weights = torch.where(passes, bounds, 1.0 - bounds).prod(dim=1).tolist()
        uniforms = torch.where(passes, 0.0, bounds)
        verdict = verifier(batch_of(drafts, len(passes)), p, q, uniforms, last.expand(len(passes)))
        for row, weight in enumerate(weights):
            if weight > 0.0:
                told = booked(rule, drafts, verdict, row, stops)
                yield Outcome(chance * weight, verdict.accepted[row].item(), told)


def by_match(joint, k, stops=()):
    """All that can happen where tokens are compared; `joint` weighs (draft, choice) pairs, the same
    at every place."""
    for pairs in product(joint, repeat=k):
        drafts, choices = (list(tokens) for tokens in zip(*pairs, strict=True))
        verdict = verify_match(batch_of(tuple(drafts), 1), torch.tensor([*choices, 0]))
        told = booked(NOISE, tuple(drafts), verdict, 0, stops)
        weight = math.prod(joint[pair] for pair in pairs)
        yield Outcome(weight, verdict.accepted.item(), told)


def estimate(outcomes, place):
    """Sum of masses over sum of bases at one place, from 0."""
    shown = [(each.weight, each.booked) for each in outcomes if len(each.booked.mass) > place]
    mass = math.fsum(weight * told.mass[place] for weight, told in shown)
    return mass / math.fsum(weight * told.base[place] for weight, told in shown)


def acceptance(outcomes, place):
    """P(A > place | A >= place, K > place), by counting."""
    longer = [each for each in outcomes if each.booked.k > place]
    reached = math.fsum(each.weight for each in longer if each.accepted >= place)
    return math.fsum(each.weight for each in longer if each.accepted > place) / reached


def kept(outcomes, place):
    """Accepted and kept over reached, a stop among the drafts having cut both."""
    reached = math.fsum(each.weight for each in outcomes if each.booked.reached > place)
    return math.fsum(each.weight for each in outcomes if each.booked.accepted > place) / reached


def reachable(outcomes):
    """Places that any outcome reaches."""
    return range(max(each.booked.reached for each in outcomes))


# ---- the contract's two letters ------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "second"), [(TOKEN, 2 / 3), (BLOCK, 5 / 6)])
def test_the_two_letters_are_booked_as_they_are_accepted(rule, second):
    outcomes = list(by_ratio(rule, lambda _: MIRRORED, 2))
    assert math.fsum(each.weight for each in outcomes) == pytest.approx(1.0)
    expected = pytest.approx([2 / 3, second], abs=1e-14)
    assert [acceptance(outcomes, place) for place in range(2)] == expected
    assert [estimate(outcomes, place) for place in range(2)] == expected


def test_a_book_that_saw_the_two_letters_expects_as_many_drafts_as_stand():
    """11/9 of two drafts by block: an estimate from reached places alone would be 1.30."""
    outcomes = list(by_ratio(BLOCK, lambda _: MIRRORED, 2))
    kind = (ProposerKind.DRAFT_MODEL, Policy.BLOCK)
    found, shown = AcceptanceBook(2), drafted(2, 0, policy=Policy.BLOCK)
    found.enter(1, own_seed=False)
    owed = dict.fromkeys(range(len(outcomes)), 0.0)
    for _ in range(3000):  # each in its turn, as often as its weight says
        owed = {n: debt + outcomes[n].weight for n, debt in owed.items()}
        n = max(owed, key=owed.get)
        owed[n] -= 1.0
        found.learn([replace(shown, speculation=outcomes[n].booked)])
    found.enter(2, own_seed=False)
    assert sum(found.survivals(2, kind, 2)) == pytest.approx(11 / 9, abs=0.02)


# ---- any small laws ------------------------------------------------------------------------------


def law(size):
    """A law over so many tokens, zeros included."""
    shares = st.lists(st.integers(0, 5), min_size=size, max_size=size).filter(any)
    return shares.map(lambda found: [share / sum(found) for share in found])


@st.composite
def trees(draw):
    """(K, laws): p and q after every prefix of up to K drafts, over two or three tokens."""
    k = draw(st.integers(1, 3))
    size = draw(st.integers(2, 3 if k < 3 else 2))
    prefixes = [prefix for n in range(k + 1) for prefix in product(range(size), repeat=n)]
    return k, {prefix: (draw(law(size)), draw(law(size))) for prefix in prefixes}


@pytest.mark.parametrize("rule", RATIO)
@given(tree=trees())
def test_what_is_booked_has_the_mean_of_what_is_accepted(rule, tree):
    """Also where K differs from round to round, as history may choose it."""
    k, laws = tree
    outcomes = [each for n in range(1, k + 1) for each in by_ratio(rule, laws.get, n)]
    for place in reachable(outcomes):
        assert estimate(outcomes, place) == pytest.approx(acceptance(outcomes, place), abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3])
@given(shares=st.lists(st.integers(0, 5), min_size=4, max_size=4).filter(any))
def test_what_is_booked_of_matches_has_the_mean_of_what_matches(k, shares):
    """Whatever the coupling of draft and choice: the 0/1 outcome of the places that are reached."""
    joint = {
        pair: share / sum(shares)
        for pair, share in zip(product(range(2), repeat=2), shares, strict=True)
        if share
    }
    outcomes = list(by_match(joint, k))
    for place in reachable(outcomes):
        assert estimate(outcomes, place) == pytest.approx(acceptance(outcomes, place), abs=1e-12)


# ---- stops ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [TOKEN, NOISE])
@given(tree=trees(), shares=st.lists(st.integers(1, 5), min_size=4, max_size=4))
def test_behind_a_stop_nothing_is_booked(rule, tree, shares):
    """The estimate is that of the places which a stop left."""
    k, laws = tree
    if rule is TOKEN:
        outcomes = list(by_ratio(rule, laws.get, k, stops={0}))
    else:
        joint = dict(zip(product(range(2), repeat=2), shares, strict=True))
        outcomes = list(by_match(joint, k, stops={0}))
    for place in reachable(outcomes):
        assert estimate(outcomes, place) == pytest.approx(kept(outcomes, place), abs=1e-12)


@given(tree=trees())
def test_a_stop_does_not_select_what_block_verification_shows(tree):
    """Whether a stop cuts a round depends on A, so masses are of all that verification accepts."""
    k, laws = tree
    outcomes = list(by_ratio(BLOCK, laws.get, k, stops={0}))
    for place in range(k):
        if any(each.accepted >= place for each in outcomes):
            found = estimate(outcomes, place)
            assert found == pytest.approx(acceptance(outcomes, place), abs=1e-12)


@pytest.mark.parametrize("rule", [TOKEN, BLOCK, NOISE])
def test_at_temperature_0_a_place_behind_the_first_mismatch_is_not_booked(rule):
    """There all rules are one, whatever the request named: the mass is the 0/1 outcome."""
    verdict = verify_match(batch_of((1, 0, 1), 1), torch.tensor([1, 1, 1, 1]))
    told = booked(rule, (1, 0, 1), verdict, 0, temperature=0.0)
    assert (told.mass, told.base, told.reached) == ((1.0, 0.0), (1.0, 1.0), 2)
