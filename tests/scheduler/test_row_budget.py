"""The rows of a round are fewer than the drafts that many requests want: who drafts, how much, and
what is said of it."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.allocation import best
from scheduler.controller import FixedController
from scheduler.goodput import GoodputController
from scheduler.plan import HostDraft
from scheduler.stats import Reason
from tests.bench.virtual import Watched
from tests.oracles.rig import MODEL, NGRAM, Rig, config, expected, request
from tests.scheduler.crowds import group, seen, table, took, truth, view
from tests.scheduler.test_allocation import instance, lengths_of, summed, vectors
from tests.scheduler.test_planning import decoding, drafts, pools, rows

CHEAP = table(base=0.010, row=5e-6, step=0.0007, caught=2e-6)

# ---- the best K within the rows ------------------------------------------------------------------


def best_within(candidates, costs, most):
    """The most tokens a second of all K that need no more than `most` rows."""
    tried = (lengths for lengths in vectors(candidates) if sum(lengths) <= most)
    rates = (tokens / seconds for tokens, seconds in (summed(candidates, e, costs) for e in tried))
    return max(rates)


@pytest.mark.parametrize(
    "options",
    [{"modelled": lambda chance: False}, {"alike": True}],
    ids=["drafts of the host", "requests alike"],
)
def test_within_the_rows_it_is_the_best_of_all(options):
    for seed in range(400):
        candidates, costs = instance(seed, **options)
        for most in range(7):
            found = best(candidates, {}, costs, rows=most)
            assert sum(found.lengths.values()) <= most
            assert found.rate == pytest.approx(best_within(candidates, costs, most))


def test_rows_that_a_deep_step_leaves_are_for_shallow_slots():
    """Two of the best request's slots are worth most, but their second step costs more than it
    gives; without it the row is another's."""
    candidates, costs = instance(1, alike=True)
    first, *others = [replace(each, survivals=(0.5,), again=0.0, wake=0.0) for each in candidates]
    candidates = [replace(first, survivals=(1.0, 0.9)), *others]
    steps = [0.0] + [0.6] * len(candidates)
    costs = replace(costs, verify=[1.0] * 10, step=steps, relative=[1.0] * 4)
    found = best(candidates, {}, costs, rows=2)
    assert lengths_of(candidates, found)[:2] == [1, 1]


def test_floors_are_kept_where_rows_are_short_and_nothing_else_is_given():
    for seed in range(200):
        candidates, costs = instance(seed)
        floors = {each.request: len(each.survivals) for each in candidates[:1]}
        found = best(candidates, floors, costs, rows=0)
        assert found.lengths == {each: k for each, k in floors.items() if k}


# ---- the controller ------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), spare=st.integers(0, 40), wishes=st.booleans())
@settings(max_examples=40, deadline=None)
def test_no_decision_needs_more_rows_than_there_are(seed, spare, wishes):
    """Probes, floors and what is kept of the round before among them; loads change, and so does
    what is accepted."""
    chance = random.Random(seed)
    controller, count = GoodputController(CHEAP, 4), 8
    for _ in range(60):
        count = min(max(count + chance.choice((-1, 0, 0, 0, 1)), 1), 12)
        tpots = [0.006 if wishes and chance.random() < 0.3 else None for _ in range(count)]
        lags = [chance.choice((0, 1, 1, 30)) for _ in range(count)]
        views = [seen(n, lag=lags[n], tpot=tpots[n]) for n in range(count)]
        room = max(spare - chance.choice((0, 0, 3)), 0)
        decision = controller.decide(view(*views, spare=room))
        ks = [decision.k(n) for n in range(count)]
        assert sum(ks) <= room
        groups = [group(n, k, [float(chance.random() < 0.8)] * bool(k)) for n, k in enumerate(ks)]
        controller.learn(took(truth(CHEAP, ks), *groups))


