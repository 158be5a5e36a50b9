"""Faults of the law that a row is drawn from. A table; runs nothing."""

from tests.prove.faults.killers import (
    CONTRACT_TESTS,
    DRAW_TESTS,
    FILTERED_LAW,
    LEDGER_TESTS,
    LOOKUP_LAW,
    ROW_TESTS,
)
from tests.prove.planting import fault

_VERIFY = "scheduler/sampling/verify.py"
_PROCESSORS = "scheduler/sampling/processors.py"
_LAWS = "scheduler/runtime/laws.py"
_DRAFTING = "scheduler/runtime/drafting.py"

_NEARLY_GREEDY = """greedy = [value < 0 for value in temperature]
    temperature = [max(value, 1e-5) for value in temperature]"""

ROW_RULES = (
    fault(
        "penalties counted once a run, not once a row",
        "penalties counted once a run",
        _LAWS,
        (
            "(places < own[:, None]).to(counts.dtype)",
            "(places < 0 * own[:, None]).to(counts.dtype)",
        ),
        FILTERED_LAW,
        LOOKUP_LAW,
    ),
    fault(
        "processor state of the round before",
        "stale processor",
        _LAWS,
        (
            "integers(group.tokens[group.prompt_length :], self._device)",
            "integers(group.tokens[group.prompt_length : -1], self._device)",
        ),
        FILTERED_LAW,
        LOOKUP_LAW,
        f"{LEDGER_TESTS}::test_every_kind_of_round_asks_for_the_right_prefixes",
    ),
    fault(
        "penalties count the very draft that the row judges",
        "",
        _LAWS,
        ("(places < own[:, None]).to(counts.dtype)", "(places <= own[:, None]).to(counts.dtype)"),
        FILTERED_LAW,
        LOOKUP_LAW,
    ),
    fault(
        "min_tokens counted at the start of the round",
        "",
        _LAWS,
        (
            "len(group.tokens) - group.prompt_length + offset",
            "len(group.tokens) - group.prompt_length",
        ),
        FILTERED_LAW,
    ),
    fault(
        "raw draft row as denominator",
        "raw draft row as denominator",
        _DRAFTING,
        ("_Proposal(ids=chosen, laws=rows,", "_Proposal(ids=chosen, laws=laws.to_law(logits),"),
        FILTERED_LAW,
        f"{CONTRACT_TESTS}::test_provenance_of_drafts[tables-replay_frontier]",
    ),
    fault(
        "drafts known beforehand verified as if half certain",
        "raw draft row as denominator",
        _VERIFY,
        ("rows.scatter_(1, ids[:, None], 1.0)", "rows.scatter_(1, ids[:, None], 0.5)"),
        LOOKUP_LAW,
        f"{CONTRACT_TESTS}::test_provenance_of_drafts[tables-replay_frontier]",
    ),
    fault(
        "ties at a top-k cut keep the highest ids",
        "",
        _PROCESSORS,
        (
            "tied & (tied.cumsum(dim=-1, dtype=torch.int32) <= room)",
            "tied & (tied.flip(-1).cumsum(dim=-1, dtype=torch.int32).flip(-1) <= room)",
        ),
        f"{ROW_TESTS}::test_ties_at_a_cut_keep_the_lowest_ids",
        f"{ROW_TESTS}::test_filters_equal_the_plain_reading",
    ),
    fault(
        "greedy ties go to the highest id",
        "",
        _PROCESSORS,
        (
            "torch.where(best, ids, vocabulary - 1).amin(dim=-1)",
            "torch.where(best, ids, 0).amax(dim=-1)",
        ),
        f"{ROW_TESTS}::test_greedy_choice_is_the_lowest_argmax",
        f"{DRAW_TESTS}::test_race_takes_the_lowest_of_equals",
    ),
    fault(
        "top-p ends one token late",
        "",
        _PROCESSORS,
        ("(sums[:, :-1] < needed)", "(sums[:, :-1] <= needed)"),
        f"{ROW_TESTS}::test_a_mass_that_is_reached_exactly_ends_the_run",
    ),
    fault(
        "temperature 0 as a softmax of a huge logit",
        "",
        _PROCESSORS,
        (
            "greedy = [value < GREEDY_BELOW for value in temperature]",
            _NEARLY_GREEDY,
        ),
        f"{ROW_TESTS}::test_greedy_rows_are_exact_one_hots_at_the_lowest_argmax",
    ),
)
