"""Faults of which draw decides what. A table; runs nothing."""

from tests.prove.faults.killers import (
    CONTRACT_TESTS,
    DRAW_TESTS,
    ENUMERATED_LAW,
    ENUMERATION_TESTS,
    MACHINE,
    OWN_DRAWS,
    RNG_TESTS,
    ROUND_LAW,
)
from tests.prove.planting import fault

_RNG = "scheduler/sampling/rng.py"
_DRAW = "scheduler/sampling/draw.py"
_DRAWS = "scheduler/runtime/draws.py"

RANDOMNESS = (
    fault(
        "terminal reuses the first acceptance draw",
        "reused draw",
        _RNG,
        (
            "_round_key(seed, choice, Stream.TERMINAL,",
            "_round_key(seed, choice, Stream.ACCEPTANCE,",
        ),
        f"{ENUMERATION_TESTS}::test_fixed_length",
        OWN_DRAWS,
        f"{RNG_TESTS}::test_keys_of_a_round",
    ),
    fault(
        "one draw for all acceptance tests of a round",
        "reused draw",
        _RNG,
        (
            "Stream.ACCEPTANCE, position, i) for i in range(k))",
            "Stream.ACCEPTANCE, position, 0) for i in range(k))",
        ),
        ENUMERATED_LAW,
        OWN_DRAWS,
        f"{RNG_TESTS}::test_keys_of_a_round",
    ),
    fault(
        "draws of a round used again by the next one",
        "reused draw",
        _DRAWS,
        (
            "seed, base = group.sampling.seed, len(group.tokens)",
            "seed, base = group.sampling.seed, group.prompt_length",
        ),
        OWN_DRAWS,
        ROUND_LAW,
    ),
    fault(
        "choices of one request share their draws",
        "reused draw",
        _DRAWS,
        ("round_keys(seed, group.choice, base, depth)", "round_keys(seed, 0, base, depth)"),
        OWN_DRAWS,
    ),
    fault(
        "acceptance keyed by absolute position under block",
        "acceptance or proposal keyed by absolute position under block",
        _RNG,
        (
            "Stream.ACCEPTANCE, position, i) for i in range(k))",
            "Stream.ACCEPTANCE, position + i, 0) for i in range(k))",
        ),
        f"{ENUMERATION_TESTS}::test_fixed_length",
        OWN_DRAWS,
        f"{RNG_TESTS}::test_keys_of_a_round",
    ),
    fault(
        "proposal keyed by absolute position under block",
        "acceptance or proposal keyed by absolute position under block",
        _RNG,
        (
            "Stream.PROPOSAL, position, i) for i in range(k))",
            "Stream.PROPOSAL, position + i, 0) for i in range(k))",
        ),
        f"{ENUMERATION_TESTS}::test_fixed_length",
        OWN_DRAWS,
        f"{RNG_TESTS}::test_keys_of_a_round",
    ),
    fault(
        "shared noise keyed by the round and not by the position",
        "",
        _DRAWS,
        (
            "noise_key(group.sampling.seed, group.choice, base + offset)",
            "noise_key(group.sampling.seed, group.choice, base)",
        ),
        f"{CONTRACT_TESTS}::test_the_text_is_the_serial_one[tables-replay_frontier-kind1]",
        MACHINE,
    ),
    fault(
        "race on shared noise decided in float32",
        "",
        _DRAW,
        ("kept.to(torch.float64) + gumbel", "kept + gumbel.to(kept.dtype)"),
        f"{DRAW_TESTS}::test_race_is_decided_in_float64",
    ),
)
