"""The retained layout: prefill keeps the last row, rounds start without a frontier, appends follow.

That both layouts give the same successors and the same laws is proven by enumeration elsewhere;
here are its rows, its bounds and what it refuses.
"""

from dataclasses import replace

import pytest

from scheduler.commit import CommitRejected, check_postconditions
from scheduler.config import PoolConfig
from scheduler.controller import FixedController
from scheduler.plan import Layout, TerminalKind
from scheduler.stats import CommitOutcome
from tests.oracles.rig import BLOCK, NGRAM, NOISE, TOKEN, Rig, config, expected, request

RETAINED = Layout.RETAINED_FRONTIER


def rig_of(**changes):
    return Rig(config(layout=RETAINED, **changes))


def rows(plan):
    """(rows, emits, retains) by request."""
    return {g.request: (g.rows, g.emits, g.retains) for g in plan.groups}


def advance(rig):
    """One round: its plan, its records and the states after it."""
    plan, jobs = rig.plan()
    result, staged = rig.execute(plan, jobs)
    rig.land(jobs, staged, result)
    return plan, [each.record for each in staged]


def test_a_request_prefills_retains_emits_and_appends():
    rig = rig_of(k=2)
    rig.submit(request(1, (1, 2, 3), temperature=0.0, max_tokens=9))
    state = lambda: rig.book.ledger.state(1)  # noqa: E731
    plan, (record,) = advance(rig)
    assert rows(plan) == {1: (3, False, True)}
    assert (record.emitted_token_ids, record.committed_kv_token_ids) == ((), (1, 2, 3))
    assert (state().retained, state().frontier, state().kv_rows) == (True, None, 3)
    plan, (record,) = advance(rig)
    assert rows(plan) == {1: (0, True, False)}
    assert plan.held == {1}
    assert record.terminal_kind is TerminalKind.PLAIN
    assert record.committed_kv_token_ids == ()
    (first,) = record.emitted_token_ids
    assert (state().frontier, state().kv_rows) == (first, 3)
    plan, (record,) = advance(rig)
    assert rows(plan) == {1: (1, False, True)}
    assert not plan.held
    assert record.committed_kv_token_ids == (first,)
    plan, (record,) = advance(rig)
    assert rows(plan) == {1: (0, True, False)}
    assert record.accepted_draft_count == len(record.committed_kv_token_ids)
    assert len(record.emitted_token_ids) == record.accepted_draft_count + 1


def test_a_round_without_drafts_asks_the_target_for_no_row():
    rig = rig_of(k=0)
    rig.submit(*(request(n, (n, 2), temperature=0.8, verifier=NOISE) for n in (1, 2)))
    rig.step()
    rig.target.calls.clear()
    plan, jobs = rig.plan()
    result, staged = rig.execute(plan, jobs)
    assert rig.target.calls == []
    assert (result.target_rows, result.logit_rows) == (0, 0)
    landed = rig.land(jobs, staged, result)
    assert [each.committed for each in landed.groups] == [1, 1]


def test_an_append_shares_the_call_of_other_requests_rounds():
    rig = rig_of()
    rig.submit(request(1, (1, 2), max_tokens=20))
    rig.step()
    rig.submit(request(2, (2, 3), max_tokens=20))
    shared = [plan for plan, _ in (advance(rig) for _ in range(6)) if len(plan.groups) == 2]
    assert any({g.emits for g in plan.groups} == {True, False} for plan in shared)


def test_an_append_keeps_its_own_row_in_a_call_that_it_shares():
    rig = rig_of(k=3)
    asked = [request(n, (n, 2), max_tokens=20, temperature=0.8, verifier=NOISE) for n in (1, 2, 3)]
    for each in asked:  # one after the other, so that appends meet drafts
        rig.submit(each)
        rig.step()
    rig.drain()
    assert any({(0, True), (1, False)} <= {(g.rows, g.emits) for g in p.groups} for p in rig.plans)
    assert [rig.outputs[n].tokens for n in (1, 2, 3)] == [expected(each) for each in asked]


def test_prompt_rows_are_counted_as_in_the_other_layout():
    counted = []
    for layout in Layout:
        rig = Rig(config(layout=layout, max_batched_tokens=9))
        rig.serve(request(1, [1, 2] * 11, max_tokens=6))
        counted.append(sum(g.prefilled for each in rig.landed for g in each.groups))
    assert counted == [21, 21]


def test_preemption_loses_the_row_and_no_token():
    pools = {"target_pool": PoolConfig(blocks=24, block_size=4), "max_batched_tokens": 40}
    asked = [
        request(n, [n] * 20, max_tokens=40, k=4, temperature=0.8, verifier=NOISE) for n in (1, 2, 3)
    ]
    rig = rig_of(**pools)
    assert rig.serve(*asked) == [expected(each) for each in asked]
    assert rig.book.preemptions > 0


def held_by(rig):
    return set(rig.runner._executor._retained._rows)


