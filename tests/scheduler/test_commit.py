"""Decide, stage, publish: cuts, the record, its postconditions, draws, compare and swap."""

from dataclasses import replace

import pytest

from scheduler.commit import (
    CommitRecord,
    FaultPoint,
    Ledger,
    check_postconditions,
    decide,
    draws_consumed,
    stage,
)
from scheduler.errors import CommitRejected
from scheduler.lifecycle import Phase
from scheduler.plan import (
    DraftOutcome,
    Group,
    GroupResult,
    HostDraft,
    Layout,
    Role,
    TerminalKind,
)
from scheduler.request import FinishReason, Verifier
from scheduler.state import RngState, extend_history, initial_state, preempted
from scheduler.stats import CommitOutcome
from tests.oracles.rig import BLOCK, NOISE, TOKEN, Letters, request

PLAN = (7, Layout.REPLAY_FRONTIER, "digest")
PROMPT = (1, 4, 7, 9, 3, 12)
DRAFTS = (8, 6, 2)
SNAPSHOT = request(5, PROMPT, max_tokens=20, temperature=1.0)


def decoding(asked=SNAPSHOT, output=()):
    """A state that decodes, with some output already published."""
    state = initial_state(asked.prompt, RngState(seed=1, choice=0), asked.text.start())
    text = asked.text.stage(state.text, output, final=False).state
    tokens = asked.prompt + output
    return replace(state, tokens=tokens, kv_rows=len(tokens) - 1, text=text)


def verified(state, accepted, terminal, drafts=DRAFTS, **changes):
    """A runner's group and result: `drafts` of which `accepted` stand, then `terminal`."""
    outcome = {"target_prob": 0.5, "draft_prob": 0.5, "uniform": 0.1, "mass": 0.5, "base": 1.0}
    kind = TerminalKind.BONUS if accepted == len(drafts) else TerminalKind.CORRECTION
    group = Group(
        request=SNAPSHOT.request_id,
        generation=state.generation,
        tokens=state.tokens,
        prompt_length=state.prompt_length,
        start=state.kv_rows,
        rows=1,
        emits=True,
        max_emit=9,
        draft=HostDraft(token_ids=drafts) if drafts else None,
        blocks={Role.TARGET: (0, 1, 2)},
        sampling=SNAPSHOT.sampling,
        verifier=TOKEN,
        stop=SNAPSHOT.stop,
        choice=0,
    )
    result = GroupResult(
        request=group.request,
        generation=group.generation,
        written=state.tokens[-1:] + drafts,
        emitted=(*drafts[:accepted], terminal),
        accepted=accepted,
        terminal=kind if drafts else TerminalKind.PLAIN,
        outcomes=tuple(DraftOutcome(token=token, **outcome) for token in drafts),
        draft_written=(),
        logprobs=(),
    )
    return replace(group, **changes), result


def staged_snapshot(accepted=2, terminal=11, asked=SNAPSHOT, state=None):
    """The contract's snapshot, staged."""
    state = state or decoding(asked)
    group, result = verified(state, accepted, terminal)
    return state, stage(PLAN, group, state, asked, result)


# --- the cut -----------------------------------------------------------------------------------


def cut(accepted, terminal, *, output=(), drafts=DRAFTS, **rules):
    """The decision on one run under some stop rules."""
    asked = request(5, PROMPT, **{"max_tokens": 20, **rules})
    state = decoding(asked, output)
    _, result = verified(state, accepted, terminal, drafts)
    return decide(state, asked, result)


def test_a_run_without_a_stop_stays_whole():
    decision = cut(2, 11)
    assert decision.emitted == (8, 6, 11)
    assert (decision.accepted, decision.terminal) == (2, TerminalKind.CORRECTION)
    assert decision.ending is None
    assert decision.text.text == "igl"


def test_a_stop_id_inside_the_accepted_prefix_leaves_no_terminal():
    decision = cut(2, 11, token_ids=frozenset({8}))
    assert decision.emitted == (8,)
    assert (decision.accepted, decision.terminal) == (1, TerminalKind.STOP)
    assert (decision.ending.reason, decision.ending.stop) == (FinishReason.STOP, 8)


def test_a_stop_id_as_the_last_accepted_draft_drops_the_bonus():
    decision = cut(3, 11, token_ids=frozenset({2}))
    assert decision.emitted == (8, 6, 2)
    assert (decision.accepted, decision.terminal) == (3, TerminalKind.STOP)


@pytest.mark.parametrize(
    ("accepted", "kind"), [(2, TerminalKind.CORRECTION), (3, TerminalKind.BONUS)]
)
def test_an_eos_that_is_the_terminal_keeps_its_kind(accepted, kind):
    decision = cut(accepted, 11, token_ids=frozenset({11}))
    assert decision.emitted[-1] == 11
    assert (decision.accepted, decision.terminal) == (accepted, kind)
    assert decision.ending.stop == 11


def test_the_first_of_two_stop_ids_wins():
    assert cut(2, 11, token_ids=frozenset({6, 11})).ending.stop == 6


def test_a_stop_beyond_a_rejected_draft_is_nothing():
    assert cut(2, 11, token_ids=frozenset({2})).ending is None


def test_the_budget_cuts_and_says_length():
    decision = cut(2, 11, max_tokens=2)
    assert decision.emitted == (8, 6)
    assert (decision.accepted, decision.terminal) == (2, TerminalKind.STOP)
    assert (decision.ending.reason, decision.ending.stop) == (FinishReason.LENGTH, None)


