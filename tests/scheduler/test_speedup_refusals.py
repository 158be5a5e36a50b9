"""Every argument of the closed forms that cannot be meant is refused, by its name."""

import math

import pytest

from scheduler.speedup import (
    acceptance_mass,
    accepted_law,
    best_k,
    block_expected_accepted,
    break_even_acceptance,
    committed_law,
    expected_committed,
    goodput,
    iid_profile,
    kv_row_bytes,
    marginal_gain,
    reach_profile,
    round_bytes,
    round_time,
    speedup,
    survivals,
    verify_line,
)

NAN = math.nan
REFUSED = [
    ("alpha", lambda: iid_profile(1.01, 2)),
    ("alpha", lambda: iid_profile(NAN, 2)),
    ("k", lambda: iid_profile(0.5, -1)),
    (r"profile\[1\]", lambda: survivals((0.5, -0.1))),
    (r"profile\[0\]", lambda: expected_committed((NAN,))),
    (r"profile\[0\]", lambda: accepted_law((2,))),
    ("horizon", lambda: expected_committed((0.5,), 0)),
    ("horizon", lambda: committed_law((0.5,), 0)),
    (r"accepted\[1\]", lambda: reach_profile((3, 2), (2, 3))),
    (r"accepted\[0\]", lambda: reach_profile((3,), (-1,))),
    ("accepted has 1", lambda: reach_profile((3, 1), (3,))),
    ("q has 1", lambda: acceptance_mass((0.5, 0.5), (1.0,))),
    ("p must sum", lambda: acceptance_mass((0.5, 0.4), (0.5, 0.5))),
    (r"q\[0\]", lambda: block_expected_accepted((0.5, 0.5), (-0.5, 1.5), 2)),
    ("k = 21", lambda: block_expected_accepted((0.5, 0.5), (0.5, 0.5), 21)),
    ("draft", lambda: round_time(1, draft=-1.0, verify=1.0)),
    ("verify", lambda: round_time(1, draft=1.0, verify=math.inf)),
    ("other", lambda: round_time(1, draft=1.0, verify=1.0, other=NAN)),
    ("k", lambda: round_time(-1, draft=1.0, verify=1.0)),
    ("base", lambda: verify_line(-1.0, 0.0, 1)),
    ("slope", lambda: verify_line(1.0, -0.1, 1)),
    ("time", lambda: goodput((), 0.0)),
    ("time", lambda: speedup((), 0.0, 1.0)),
    ("plain", lambda: speedup((), 1.0, -1.0)),
    ("time", lambda: break_even_acceptance(1, NAN, 1.0)),
    ("plain", lambda: break_even_acceptance(1, 1.0, 0.0)),
    ("times needs", lambda: best_k((0.5,), {1: 1.0})),
    ("times must", lambda: best_k((0.5,), {0: 1.0, -1: 1.0})),
    ("times has K = 2", lambda: best_k((0.5,), {0: 1.0, 2: 1.0})),
    ("added_tokens", lambda: marginal_gain(-0.1, 1.0, 1.0)),
    ("added_time", lambda: marginal_gain(0.1, math.inf, 1.0)),
    ("rate", lambda: marginal_gain(0.1, 1.0, -1.0)),
    ("layers", lambda: kv_row_bytes(-1, 1, 1, 1)),
    ("vocabulary", lambda: round_bytes((), row_bytes=1, vocabulary=-1)),
]


@pytest.mark.parametrize(("words", "call"), REFUSED)
def test_a_bad_argument_is_named(words, call):
    with pytest.raises(ValueError, match=rf"^{words}"):
        call()