def test_who_comes_where_all_rows_are_taken_changes_the_k_of_few():
    """Twelve rows for four requests, then for five: hardly more than the newcomer's own change."""
    controller = GoodputController(CHEAP, 4)
    for _ in range(12):
        before = controller.decide(view(*(seen(n) for n in range(4)), spare=12))
        ks = [before.k(n) for n in range(4)]
        controller.learn(took(truth(CHEAP, ks), *(group(n, k) for n, k in enumerate(ks))))
    assert sum(ks) == 12
    after = controller.decide(view(*(seen(n) for n in range(5)), spare=11))
    assert sum(after.k(n) for n in range(5)) <= 11
    assert sum(after.k(n) != k for n, k in enumerate(ks)) <= 2


# ---- what is planned -----------------------------------------------------------------------------


def crowd(count, **changes):
    return [request(n, (n, 3), **{"max_tokens": 60, **changes}) for n in range(1, count + 1)]


def spread(rig, rounds):
    """Drafts of each request in so many rounds."""
    found = Counter()
    for _ in range(rounds):
        plan, jobs = rig.plan()
        found.update(drafts(plan))
        rig.land(jobs, *rig.execute(plan, jobs)[::-1])
    return found


@pytest.mark.parametrize(("count", "budget"), [(4, 12), (4, 18), (10, 13), (3, 13)])
def test_a_fixed_k_is_cut_alike_for_all_and_no_request_is_always_last(count, budget):
    rig = Rig(config(max_batched_tokens=budget))
    decoding(rig, *crowd(count, k=8))
    plan, jobs = rig.plan()
    cut = drafts(plan)
    assert max(cut.values()) - min(cut.values()) <= 1
    assert sum(cut.values()) == budget - count
    rig.land(jobs, *rig.execute(plan, jobs)[::-1])
    found = spread(rig, 10)
    assert min(found.values()) > 0
    assert max(found.values()) - min(found.values()) <= max(2, count // 3)


class Says:
    """A drafter on the host that says the same so often, whatever it is asked for."""

    kind = NGRAM

    def __init__(self, lengths):
        self.lengths = lengths

    def propose(self, asked, k):
        return HostDraft(token_ids=(asked.tokens[-1],) * min(k, self.lengths[asked.request]))

    def release(self, number):
        """It keeps nothing."""


@pytest.mark.parametrize(
    ("said", "planned"),
    [((1, 8), (1, 7)), ((8, 1), (7, 1)), ((8, 8), (4, 4)), ((0, 8), (0, 8)), ((2, 3), (2, 3))],
)
def test_rows_that_drafters_on_the_host_do_not_use_are_for_all(said, planned):
    rig = Rig(config(max_batched_tokens=10))
    decoding(rig, *crowd(2, k=8, proposer=NGRAM))
    rig.scheduler._drafts._proposers[NGRAM] = Says(dict(enumerate(said, 1)))
    plan = rig.plan()[0]
    assert tuple(drafts(plan).values()) == planned
    # Who said all that it had to say was not cut.
    for number, (has, k) in enumerate(zip(said, planned, strict=True), 1):
        choice = rig.scheduler.decision.choices[number]
        assert choice.reason is (Reason.ROWS if k < has else Reason.FIXED)
        assert choice.k == (k if k < has else 8)


# ---- why it was cut ------------------------------------------------------------------------------


def reasons(rig):
    rig.plan()
    return {n: (each.k, each.reason) for n, each in rig.scheduler.decision.choices.items()}


def filled(budget, blocks, draft, proposer, *, lag=0):
    """Two requests of 44 and 45 tokens, which fill 11 and 12 blocks of four rows; the draft is
    that far behind."""
    rig = Rig(pools(blocks, draft, max_batched_tokens=100), controller=FixedController(8))
    decoding(rig, *(request(n, [n] * (42 + n), max_tokens=50, proposer=proposer) for n in (1, 2)))
    rig.scheduler._drafts._proposers[NGRAM] = Says({1: 8, 2: 8})
    for entry in rig.book.running:
        entry.draft_rows = len(rig.book.state(entry).tokens) - 1 - lag
    sizes = replace(rig.book.config, max_batched_tokens=budget)
    rig.scheduler._config = rig.scheduler._drafts._config = sizes
    return rig


CUTS = {
    "nothing": (100, 40, 64, (8, Reason.FIXED), (8, Reason.FIXED)),
    "rows": (12, 40, 64, (5, Reason.ROWS), (5, Reason.ROWS)),
    "blocks": (100, 24, 64, (4, Reason.MEMORY), (3, Reason.MEMORY)),
    "rows, then blocks": (12, 24, 64, (4, Reason.MEMORY), (3, Reason.MEMORY)),
    "rows, then the blocks of one": (10, 24, 64, (4, Reason.ROWS), (3, Reason.MEMORY)),
    "rows, and blocks for just as many": (9, 24, 64, (4, Reason.ROWS), (3, Reason.ROWS)),
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("proposer", [MODEL, NGRAM], ids=["the draft model", "the host"])
def test_a_cut_names_what_was_too_little_in_the_end(cut, proposer):
    *sizes, one, two = CUTS[cut]
    assert reasons(filled(*sizes, proposer)) == {1: one, 2: two}


@pytest.mark.parametrize(
    ("budget", "blocks", "draft", "lag", "told"),
    [
        (100, 40, 0, 0, [(0, Reason.MEMORY)] * 2),
        (9, 40, 0, 0, [(0, Reason.MEMORY)] * 2),
        (12, 40, 64, 30, [(0, Reason.ROWS)] * 2),
        (12, 24, 64, 30, [(0, Reason.ROWS)] * 2),
        (12, 40, 0, 30, [(0, Reason.MEMORY)] * 2),
        (50, 40, 64, 30, [(8, Reason.FIXED), (0, Reason.ROWS)]),
    ],
)
def test_so_it_does_where_the_draft_lacks_blocks_or_must_catch_up(budget, blocks, draft, lag, told):
    """Target rows are cut for both in all but the first and the last: the draft model's own cut is
    deeper."""
    found = reasons(filled(budget, blocks, draft, MODEL, lag=lag))
    assert list(found.values()) == told


# ---- rounds that broke ---------------------------------------------------------------------------


def test_a_round_that_is_tried_again_asks_nobody_and_no_choice_is_forgotten():
    watched = Watched(GoodputController(CHEAP, 8))
    rig = Rig(config(max_batched_tokens=20), controller=watched)
    decoding(rig, *crowd(3))
    for _ in range(6):
        rig.step()
    before = dict(watched.inner._last)
    plan, _ = rig.plan()
    asked, told = len(watched.views), rig.scheduler.decision.choices
    rig.fail(plan)
    for number in (1, 2, 3):
        again, jobs = rig.plan()
        assert [each.request for each in again.groups] == [number]
        choice = rig.scheduler.decision.choices[number]
        assert (choice.k, choice.reason) == (drafts(again)[number], Reason.KEPT)
        assert choice.accepted == min(told[number].accepted, choice.k)
        assert rig.scheduler.decision.forecast is None
        rig.land(jobs, *rig.execute(again, jobs)[::-1])
    assert len(watched.views) == asked
    assert watched.inner._last.keys() == before.keys()
    rig.drain()
    assert [rig.outputs[n].tokens for n in (1, 2, 3)] == list(map(expected, crowd(3)))


# ---- prefill -------------------------------------------------------------------------------------


def test_the_last_row_is_for_a_prompt():
    """Eight requests that all want drafts leave one row of nine."""
    rig = Rig(config(max_batched_tokens=9))
    decoding(rig, *crowd(8, k=8))
    rig.submit(request(9, (5, 5, 5), max_tokens=2))
    assert rows(rig.plan()[0])[9] == 1
