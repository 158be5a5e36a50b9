"""The draft's cache: which rows are, by identity, a prefix of the published tokens.

Tables read their prefix back through their slots, so each test compares the prefixes that both
models were really asked about with those that the plan and its result imply.
"""

from collections import Counter
from dataclasses import replace

import pytest

from scheduler.config import PoolConfig
from scheduler.controller import FixedController, fixed
from scheduler.landing import draft_rows_after
from scheduler.plan import DeviceDraft, HostDraft
from scheduler.stats import CommitOutcome
from tests.oracles.rig import BLOCK, NGRAM, NOISE, TARGET, TOKEN, Rig, config, expected, request


def contrary(prefix):
    """A draft that always likes what the target likes least."""
    return [-value for value in TARGET(prefix)]


class Watched(Rig):
    """A rig that checks every row of both models against the round that asked for it."""

    def execute(self, plan, jobs):
        self.target.asked.clear()
        self.draft.asked.clear()
        result, staged = super().execute(plan, jobs)
        wanted, drafted = Counter(), Counter()
        for group, outcome in zip(plan.groups, result.groups, strict=True):
            drafts = outcome.written[group.rows :]
            if group.emits:
                wanted.update(group.tokens + drafts[:i] for i in range(len(drafts) + 1))
            if isinstance(group.draft, DeviceDraft):
                drafted.update(group.tokens + drafts[:i] for i in range(len(drafts)))
        assert Counter(self.target.asked) == wanted
        assert Counter(self.draft.asked) == drafted
        return result, staged

    def lag(self, number=1):
        entry = self.book.entries[number]
        return len(self.book.state(entry).tokens) - 1 - entry.draft_rows


def running(*requests, settings=None, **tables):
    """A watched rig whose requests decode, with a first draft made."""
    rig = Watched(settings, **tables)
    rig.submit(*requests)
    rig.step()
    return rig


def test_lag_is_nothing_after_a_rejection():
    rig = running(request(1, max_tokens=30, k=3), draft=contrary)
    assert rig.lag() == 3
    for _ in range(3):
        (stats,) = rig.step().groups
        assert (stats.speculation.k, stats.speculation.accepted) == (3, 0)
        assert rig.lag() == 0


def test_lag_is_one_after_a_bonus():
    rig = running(request(1, max_tokens=40, k=3), draft=TARGET)
    for _ in range(3):
        (stats,) = rig.step().groups
        assert stats.speculation.accepted == 3
        assert rig.lag() == 1
        assert rig.draft.calls[-3:] == [
            len(rig.plans[-1].groups[0].tokens) - rig.plans[-1].groups[0].draft.rows,
            1,
            1,
        ]


def test_a_round_without_drafts_adds_what_it_committed():
    class Sometimes(FixedController):
        k = 3

        def decide(self, view):
            return fixed({each.request: min(self.k, each.room) for each in view.requests})

    controller = Sometimes(3)
    rig = running(request(1, max_tokens=40), draft=TARGET, controller=controller)
    rig.step()
    assert rig.lag() == 1
    controller.k = 0
    rig.step()
    rig.step()
    assert rig.lag() == 3
    controller.k = 2
    rig.step()
    plan = rig.plans[-1].groups[0]
    assert plan.draft.catch_up == len(plan.tokens) - plan.draft.rows == 4
    assert rig.lag() == 1
    rig.drain()
    assert rig.outputs[1].tokens == expected(request(1, max_tokens=40))


def test_a_host_draft_leaves_the_cache_as_it_is():
    rig = running(request(1, (1, 2, 3, 4), max_tokens=30, k=3), draft=TARGET)
    rig.step()
    rows = rig.book.entries[1].draft_rows
    entry = rig.book.entries[1]
    speculation = entry.request.speculation
    entry.request = replace(entry.request, speculation=replace(speculation, proposer=NGRAM))

    class Wrong:
        kind = NGRAM

        def propose(self, view, k):
            return HostDraft(token_ids=(15, 15))

        def release(self, request):
            pass

    rig.scheduler._drafts._proposers[NGRAM] = Wrong()
    rig.step()
    assert entry.draft_rows == rows
    entry.request = replace(entry.request, speculation=speculation)
    rig.drain()
    assert rig.outputs[1].tokens == expected(request(1, (1, 2, 3, 4), max_tokens=30))


def test_a_preempted_request_has_no_draft_rows():
    rig = running(request(1, max_tokens=30, k=3), draft=TARGET)
    rig.step()
    entry = rig.book.entries[1]
    rig.book.preempt(entry)
    assert entry.draft_rows == 0
    rig.drain()
    assert rig.outputs[1].tokens == expected(request(1, max_tokens=30))
    restarted = [p.groups[0].draft for p in rig.plans if p.groups[0].draft is not None]
    assert sum(draft.rows == 0 for draft in restarted) == 2