def test_a_run_that_just_fills_the_budget_is_whole():
    decision = cut(2, 11, max_tokens=3)
    assert decision.emitted == (8, 6, 11)
    assert decision.terminal is TerminalKind.CORRECTION
    assert decision.ending.reason is FinishReason.LENGTH


def test_a_stop_on_the_last_token_of_the_budget_beats_the_cap():
    decision = cut(2, 11, max_tokens=2, token_ids=frozenset({6}))
    assert decision.ending.reason is FinishReason.STOP
    assert decision.emitted == (8, 6)


def test_a_stop_past_the_budget_does_not_count():
    decision = cut(2, 11, max_tokens=2, token_ids=frozenset({11}))
    assert decision.ending.reason is FinishReason.LENGTH


def test_the_budget_counts_what_is_out_already():
    assert cut(2, 11, output=(5, 5), max_tokens=4).emitted == (8, 6)


@pytest.mark.parametrize(("keeps", "text"), [(False, "i"), (True, "ig")])
def test_the_text_of_a_stop_id_is_hidden_unless_it_is_asked_for(keeps, text):
    decision = cut(2, 11, token_ids=frozenset({6}), include_stop=keeps)
    assert decision.emitted == (8, 6)
    assert decision.text.text == text


def test_a_stop_string_inside_a_run_cuts_tokens_and_text():
    decision = cut(3, 11, text=Letters(stops=("ig",)))
    assert decision.emitted == (8, 6)
    assert decision.text.text == ""
    assert (decision.accepted, decision.terminal) == (2, TerminalKind.STOP)
    assert (decision.ending.reason, decision.ending.stop) == (FinishReason.STOP, "ig")


def test_a_stop_string_may_begin_in_an_earlier_round():
    decision = cut(2, 11, output=(5,), text=Letters(stops=("fi",)))
    assert decision.emitted == (8,)
    assert decision.ending.stop == "fi"


def test_a_stop_string_beats_a_later_stop_id_and_the_cap():
    rules = {"token_ids": frozenset({11}), "max_tokens": 3, "text": Letters(stops=("g",))}
    decision = cut(2, 11, **rules)
    assert decision.emitted == (8, 6)
    assert decision.ending.stop == "g"


class Withholding(Letters):
    """Shows nothing until the end."""

    def stage(self, state, token_ids, *, final):
        whole = super().stage(state, token_ids, final=final)
        return replace(whole, text=whole.state if final else "")


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ({}, ""),
        ({"max_tokens": 4}, "fig"[:1] + "igl"),
        ({"token_ids": frozenset({11})}, "fig"),
    ],
)
def test_held_back_text_is_flushed_when_the_request_ends(rules, text):
    assert cut(2, 11, output=(5,), text=Withholding(), **rules).text.text == text


def test_a_prefill_chunk_decides_nothing():
    state = replace(decoding(), kv_rows=0)
    _, result = verified(state, 2, 11)
    decision = decide(state, SNAPSHOT, replace(result, terminal=None, emitted=(), accepted=0))
    assert (decision.emitted, decision.text, decision.ending) == ((), None, None)


# --- the record --------------------------------------------------------------------------------


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
    result = replace(
        result, written=(4, 7, 9), emitted=(), accepted=0, terminal=None, outcomes=()
    )
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


# --- draws -------------------------------------------------------------------------------------

# (verifier, greedy, drafts, accepted, cut by a stop) -> draws, from section 7 of the contract.
CONSUMED = [
    (TOKEN, False, 3, 0, False, 2),
    (TOKEN, False, 3, 2, False, 4),
    (TOKEN, False, 3, 3, False, 4),
    (TOKEN, False, 0, 0, False, 1),
    (TOKEN, False, 3, 2, True, 2),
    (BLOCK, False, 3, 0, False, 4),
    (BLOCK, False, 3, 3, False, 4),
    (BLOCK, False, 0, 0, False, 1),
    (NOISE, False, 3, 2, False, 3),
    (NOISE, False, 0, 0, False, 1),
    (NOISE, False, 3, 2, True, 2),
    (TOKEN, True, 3, 2, False, 0),
    (BLOCK, True, 3, 2, False, 0),
    (NOISE, True, 3, 2, False, 0),
]


@pytest.mark.parametrize(("verifier", "greedy", "k", "accepted", "stops", "draws"), CONSUMED)
def test_draws_of_a_published_round(verifier, greedy, k, accepted, stops, draws):
    stop = frozenset({DRAFTS[accepted - 1]}) if stops else frozenset()
    asked = request(5, PROMPT, max_tokens=20, token_ids=stop)
    state = decoding(asked)
    sampling = replace(SNAPSHOT.sampling, temperature=0.0 if greedy else 1.0)
    group, result = verified(
        state, accepted, 11, DRAFTS[:k], verifier=verifier, sampling=sampling
    )
    assert draws_consumed(group, result, decide(state, asked, result)) == draws
    staged = stage(PLAN, group, state, asked, result)
    assert staged.record.rng_after - staged.record.rng_before == draws


def test_every_verifier_is_in_the_table():
    assert {row[0] for row in CONSUMED} == set(Verifier)


# --- compare and swap --------------------------------------------------------------------------


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
