"""Stage and publish: the record, its postconditions, compare and swap."""

from dataclasses import replace

import pytest

from scheduler.commit import CommitRecord, FaultPoint, Ledger, check_postconditions, stage
from scheduler.errors import CommitRejected, IllegalTransition
from scheduler.lifecycle import Phase
from scheduler.plan import Layout, TerminalKind
from scheduler.state import RngState, extend_history, preempted
from scheduler.stats import CommitOutcome
from tests.oracles.rig import request
from tests.scheduler.staging import (
    PLAN,
    PROMPT,
    SNAPSHOT,
    decoding,
    staged_snapshot,
    verified,
)


def test_the_snapshot_of_the_contract():
    state, staged = staged_snapshot()
    after = staged.successor
    assert (len(state.tokens), state.kv_rows) == (6, 5)
    assert after.tokens == (1, 4, 7, 9, 3, 12, 8, 6, 11)
    assert (len(after.tokens), after.kv_rows) == (9, 8)
    record = staged.record
    # Positions 5, 6, 7 hold the old frontier and the accepted drafts; position 8 is given up.
    assert record.committed_kv_token_ids == after.tokens[5:8] == (12, 8, 6)
    assert record.discarded_kv_token_ids == (2,)
    assert after.frontier == 11
    assert staged.phase is Phase.STAGED
    assert record == CommitRecord(
        request_id=5,
        round_id=7,
        expected_generation=0,
        layout=Layout.REPLAY_FRONTIER,
        accepted_draft_count=2,
        terminal_kind=TerminalKind.CORRECTION,
        emitted_token_ids=(8, 6, 11),
        committed_kv_token_ids=(12, 8, 6),
        discarded_kv_token_ids=(2,),
        rng_before=0,
        rng_after=4,
        processor_before=state.history,
        processor_after=extend_history(state.history, (8, 6, 11)),
        digest="digest",
    )


def test_a_bonus_leaves_no_discarded_row():
    _, staged = staged_snapshot(accepted=3)
    assert staged.record.committed_kv_token_ids == (12, 8, 6, 2)
    assert staged.record.discarded_kv_token_ids == ()
    assert staged.successor.kv_rows == len(staged.successor.tokens) - 1


def test_rows_past_a_stop_are_discarded():
    asked = request(5, PROMPT, max_tokens=20, token_ids=frozenset({8}))
    _, staged = staged_snapshot(accepted=3, asked=asked)
    assert staged.record.committed_kv_token_ids == (12,)
    assert staged.record.discarded_kv_token_ids == (8, 6, 2)


def test_a_prefill_chunk_commits_its_rows_and_nothing_else():
    state = replace(decoding(), kv_rows=1)
    group, result = verified(state, 2, 11, emits=False, start=1, rows=3)
    result = replace(result, written=(4, 7, 9), emitted=(), accepted=0, terminal=None, outcomes=())
    staged = stage(PLAN, group, state, SNAPSHOT, result)
    assert (staged.successor.kv_rows, staged.successor.tokens) == (4, state.tokens)
    assert staged.successor.history == state.history
    assert staged.successor.generation == 1
    assert staged.record.rng_after == staged.record.rng_before


@pytest.mark.parametrize("written", [(12, 8, 2, 6), (11, 8, 6, 2), (12, 8)])
def test_a_row_of_another_token_is_refused(written):
    state = decoding()
    group, result = verified(state, 2, 11)
    with pytest.raises(CommitRejected, match="kv_identity"):
        stage(PLAN, group, state, SNAPSHOT, replace(result, written=written))


@pytest.mark.parametrize("field", ["request", "generation"])
def test_a_result_for_someone_else_is_refused_by_name(field):
    state = decoding()
    group, result = verified(state, 2, 11)
    with pytest.raises(CommitRejected, match=f"{field} 99"):
        stage(PLAN, group, state, SNAPSHOT, replace(result, **{field: 99}))