def test_a_cancelled_round_moves_no_ledger():
    rig = running(request(1, max_tokens=30), request(2, max_tokens=30))
    plan, jobs = rig.plan()
    rig.cancel(1)
    result, staged = rig.execute(plan, jobs)
    landed = rig.land(jobs, staged, result)
    assert landed.groups[0].outcome is CommitOutcome.STALE
    rig.drain()
    assert rig.outputs[2].tokens == expected(request(2, max_tokens=30))


def test_catching_up_stays_within_the_row_budget():
    settings = config(max_batched_tokens=10)
    rig = running(request(1, [1, 2] * 14, max_tokens=12, k=2), settings=settings, draft=TARGET)
    rig.drain()
    assert rig.outputs[1].tokens == expected(request(1, [1, 2] * 14, max_tokens=12))
    drafts = [p.groups[0].draft for p in rig.plans if p.groups[0].draft is not None]
    steps = [(draft.depth, draft.rows, draft.catch_up) for draft in drafts[:4]]
    # 29 tokens and one more each round; ten rows a round until the rest fits.
    assert steps == [(0, 0, 10), (0, 10, 10), (0, 20, 10), (2, 30, 2)]
    assert all(draft.catch_up <= 10 for draft in drafts)
    assert max(rig.draft.calls) <= 10
    assert any(draft.depth for draft in drafts)


def test_a_draft_row_without_a_law_empties_the_ledger():
    def sick(prefix):
        return [float("nan")] * 16 if len(prefix) in {7, 11} else TARGET(prefix)

    rig = running(request(1, max_tokens=20, k=4), draft=sick)
    ledgers = []
    while rig.book.entries:
        (stats,) = rig.step().groups
        if stats.speculation is not None and rig.book.entries:
            ledgers.append((stats.speculation.k, rig.book.entries[1].draft_rows > 0))
    assert rig.outputs[1].tokens == expected(request(1, max_tokens=20))
    assert (3, False) in ledgers
    assert (4, True) in ledgers


@pytest.mark.parametrize("verifier", [TOKEN, BLOCK, NOISE])
def test_every_kind_of_round_asks_for_the_right_prefixes(verifier):
    settings = config(
        max_batched_tokens=20,
        target_pool=PoolConfig(blocks=24, block_size=4),
        draft_pool=PoolConfig(blocks=14, block_size=8),
    )
    rig = Watched(settings)
    rig.submit(
        *(
            request(
                n,
                [n, 2, 3] * 5,
                k=[4, None, 8, 0][n % 4],
                max_tokens=25,
                temperature=0.9,
                verifier=verifier,
                repetition_penalty=[1.0, 1.2][n % 2],
            )
            for n in range(1, 7)
        )
    )
    rig.step()
    rig.step()
    rig.cancel(2)
    rig.drain()
    assert rig.book.preemptions
    assert all(len(rig.outputs[n].tokens) == 25 for n in (1, 3, 4, 5, 6))


def test_a_row_of_another_token_is_not_counted():
    rig = Rig()
    rig.submit(request(1, (1, 2, 3, 4), k=3))
    plan, jobs = rig.plan()
    result, _ = rig.execute(plan, jobs)
    group = replace(plan.groups[0], draft=DeviceDraft(depth=3, rows=3, catch_up=1))
    outcome = replace(result.groups[0], outcomes=(None,) * 3, draft_written=(4, 9, 6))
    assert draft_rows_after(group, outcome, (1, 2, 3, 4, 5, 6, 7, 8)) == 4


# (draft rows before, drafts, published after T = 4) -> rows after.
LEDGERS = [
    (3, (5, 6, 7), (5, 6, 9), 6),
    (3, (5, 6, 7), (8,), 4),
    (3, (5, 6, 7), (5, 6, 7, 9), 6),
    (3, (5, 6, 7), (5,), 4),
    (0, (5,), (5, 9), 4),
    (0, (5,), (9,), 4),
]


@pytest.mark.parametrize(("before", "drafts", "emitted", "after"), LEDGERS)
def test_the_ledger_by_hand(before, drafts, emitted, after):
    rig = Rig()
    rig.submit(request(1, (1, 2, 3, 4), k=len(drafts)))
    work, jobs = rig.plan()
    result, _ = rig.execute(work, jobs)
    draft = DeviceDraft(depth=len(drafts), rows=before, catch_up=4 - before)
    group = replace(work.groups[0], draft=draft)
    outcome = replace(
        result.groups[0],
        outcomes=(None,) * len(drafts),
        draft_written=(1, 2, 3, 4)[before:] + drafts[:-1],
    )
    assert draft_rows_after(group, outcome, (1, 2, 3, 4, *emitted)) == after
