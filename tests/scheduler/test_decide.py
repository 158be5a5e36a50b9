"""Where a verified run is cut, and how many draws its published part used up."""

from dataclasses import replace

import pytest

from scheduler.commit import decide, draws_consumed, stage
from scheduler.plan import TerminalKind
from scheduler.request import FinishReason, Verifier
from tests.oracles.rig import BLOCK, NOISE, TOKEN, Letters, request
from tests.scheduler.staging import DRAFTS, PLAN, PROMPT, SNAPSHOT, decoding, verified


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
    group, result = verified(state, accepted, 11, DRAFTS[:k], verifier=verifier, sampling=sampling)
    assert draws_consumed(group, result, decide(state, asked, result)) == draws
    staged = stage(PLAN, group, state, asked, result)
    assert staged.record.rng_after - staged.record.rng_before == draws


def test_every_verifier_is_in_the_table():
    assert {row[0] for row in CONSUMED} == set(Verifier)