def test_the_row_of_a_preempted_request_is_dropped():
    rig = rig_of(target_pool=PoolConfig(blocks=24, block_size=4), max_batched_tokens=40)
    rig.submit(*(request(n, [n] * 20, max_tokens=40, k=4) for n in (1, 2, 3)))
    lost, before = set(), set()
    while (work := rig.plan()) is not None:
        plan, jobs = work
        states = rig.book.ledger.states.items()
        kept = {n for n, state in states if state.kv_rows == len(state.tokens)}
        lost |= before & {entry.request.request_id for entry in rig.book.waiting}
        result, staged = rig.execute(plan, jobs)
        before = held_by(rig)
        assert before == kept | {group.request for group in plan.groups if group.retains}
        rig.land(jobs, staged, result)
    assert lost


def test_rows_of_requests_that_are_gone_are_dropped_with_the_next_plan():
    rig = rig_of(k=1)
    rig.submit(*(request(n, (n, 1), max_tokens=20) for n in (1, 2)))
    rig.step()
    assert held_by(rig) == {1, 2}
    rig.cancel(1)
    rig.step()
    assert held_by(rig) <= {2}


def test_a_row_of_another_generation_is_refused_by_name():
    rig = rig_of()
    rig.submit(request(1))
    rig.step()
    plan, _ = rig.plan()
    (group,) = plan.groups
    for generation in (0, 2):
        stale = replace(plan, groups=(replace(group, generation=generation),))
        with pytest.raises(
            CommitRejected, match=f"retained row of generation 1, expected {generation}"
        ):
            rig.runner.run(stale)
    forgotten = replace(plan, held=frozenset())
    with pytest.raises(CommitRejected, match="retained row of generation None, expected 1"):
        rig.runner.run(forgotten)


def test_a_retained_round_may_only_start_without_a_frontier():
    rig = rig_of()
    rig.submit(request(1, temperature=0.0))
    rig.step()
    plan, jobs = rig.plan()
    _, (staged,) = rig.execute(plan, jobs)
    early = replace(jobs[0].state, kv_rows=2)
    with pytest.raises(CommitRejected, match="start"):
        check_postconditions(early, staged.record, staged.successor)


@pytest.mark.parametrize("layout", Layout)
def test_only_an_append_of_the_retained_layout_may_commit_the_frontier(layout):
    rig = rig_of()
    rig.submit(request(1))
    plan, jobs = rig.plan()
    _, (staged,) = rig.execute(plan, jobs)
    record = replace(staged.record, layout=layout)
    if layout is RETAINED:
        check_postconditions(jobs[0].state, record, staged.successor)
        return
    with pytest.raises(CommitRejected, match="kv_bound"):
        check_postconditions(jobs[0].state, record, staged.successor)


@pytest.mark.parametrize("verifier", [TOKEN, BLOCK, NOISE])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_texts_are_those_of_the_other_layout(verifier, temperature):
    """The same K sequence, so that token and block use the same draws."""
    asked = [
        request(n, [n, 5] * (n + 1), k=k, max_tokens=17, temperature=temperature, verifier=verifier)
        for n, k in ((1, 0), (2, 1), (3, 4), (4, 8))
    ]
    asked.append(request(5, (5, 6) * 9, proposer=NGRAM, temperature=temperature, verifier=verifier))
    one, other = (Rig(config(layout=layout)).serve(*asked) for layout in Layout)
    assert one == other


def test_a_broken_append_is_tried_again():
    rig = rig_of()
    asked = [request(n, (n, 4), max_tokens=12, temperature=0.9, verifier=NOISE) for n in (1, 2)]
    rig.submit(*asked)
    rig.step()
    rig.step()
    plan, _ = rig.plan()
    assert all(group.retains for group in plan.groups)
    landed = rig.fail(plan)
    assert {each.outcome for each in landed.groups} == {CommitOutcome.ABORTED}
    rig.drain()
    assert [rig.outputs[n].tokens for n in (1, 2)] == [expected(each) for each in asked]


def test_a_round_of_a_held_row_and_a_prefill_chunk():
    """No row of the call is scored: the only one that counts is held."""
    rig = rig_of(max_batched_tokens=9, k=0)
    first, second = request(1, (1, 2), max_tokens=6, k=0), request(2, [3] * 30, max_tokens=4)
    rig.submit(first)
    rig.step()
    rig.submit(second)
    plan, jobs = rig.plan()
    assert rows(plan) == {1: (0, True, False), 2: (9, False, False)}
    result, staged = rig.execute(plan, jobs)
    rig.land(jobs, staged, result)
    rig.drain()
    assert [rig.outputs[n].tokens for n in (1, 2)] == [expected(first), expected(second)]


def test_prefill_beside_plain_rounds_is_not_kept_back_for_drafts():
    """Also where the round before appended, and nothing was decided in it."""
    rig = Rig(
        config(layout=RETAINED, k=4, k_max=4, max_batched_tokens=8), controller=FixedController(0)
    )
    rig.submit(request(1, (1, 2, 3), max_tokens=9))
    while not rig.book.ledger.state(1).emitted:
        advance(rig)
    advance(rig)
    rig.submit(request(2, (1, 2, 3) * 3, max_tokens=9))
    plan, _ = advance(rig)
    assert rows(plan) == {1: (0, True, False), 2: (8, False, False)}