BREAKS = {
    "output": lambda r, s: (r, replace(s, tokens=(*s.tokens[:-1], 13))),
    "kv_identity": lambda r, s: (replace(r, committed_kv_token_ids=(12, 8, 2)), s),
    "kv_rows": lambda r, s: (r, replace(s, kv_rows=len(s.tokens) + 3)),
    "frontier": lambda r, s: (
        replace(r, committed_kv_token_ids=(12, 8)),
        replace(s, kv_rows=s.kv_rows - 1),
    ),
    "kv_bound": lambda r, s: (
        replace(r, committed_kv_token_ids=(12, 8, 6, 11)),
        replace(s, kv_rows=len(s.tokens)),
    ),
    "accepted": lambda r, s: (replace(r, accepted_draft_count=4), s),
    "generation": lambda r, s: (r, replace(s, generation=2)),
    "expected_generation": lambda r, s: (replace(r, expected_generation=1), s),
    "rng_before": lambda r, s: (replace(r, rng_before=1), s),
    "rng_after": lambda r, s: (replace(r, rng_after=3), s),
    "rng_identity": lambda r, s: (r, replace(s, rng=replace(s.rng, seed=2))),
    "processor_before": lambda r, s: (replace(r, processor_before="00"), s),
    "processor_after": lambda r, s: (replace(r, processor_after="00"), s),
}


@pytest.mark.parametrize("name", BREAKS)
def test_each_postcondition_is_named_when_it_breaks(name):
    state, staged = staged_snapshot()
    check_postconditions(state, staged.record, staged.successor)
    record, successor = BREAKS[name](staged.record, staged.successor)
    with pytest.raises(CommitRejected, match=rf"request 5: .*\b{name}\b"):
        check_postconditions(state, record, successor)


def opened(state, fault=None):
    ledger = Ledger() if fault is None else Ledger(fault)
    ledger.open(5, state)
    return ledger


def test_publication_swaps_the_whole_state():
    state, staged = staged_snapshot()
    ledger = opened(state)
    assert ledger.publish(staged) is CommitOutcome.PUBLISHED
    assert ledger.state(5) == staged.successor
    assert ledger.has_published(staged.record)


# A record of another generation is stale before anything is compared.
@pytest.mark.parametrize("name", sorted(BREAKS.keys() - {"expected_generation"}))
def test_records_other_than_those_that_were_checked_are_checked_again(name):
    state, staged = staged_snapshot()
    ledger = opened(state)
    record, successor = BREAKS[name](staged.record, staged.successor)
    with pytest.raises(CommitRejected, match=rf"request 5: .*\b{name}\b"):
        ledger.publish(replace(staged, record=record, successor=successor))
    assert ledger.state(5) is state


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("output", {"tokens": (2, *PROMPT[1:])}),
        ("rng_before", {"rng": RngState(seed=1, choice=0, consumed=1)}),
        ("processor_before", {"history": "00"}),
        ("kv_identity", {"kv_rows": 4}),
    ],
)
def test_a_state_other_than_the_one_that_was_checked_is_checked_again(name, change):
    """Though its generation is the same."""
    state, staged = staged_snapshot()
    ledger = opened(replace(state, **change))
    with pytest.raises(CommitRejected, match=rf"\b{name}\b"):
        ledger.publish(staged)
    assert ledger.state(5) == replace(state, **change)


def test_the_records_that_were_checked_are_not_checked_again(monkeypatch):
    state, staged = staged_snapshot()
    ledger = opened(state)
    checks = []
    monkeypatch.setattr("scheduler.commit.check_postconditions", lambda *_: checks.append(1))
    assert ledger.publish(staged) is CommitOutcome.PUBLISHED
    assert not checks


def test_a_successor_keeps_what_a_round_does_not_move():
    state = replace(
        decoding(), prompt_length=4, rng=RngState(seed=8, choice=3, consumed=5), generation=6
    )
    _, staged = staged_snapshot(state=state)
    after = staged.successor
    moved = {name: getattr(after, name) for name in ("tokens", "kv_rows", "text", "history")}
    rng = replace(state.rng, consumed=after.rng.consumed)
    assert after == replace(state, **moved, rng=rng, generation=7)


def test_the_same_round_twice_appends_nothing():
    state, staged = staged_snapshot()
    ledger = opened(state)
    ledger.publish(staged)
    assert ledger.publish(staged) is CommitOutcome.REPLAYED
    assert ledger.state(5) is staged.successor


