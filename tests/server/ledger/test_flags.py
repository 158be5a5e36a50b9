"""Flags that cannot be meant, or do not go together, are refused by their names."""

import json
import math
from itertools import product

import pytest

from server.ledger.flags import LONGEST_TIME, SHORTEST_TIME

SIZES = ("--layers", "--kv-heads", "--head-dim", "--vocab")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--c 0.1", "one of the arguments --alpha --profile --from-metrics is required"),
        (
            "--alpha 0.5 --profile 0.5 --c 1",
            "argument --profile: not allowed with argument --alpha",
        ),
        ("--alpha 1.5 --c 0.1", "argument --alpha: 1.5 does not lie in 0 .. 1"),
        ("--alpha nan --c 0.1", "argument --alpha: 'nan' is not a finite number"),
        ("--profile 0.5,x --c 0.1", "argument --profile: 'x' is not a number"),
        ("--profile 0.5,-0.1 --c 0.1", "argument --profile: -0.1 does not lie"),
        (f"--profile {','.join(['1'] * 65)} --c 0", "argument --profile: more than 64 positions"),
        ("--alpha 0.5 --k 3..x --c 0", "argument --k: 'x' is not a whole number"),
        ("--alpha 0.5 --k 3..1 --c 0", "argument --k: 3..1 does not rise"),
        ("--alpha 0.5 --k 1,1 --c 0", "argument --k: 1,1 does not rise"),
        ("--alpha 0.5 --k 0..99999999999 --c 0", "argument --k: more than 64 drafts"),
        ("--profile 0.5,0.5 --k 3 --c 0", "argument --k: 3 is past the 2 positions"),
        ("--alpha 0.5", "argument --draft-ms: needed (or --c)"),
        ("--alpha 0.5 --draft-ms 1", "argument --verify-ms: needed"),
        ("--alpha 0.5 --draft-ms -1 --verify-ms 6", "argument --draft-ms: -1 is negative"),
        ("--alpha 0.5 --draft-ms 1 --verify-ms 0", "argument --verify-ms: 0 is not above 0"),
        ("--alpha 0.5 --draft-ms 1 --verify-ms 6+2", "argument --verify-ms: '6+2' is not of the"),
        (
            "--alpha 0.5 --k 0..2 --draft-ms 1 --verify-ms 6,7",
            "argument --verify-ms: 2 numbers for 3",
        ),
        ("--alpha 0.5 --k 1,2 --draft-ms 1 --verify-ms 6,7", "argument --baseline-ms: needed"),
        ("--alpha 0.5 --c 0.1 --baseline-ms 0", "argument --baseline-ms: 0 is not above 0"),
        ("--alpha 0.5 --c 0.1 --draft-ms 1", "argument --draft-ms: goes with no --c"),
        ("--alpha 0.5 --c 0.1 --other-ms 0", "argument --other-ms: goes with no --c"),
        ("--alpha 0.5 --draft-ms 1 --verify-ratio 1", "argument --verify-ratio: needs --c"),
        ("--alpha 0.5 --draft-ms 1 --other-ratio 1", "argument --other-ratio: needs --c"),
        ("--alpha 0.5 --c 0 --layers 2 --vocab 9", "argument --kv-heads: needed"),
        ("--alpha 0.5 --c 0 --vocab 0", "argument --vocab: must be at least 1"),
        ("--alpha 0.5 --c 0 --plot x.pdf", "argument --plot: 'x.pdf' ends neither"),
        (
            "--alpha 0.5 --c 0 --plot no/such/place.png",
            "argument --plot: cannot write no/such/place",
        ),
        ("--alpha 0.5 --c 0 --where policy=token", "argument --where: goes with --from-metrics"),
        ("--from-metrics x --where policy", "argument --where: 'policy' is not of the form"),
        ("--alpha 0.5 --draft-ms 1e308 --verify-ms 6", "argument --draft-ms: 1e308 does not lie"),
        ("--alpha 0.5 --draft-ms 1e-320 --verify-ms 6", "argument --draft-ms: 1e-320 does not lie"),
        ("--alpha 0.5 --draft-ms 1 --verify-ms 1e-320", "argument --verify-ms: 1e-320 does not"),
        ("--alpha 0.5 --draft-ms 1 --verify-ms 6+1e308k", "argument --verify-ms: 1e308 does not"),
        ("--alpha 0.5 --draft-ms 1 --verify-ms 6 --other-ms 1e308", "argument --other-ms: 1e308"),
        ("--alpha 0.5 --c 1e308", "argument --c: 1e308 does not lie in 1e-09 .. 1e+12"),
        ("--alpha 0.5 --c 0 --verify-ratio 1e308", "argument --verify-ratio: 1e308 does not lie"),
        ("--alpha 0.5 --c 0 --other-ratio 1e308", "argument --other-ratio: 1e308 does not lie"),
        ("--alpha 0.5 --c 0.1 --baseline-ms 1e-320", "argument --baseline-ms: 1e-320 does not"),
        *(
            (f"--alpha 0.5 --c 0 {flag} 1{'0' * 400}", f"argument {flag}: more than 1000000000")
            for flag in (*SIZES, "--kv-bytes", "--row-bytes")
        ),
        ("--alpha 0.5 --c 0 --drafts 2", "unrecognized arguments: --drafts 2"),
    ],
)
def test_a_bad_flag_is_named(refusal, arguments, words):
    assert words in refusal(arguments)


def _numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for each in value for number in _numbers(each)]
    return [value] if isinstance(value, float) else []


@pytest.mark.parametrize("costs", [*product((SHORTEST_TIME, LONGEST_TIME), repeat=4)])
@pytest.mark.parametrize("names", ["draft-ms verify-ms other-ms", "c verify-ratio other-ratio"])
def test_the_ends_of_all_ranges_give_finite_figures(ledger, costs, names):
    flags = zip([*names.split(), "baseline-ms"], costs, strict=True)
    given = " ".join(f"--{name} {cost}" for name, cost in flags)
    sizes = " ".join(f"{flag} 1000000000" for flag in (*SIZES, "--kv-bytes", "--row-bytes"))
    asked = f"--alpha 1 --k 0..64 {given} {sizes}"
    found = _numbers(json.loads(ledger(f"{asked} --json")))
    assert len(found) > 1000
    assert all(map(math.isfinite, found))
    assert "best: K = " in ledger(f"{asked} --law --sensitivity")
