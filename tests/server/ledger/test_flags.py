"""Flags that cannot be meant, or do not go together, are refused by their names."""

import pytest


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
        ("--alpha 0.5 --c 0 --drafts 2", "unrecognized arguments: --drafts 2"),
    ],
)
def test_a_bad_flag_is_named(refusal, arguments, words):
    assert words in refusal(arguments)