def test_two_rounds_of_one_generation_publish_once():
    state, staged = staged_snapshot()
    _, rival = staged_snapshot(accepted=1, terminal=9, state=state)
    rival = replace(rival, record=replace(rival.record, round_id=8))
    ledger = opened(state)
    ledger.publish(staged)
    assert ledger.publish(rival) is CommitOutcome.STALE
    assert ledger.state(5) is staged.successor
    assert not ledger.has_published(rival.record)


def test_a_round_from_before_a_preemption_is_stale():
    state, staged = staged_snapshot()
    ledger = opened(state)
    ledger.replace(5, preempted(state))
    assert ledger.publish(staged) is CommitOutcome.STALE
    assert ledger.state(5) == replace(state, kv_rows=0, generation=1)


def test_a_round_of_a_closed_request_is_stale():
    state, staged = staged_snapshot()
    ledger = opened(state)
    ledger.close(5)
    assert ledger.publish(staged) is CommitOutcome.STALE
    assert ledger.state(5) is None
    assert not ledger.states


def test_a_published_round_cannot_be_aborted():
    state, staged = staged_snapshot()
    ledger = opened(state)
    assert ledger.phase(5, 7) is Phase.READY
    ledger.publish(staged)
    with pytest.raises(IllegalTransition, match="from PUBLISHED to ABORTED"):
        ledger.abort(5, 7)
    assert ledger.phase(5, 7) is Phase.PUBLISHED
    assert ledger.publish(staged) is CommitOutcome.REPLAYED


def test_an_aborted_round_stays_so():
    """However often it is said, and of whatever round before it."""
    state, staged = staged_snapshot()
    ledger = opened(state)
    for number in (7, 7, 6):
        ledger.abort(5, number)
        assert ledger.phase(5, 7) is ledger.phase(5, 6) is Phase.ABORTED
        assert ledger.phase(5, 8) is Phase.READY
    assert ledger.publish(staged) is CommitOutcome.STALE
    assert ledger.state(5) is state


def test_an_id_is_opened_once():
    ledger = opened(decoding())
    with pytest.raises(CommitRejected, match="open already"):
        ledger.open(5, decoding())


def test_a_round_that_was_not_staged_cannot_be_published():
    state, staged = staged_snapshot()
    ledger = opened(state)
    with pytest.raises(Exception, match="from DECIDED to PUBLISHED"):
        ledger.publish(replace(staged, phase=Phase.DECIDED))
    assert ledger.state(5) is state


def test_a_successor_that_breaks_a_postcondition_is_not_published():
    state, staged = staged_snapshot()
    ledger = opened(state)
    broken = replace(staged, successor=replace(staged.successor, kv_rows=7))
    with pytest.raises(CommitRejected):
        ledger.publish(broken)
    assert ledger.state(5) is state


@pytest.mark.parametrize(
    "change", [{"tokens": PROMPT[:3]}, {"rng": RngState(seed=2, choice=0)}, {"generation": 2}]
)
def test_a_preemption_may_only_drop_rows(change):
    state = decoding()
    ledger = opened(state)
    with pytest.raises(CommitRejected, match="only drop"):
        ledger.replace(5, replace(preempted(state), **change))
    assert ledger.state(5) is state


@pytest.mark.parametrize("point", FaultPoint)
def test_a_fault_leaves_the_old_state_or_the_new_one(point):
    def fault(where, _request):
        if where is point:
            raise RuntimeError(point.value)

    state = decoding()
    ledger = opened(state, fault)
    group, result = verified(state, 2, 11)
    with pytest.raises(RuntimeError, match=point.value):
        ledger.publish(stage(PLAN, group, state, SNAPSHOT, result, fault))
    staged = stage(PLAN, group, state, SNAPSHOT, result)
    published = point is FaultPoint.AFTER_PUBLICATION
    assert ledger.state(5) == (staged.successor if published else state)
    assert ledger.has_published(staged.record) is published
    if published:
        assert ledger.publish(staged) is CommitOutcome.REPLAYED
