"""Who runs, with how many rows and how many drafts."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.config import PoolConfig
from scheduler.errors import ConfigRefused, ContextOverflow, EngineBusy, RequestRefused
from scheduler.plan import DeviceDraft, HostDraft, Role
from scheduler.stats import CommitOutcome
from tests.oracles.rig import MODEL, NGRAM, NOISE, NONE, Rig, config, expected, request


def drafts(plan):
    """Draft lengths of a plan, by request."""
    found = {}
    for group in plan.groups:
        length = 0
        if isinstance(group.draft, HostDraft):
            length = len(group.draft.token_ids)
        elif group.draft is not None:
            length = group.draft.depth
        found[group.request] = length
    return found


def rows(plan):
    """Target rows of a plan, drafts left out, by request."""
    return {group.request: group.rows for group in plan.groups}


def decoding(rig, *requests):
    """Submit requests and run until each of them decodes."""
    rig.submit(*requests)
    while not all(rig.book.state(rig.book.entries[q.request_id]).decoding for q in requests):
        rig.step()


def pools(target, draft=64, **changes):
    return config(
        target_pool=PoolConfig(blocks=target, block_size=4),
        draft_pool=PoolConfig(blocks=draft, block_size=8),
        **changes,
    )


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "error", "field"),
    [
        (request(1, range(96)), ContextOverflow, "prompt"),
        (request(1, ()), RequestRefused, "prompt"),
        (request(1, max_tokens=0), RequestRefused, "max_tokens"),
    ],
)
def test_a_request_that_can_never_run_is_refused(asked, error, field):
    rig = Rig()
    with pytest.raises(error) as refusal:
        rig.submit(request(2), asked)
    assert refusal.value.field == field
    assert not rig.book.entries


def test_the_longest_prompt_gives_one_token():
    rig = Rig(config(max_batched_tokens=200))
    asked = request(1, [1, 2, 3] * 31 + [1, 2], max_tokens=50)
    assert rig.serve(asked) == [expected(asked)]
    assert len(rig.outputs[1].tokens) == 1


def test_a_full_queue_takes_none_of_a_batch():
    rig = Rig(config(max_waiting=1, max_requests=1))
    rig.submit(request(1))
    with pytest.raises(EngineBusy, match="1 requests wait and 0 run"):
        rig.submit(request(2), request(3))
    assert set(rig.book.entries) == {1}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_batched_tokens": 8}, "k_max=8"),
        ({"max_requests": 0}, "max_requests=0"),
        ({"k": 9}, "k=9"),
        ({"target_pool": PoolConfig(blocks=23, block_size=4)}, "max_model_len=96"),
    ],
)
def test_settings_that_cannot_work_are_named(changes, named):
    with pytest.raises(ConfigRefused, match=named):
        config(**changes)


# --- rows ----------------------------------------------------------------------------------------


def test_first_come_first_served_within_a_priority():
    rig = Rig(config(max_requests=2))
    rig.submit(
        request(1, arrival=3.0), request(2, arrival=2.0), request(3, arrival=9.0, priority=-1)
    )
    plan, _ = rig.plan()
    assert [group.request for group in plan.groups] == [3, 2]


def test_a_long_prompt_comes_in_chunks_and_emits_at_its_last():
    rig = Rig(config(max_batched_tokens=10))
    asked = request(1, [1, 2, 3] * 8, k=0, max_tokens=2)
    rig.submit(asked)
    seen = []
    while (work := rig.plan()) is not None:
        group = work[0].groups[0]
        seen.append((group.start, group.rows, group.emits))
        rig.land(work[1], *rig.execute(*work)[::-1])
    assert seen == [(0, 10, False), (10, 10, False), (20, 4, True), (24, 1, True)]
    assert rig.outputs[1].tokens == expected(asked)


def test_decoding_requests_go_before_a_prompt_and_keep_room_for_their_drafts():
    rig = Rig(config(max_batched_tokens=12))
    decoding(rig, request(1, (1, 2), k=4, max_tokens=30))
    rig.submit(request(2, [5] * 30, priority=-5))
    plan, _ = rig.plan()
    assert rows(plan) == {1: 1, 2: 7}
    assert drafts(plan) == {1: 4, 2: 0}


def test_no_more_requests_run_than_there_are_places():
    rig = Rig(config(max_requests=3))
    rig.submit(*(request(n) for n in range(1, 6)))
    assert len(rig.plan()[0].groups) == 3


def test_nobody_overtakes_a_prompt_that_does_not_fit():
    rig = Rig(pools(24))
    decoding(rig, request(1, [1] * 40, max_tokens=40, k=0))
    rig.submit(request(2, [2] * 90), request(3, (3,)))
    assert rows(rig.plan()[0]) == {1: 1}


def test_the_first_token_waits_for_no_draft():
    rig = Rig()
    rig.submit(request(1, (1, 2, 3)), request(2, (4,)))
    assert drafts(rig.plan()[0]) == {1: 0, 2: 4}


# --- draft lengths -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "length"),
    [
        ({"max_tokens": 30}, 4),
        ({"k": 0, "max_tokens": 30}, 0),
        ({"k": 7, "max_tokens": 30}, 7),
        ({"k": 99, "max_tokens": 30}, 8),
        ({"k": 8, "max_tokens": 4}, 2),
        ({"k": 8, "max_tokens": 2}, 0),
        ({"max_tokens": 30, "proposer": NONE}, 0),
    ],
)
def test_k_is_the_request_s_own_within_its_budget(asked, length):
    rig = Rig()
    decoding(rig, request(1, **asked))
    assert drafts(rig.plan()[0]) == {1: length}


def test_k_ends_at_the_context():
    rig = Rig(config(max_model_len=12, draft_max_len=96))
    decoding(rig, request(1, [1] * 8, k=8, max_tokens=50))
    # 9 tokens of 12: three more may come, the terminal is one of them.
    assert drafts(rig.plan()[0]) == {1: 2}


@pytest.mark.parametrize(("limit", "length"), [(96, 8), (14, 6), (9, 1), (8, 0), (4, 0)])
def test_k_ends_at_the_draft_s_own_context(limit, length):
    rig = Rig(config(draft_max_len=limit))
    decoding(rig, request(1, [1] * 8, k=8, max_tokens=50))
    plan, _ = rig.plan()
    # The last draft is never an input of the draft: T + K - 1 rows.
    assert drafts(plan) == {1: length}


def test_the_token_budget_cuts_all_drafts_alike():
    rig = Rig(config(max_batched_tokens=12))
    decoding(rig, *(request(n, (n,), k=8, max_tokens=40) for n in (1, 2, 3)))
    assert drafts(rig.plan()[0]) == {1: 3, 2: 3, 3: 3}


def test_short_host_drafts_leave_the_budget_to_others():
    rig = Rig(config(max_batched_tokens=12))
    short = request(1, (1, 2, 3), k=8, proposer=NGRAM, max_tokens=40)
    decoding(rig, short, request(2, (2,), k=8, max_tokens=40))
    entry = rig.book.entries[1]
    tokens = rig.book.state(entry).tokens
    looked_up = {1: (tokens[-1],)}

    class OneToken:
        kind = NGRAM

        def propose(self, view, k):
            return HostDraft(token_ids=looked_up[view.request])

        def release(self, request):
            pass

    rig.scheduler._drafts._proposers[NGRAM] = OneToken()
    assert drafts(rig.plan()[0]) == {1: 1, 2: 8}


def test_drafts_take_free_blocks_only():
    rig = Rig(pools(24, max_batched_tokens=100))
    decoding(
        rig, request(1, [1] * 43, k=8, max_tokens=50), request(2, [2] * 47, k=8, max_tokens=40)
    )
    plan, _ = rig.plan()
    # 44 + 48 tokens fill 11 + 12 of the 24 blocks: 4 rows are left for whoever comes first.
    assert drafts(plan) == {1: 4, 2: 0}
    assert rig.book.preemptions == 0


def test_without_blocks_for_the_draft_model_nothing_is_drafted():
    rig = Rig(pools(64, draft=1))
    decoding(rig, request(1, [1] * 4, k=8, max_tokens=40), request(2, [2] * 4, k=8, max_tokens=40))
    # 5 + 8 - 1 rows need two blocks of eight.
    assert drafts(rig.plan()[0]) == {1: 0, 2: 0}
    assert rig.book.tables.pool(Role.DRAFT).num_free == 1


def test_draft_rows_of_one_round_share_one_budget():
    rig = Rig(config(max_batched_tokens=24))
    decoding(rig, *(request(n, [n] * 12, k=0, max_tokens=40) for n in (1, 2, 3)))
    for number in (1, 2, 3):
        entry = rig.book.entries[number]
        entry.request = replace(entry.request, speculation=replace(entry.request.speculation, k=2))
    plan, jobs = rig.plan()
    taken = [g.draft.catch_up for g in plan.groups if isinstance(g.draft, DeviceDraft)]
    assert sum(taken) <= 24
    depths = drafts(plan)
    # The one that came last lags least.
    assert depths[3] == 2
    assert depths[1] == 0
    rig.land(jobs, *rig.execute(plan, jobs)[::-1])
    rig.drain()
    for number in (1, 2, 3):
        asked = request(number, [number] * 12, max_tokens=40)
        assert rig.outputs[number].tokens == expected(asked)


# --- blocks --------------------------------------------------------------------------------------


def test_the_request_served_last_yields_its_blocks_and_comes_back():
    rig = Rig(pools(24))
    asked = [
        request(n, [n] * 30, k=0, max_tokens=40, temperature=0.7, verifier=NOISE) for n in (1, 2, 3)
    ]
    assert rig.serve(*asked) == [expected(each) for each in asked]
    assert rig.book.preemptions > 0
    preempted = {g.request for plan in rig.plans for g in plan.groups if g.start == 0}
    assert preempted == {1, 2, 3}
    starts = [g.request for plan in rig.plans for g in plan.groups if g.start == 0]
    assert starts.count(1) == 1


@pytest.mark.parametrize("rounds", range(4))
def test_a_round_that_breaks_in_a_full_pool_stops_nobody(rounds):
    """48 tokens each fill the pool; the next round of either must take the other's blocks."""
    rig = Rig(pools(24, max_batched_tokens=100))
    asked = [request(n, [n] * 45, k=0, max_tokens=40) for n in (1, 2)]
    decoding(rig, *asked)
    for _ in range(rounds):
        rig.step()
    rig.fail(rig.plan()[0])
    rig.drain()
    assert [rig.outputs[n].tokens for n in (1, 2)] == [expected(each) for each in asked]
    assert rig.book.preemptions


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    ks=st.lists(st.sampled_from([None, 0, 2, 8]), min_size=8, max_size=8),
    budget=st.integers(9, 60),
    blocks=st.integers(24, 40),
)
def test_no_round_exceeds_the_token_budget(lengths, ks, budget, blocks):
    rig = Rig(pools(blocks, max_batched_tokens=budget))
    asked = [
        request(n, [n] * length, k=k, max_tokens=6)
        for n, (length, k) in enumerate(zip(lengths, ks, strict=False), 1)
    ]
    assert rig.serve(*asked) == [expected(each) for each in asked]
    for plan in rig.plans:
        assert sum(rows(plan).values()) + sum(drafts(plan).values()) <= budget
    assert all(g.outcome is CommitOutcome.PUBLISHED for each in rig.landed for g in each.groups)


def test_a_round_that_broke_is_tried_again_with_the_same_drafts():
    rig = Rig(config(max_batched_tokens=12))
    decoding(rig, *(request(n, (n,), k=8, max_tokens=40) for n in (1, 2)))
    plan, _ = rig.plan()
    before = {group.request: group for group in plan.groups}
    assert drafts(plan) == {1: 5, 2: 5}
    rig.fail(plan)
    for number in (1, 2):
        again, jobs = rig.plan()
        (group,) = again.groups
        assert group == before[number]
        assert again.round_id > plan.round_id
        rig.land(jobs, *rig.execute(again, jobs)[::-1])
    assert len(rig.plan()[0].groups) == 2


def test_drafts_of_the_model_and_of_the_text_share_a_round():
    rig = Rig()
    asked = [
        request(1, (1, 2, 3, 1, 2), proposer=NGRAM, max_tokens=20),
        request(2, (1, 2, 3, 1, 2), proposer=MODEL, max_tokens=20),
    ]
    assert rig.serve(*asked) == [expected(each) for each in asked]
