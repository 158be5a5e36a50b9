"""Draws by inverse sums and by race."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from scheduler.sampling.draw import inverse_cdf, race

both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
LAST = 1.0 - 2.0**-53


def drawn(row, *uniforms, dtype=torch.float64):
    rows = torch.tensor([row] * len(uniforms), dtype=dtype)
    return inverse_cdf(rows, torch.tensor(uniforms, dtype=torch.float64)).tolist()


def test_draws_follow_the_sums():
    assert drawn([0.25, 0.5, 0.25], 0.0, 0.2499, 0.25, 0.7499, 0.75, LAST) == [0, 0, 1, 1, 2, 2]


def test_weights_need_no_normalisation():
    assert drawn([1.0, 2.0, 1.0], 0.0, 0.2499, 0.25, 0.7499, 0.75, LAST) == [0, 0, 1, 1, 2, 2]


@both_dtypes
@given(
    st.lists(st.sampled_from([0.0, 0.0, 1e-30, 1e-12, 0.1, 0.7]), min_size=1, max_size=8),
    st.sampled_from([0.0, 2.0**-53, 0.5, 1 - 2.0**-24, LAST, 1.0, 1.5]),
)
def test_no_event_of_zero_weight(dtype, row, uniform):
    assume(sum(row) > 0)
    assert row[drawn(row, uniform, dtype=dtype)[0]] > 0


@given(st.integers(0, 10_000), st.integers(1, 300))
def test_equals_a_linear_scan(seed, vocabulary):
    rng = np.random.default_rng(seed)
    rows = rng.random((4, vocabulary)) * (rng.random((4, vocabulary)) < 0.5)
    rows[:, rng.integers(vocabulary)] = 0.3
    uniforms = rng.random(4)
    expected = []
    for row, u in zip(rows, uniforms, strict=True):
        sums = np.cumsum(row)
        expected.append(int(np.flatnonzero(sums > u * sums[-1])[0]))
    assert inverse_cdf(torch.from_numpy(rows), torch.from_numpy(uniforms)).tolist() == expected


def test_a_row_without_law_gives_a_valid_id_and_disturbs_no_other():
    rows = torch.tensor([[float("nan"), 0.5, 0.5], [0.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
    ids = inverse_cdf(rows, torch.tensor([0.6, 0.6, 0.6], dtype=torch.float64)).tolist()
    assert all(0 <= i < 3 for i in ids)
    assert ids[2] == 2


def test_race_takes_the_lowest_of_equals():
    noise = torch.zeros(2, 4, dtype=torch.float64)
    rows = torch.tensor([[0.0, 1.0, 1.0, 0.5], [2.0, 2.0, 2.0, 2.0]])
    assert race(rows, noise).tolist() == [1, 0]


def test_race_is_decided_in_float64():
    rows = torch.tensor([[1.0, 1.0]], dtype=torch.float32)
    noise = torch.tensor([[0.0, 1e-12]], dtype=torch.float64)
    assert race(rows, noise).item() == 1


def test_removed_tokens_never_win_a_race():
    rows = torch.tensor([[float("-inf"), -50.0, float("-inf")]])
    noise = torch.tensor([[36.0, -3.0, 36.0]], dtype=torch.float64)
    assert race(rows, noise).item() == 1
