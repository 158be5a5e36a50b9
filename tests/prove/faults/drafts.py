"""Faults of how drafts are made, chosen and kept. A table; runs nothing."""

from tests.prove.faults.killers import (
    BAD_ROW_LAW,
    COMMIT_TESTS,
    CONFIDENCE_TESTS,
    CONTRACT_TESTS,
    EARLY_LAW,
    FAULT_TESTS,
    LEDGER_TESTS,
    MACHINE,
    PADDED_TESTS,
    PLANNING_TESTS,
    PREFIXES,
    ROUND_TESTS,
)
from tests.prove.planting import fault

_DRAFTING = "scheduler/runtime/drafting.py"
_ROUND = "scheduler/runtime/round.py"
_COMMIT = "scheduler/commit.py"
_LANDING = "scheduler/landing.py"
_CHOICE = "scheduler/drafts.py"

DRAFTS = (
    fault(
        "draft row of another token counted in the draft ledger",
        "wrong-token K/V row",
        _LANDING,
        ("if rows >= limit or tokens[rows] != token:", "if rows >= limit:"),
        f"{LEDGER_TESTS}::test_a_row_of_another_token_is_not_counted",
    ),
    fault(
        "committed rows compared by length only",
        "wrong-token K/V row",
        _COMMIT,
        (
            '"kv_identity": record.committed_kv_token_ids == added',
            '"kv_identity": len(record.committed_kv_token_ids) == len(added)',
        ),
        f"{COMMIT_TESTS}::test_a_row_of_another_token_is_refused",
        f"{COMMIT_TESTS}::test_each_postcondition_is_named_when_it_breaks",
    ),
    fault(
        "draft cache believed complete when all drafts were accepted",
        "crop when A = K",
        _ROUND,
        (
            "tuple(drafts[: group.draft.depth][:-1])",
            "tuple(drafts[: group.draft.depth])",
        ),
        f"{LEDGER_TESTS}::test_lag_is_one_after_a_bonus",
        PREFIXES,
        f"{CONTRACT_TESTS}::test_rows_of_the_draft_are_the_tokens_it_read",
    ),
    fault(
        "drawn token dropped because its own q is low",
        "",
        _DRAFTING,
        (
            "sound=usable(kept), sure=sure)",
            "sound=usable(kept), sure=sure & (rows.gather(1, chosen[:, None])[:, 0] > 0.3))",
        ),
        EARLY_LAW,
        f"{CONFIDENCE_TESTS}::test_a_draft_ends_before_the_first_row_that_is_not_sure",
    ),
    fault(
        "tokens drawn before a bad draft row thrown away",
        "",
        _DRAFTING,
        (
            "(self.sound & self.sure).long().cumprod(dim=1).sum(dim=1)",
            "(self.sound & self.sure).long().cumprod(dim=1).sum(dim=1) * self.sound.all(dim=1)",
        ),
        BAD_ROW_LAW,
        f"{ROUND_TESTS}::test_a_bad_draft_row_keeps_the_tokens_before_it",
    ),
    fault(
        "retry of a broken round at another K",
        "",
        _CHOICE,
        (
            "                drafts[share.request] = draft\n",
            "                drafts[share.request] = _first(draft, _depth(draft) - 1)\n",
        ),
        f"{PLANNING_TESTS}::test_a_round_that_broke_is_tried_again_with_the_same_drafts",
        FAULT_TESTS,
    ),
    fault(
        "drafts up to the whole budget, no place for the terminal",
        "",
        _CHOICE,
        (
            "request.stop.max_tokens - share.state.emitted - 1)",
            "request.stop.max_tokens - share.state.emitted)",
        ),
        f"{PLANNING_TESTS}::test_k_is_the_request_s_own_within_its_budget",
        MACHINE,
    ),
    fault(
        "padded tail of the draft's vocabulary can be drawn",
        "",
        _DRAFTING,
        (
            "self._required().logits(hidden)[:, : self._vocabulary]",
            "self._required().logits(hidden)",
        ),
        PADDED_TESTS,
    ),
    fault(
        "padded tail of the target's vocabulary can be drawn",
        "",
        _ROUND,
        (
            "self._target.logits(hidden[needed])[:, : self._vocabulary]",
            "self._target.logits(hidden[needed])",
        ),
        PADDED_TESTS,
    ),
)
