"""Faults of the ledger of acceptance and speed-ups. A table; runs nothing."""

from tests.prove.faults.killers import SPEEDUP_TESTS
from tests.prove.planting import fault

_SPEEDUP = "scheduler/speedup.py"
_LANDING = "scheduler/landing.py"

SPEEDUPS = (
    fault(
        "acceptance rates over rounds that never reached the position",
        "ledger with unreached rates",
        _SPEEDUP,
        ("found.append(kept / tested)", "found.append(kept / reached[0])"),
        f"{SPEEDUP_TESTS}::test_rates_over_rows_that_nobody_reached_give_another_number",
        f"{SPEEDUP_TESTS}::test_a_profile_from_counts_looks_only_at_rounds_that_reached",
    ),
    fault(
        "unreached positions reported as reached",
        "ledger with unreached rates",
        _LANDING,
        ("min(decision.accepted + 1, k)", "k"),
        "tests/scheduler/test_engine_stats.py::test_places_past_a_rejection_are_not_reached",
    ),
    fault(
        "committed tokens without the terminal",
        "without the terminal token",
        _SPEEDUP,
        (
            "return 1.0 + expected_accepted(_within_horizon(profile, horizon))",
            "return expected_accepted(_within_horizon(profile, horizon))",
        ),
        f"{SPEEDUP_TESTS}::test_laws_and_means_equal_the_enumeration",
        f"{SPEEDUP_TESTS}::test_worked_number",
    ),
    fault(
        "a negative cost passes",
        "with a negative cost",
        _SPEEDUP,
        ("if not 0.0 <= value < math.inf:", "if not -math.inf < value < math.inf:"),
        "tests/scheduler/test_speedup_refusals.py::test_a_bad_argument_is_named",
    ),
)
