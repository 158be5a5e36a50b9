"""Faults of how K is chosen. A table; runs nothing."""

from tests.prove.faults.killers import (
    ACCEPTANCE_TESTS,
    ALLOCATION_TESTS,
    BUDGET_TESTS,
    CONTROLLED_LIVES,
    CONTROLLED_TESTS,
)
from tests.prove.planting import fault

_BOOK = "scheduler/book.py"
_CHOICE = "scheduler/drafts.py"
_ENGINE = "scheduler/engine.py"
_GOODPUT = "scheduler/goodput.py"
_RESTING = "scheduler/resting.py"
_ACCEPTANCE = "scheduler/acceptance.py"
_PROBING = "scheduler/probing.py"
_ALLOCATION = "scheduler/allocation.py"

CONTROL = (
    fault(
        "a seed that two requests share is ignored by the controller",
        "",
        _GOODPUT,
        (
            "            elif each.shared_seed:\n",
            "            elif each.shared_seed and each.room < 0:\n",
        ),
        f"{CONTROLLED_TESTS}::"
        "test_requests_with_one_seed_are_not_drafted_for_but_their_neighbours_are",
    ),
    fault(
        "a request drafts freely again once its twin has ended",
        "",
        _BOOK,
        (
            "        twins.remove(entry)\n",
            "        twins.remove(entry)\n        for x in twins: x.shares_draws = False\n",
        ),
        f"{CONTROLLED_LIVES}::test_a_request_that_had_a_twin_keeps_the_mark",
        f"{CONTROLLED_LIVES}::test_the_law_of_each_of_two_requests_with_one_seed",
    ),
    fault(
        "draft rows go first to whoever lags most",
        "",
        _CHOICE,
        ("sorted(emitters, key=_lag)", "sorted(emitters, key=_lag, reverse=True)"),
        f"{CONTROLLED_TESTS}::"
        "test_a_request_with_much_to_catch_up_takes_no_drafts_from_its_neighbours",
    ),
    fault(
        "a decision tells the K that was wanted, not the one that was planned",
        "",
        _CHOICE,
        ("choices = {**decision.choices, **cut}", "choices = {**cut, **decision.choices}"),
        f"{CONTROLLED_TESTS}::test_a_decision_says_what_was_planned",
        f"{CONTROLLED_TESTS}::test_a_cut_for_rows_says_so",
    ),
    fault(
        "want of blocks is told as want of rows",
        "",
        _CHOICE,
        (
            "return draft, Reason.MEMORY if k < granted else Reason.ROWS",
            "return draft, Reason.ROWS",
        ),
        f"{BUDGET_TESTS}::test_a_cut_names_what_was_too_little_in_the_end",
    ),
    fault(
        "more drafts are chosen than a round has rows for",
        "",
        _ALLOCATION,
        ("    tried = slots[:rows]\n", "    tried = slots\n"),
        f"{BUDGET_TESTS}::test_within_the_rows_it_is_the_best_of_all",
        f"{BUDGET_TESTS}::test_no_decision_needs_more_rows_than_there_are",
    ),
    fault(
        "rows that do not go round go to the same requests always",
        "",
        "scheduler/sharing.py",
        ("            self._last = each\n", ""),
        "tests/scheduler/test_sharing.py::test_what_is_left_over_goes_round_in_turn",
        f"{BUDGET_TESTS}::test_a_fixed_k_is_cut_alike_for_all_and_no_request_is_always_last[10-13]",
    ),
    fault(
        "dozing never ends",
        "",
        _RESTING,
        ("        self._doze -= 1\n        return all", "        return all"),
        f"{CONTROLLED_TESTS}::test_a_doze_ends_although_the_load_stays",
    ),
    fault(
        "dozing goes on when the load falls",
        "",
        _RESTING,
        ("not self._doze or len(view.requests) < _FALLEN * len(last)", "not self._doze"),
        f"{CONTROLLED_TESTS}::test_a_fallen_load_ends_a_doze_at_once",
    ),
    fault(
        "the K that a request fixed is the controller's to choose",
        "",
        _GOODPUT,
        (
            "            if each.asked is not None:\n                fixed",
            "            if each.asked == 0:\n                fixed",
        ),
        f"{CONTROLLED_TESTS}::test_a_fixed_k_binds_its_own_request_only",
    ),
    fault(
        "probes are paid from a budget that nobody keeps",
        "",
        _PROBING,
        ("if seconds > self._credit:", "if seconds > self._credit + 1e9:"),
        f"{CONTROLLED_TESTS}::test_probes_cost_a_small_share_of_the_time",
    ),
    fault(
        "the pool learns from requests whose client chose the seed",
        "",
        _ACCEPTANCE,
        ("teaches=not own_seed)", "teaches=True)"),
        f"{ACCEPTANCE_TESTS}::test_a_request_of_a_chosen_seed_changes_no_bit_for_all_others",
    ),
    fault(
        "a position behind the first rejection counts as rejected",
        "",
        _ACCEPTANCE,
        (
            "zip(seen, mass, base, strict=True)",
            "zip((*seen, 1.0), (*mass, 0.0)[: len(self.mass)], (*base, 1.0))",
        ),
        f"{ACCEPTANCE_TESTS}::test_what_lies_behind_the_first_rejection_counts_nowhere",
    ),
    fault(
        "floors are ignored",
        "",
        _ALLOCATION,
        ("    start.take_all(candidates, floors)\n", "    floors = dict.fromkeys(floors, 0)\n"),
        f"{ALLOCATION_TESTS}::test_floors_are_kept_and_no_draft_is_longer_than_its_survivals",
    ),
    fault(
        "catching up is not charged",
        "",
        _ALLOCATION,
        ("self.drafting += candidate.wake", "self.drafting += 0.0"),
        f"{ALLOCATION_TESTS}::test_priced_is_the_sum_of_its_parts",
    ),
    fault(
        "controllers are shown the evidence of rounds",
        "",
        _ENGINE,
        ("self._controller.learn(without_evidence(stats))", "self._controller.learn(stats)"),
        "tests/scheduler/test_policy_interface.py::test_a_controller_learns_counts_and_no_draw",
    ),
)
