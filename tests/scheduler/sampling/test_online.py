"""A law from merged slices is the softmax, whatever the slices and the order."""

import math
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.sampling.online import merge, online_law, partial, probabilities
from scheduler.sampling.processors import filtered, law, row_settings
from tests.oracles.rows import CPU

NEVER = float("-inf")
NAN = float("nan")
INF = float("inf")
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
values = st.one_of(st.just(NEVER), st.floats(-80, 80))


def rows(data, least=1):
    width = data.draw(st.integers(least, 9))
    row = st.lists(values, min_size=width, max_size=width)
    return data.draw(st.lists(row, min_size=1, max_size=4))


@both_dtypes
@settings(deadline=None)
@given(st.data(), st.integers(1, 10))
def test_slices_of_any_width_give_the_softmax(dtype, data, width):
    kept = torch.tensor(rows(data), dtype=dtype)
    kept[:, 0] = 1.5
    found = online_law(width)(kept)
    assert found.dtype == dtype
    torch.testing.assert_close(found, law(kept), rtol=0, atol=4 * torch.finfo(dtype).eps)
    assert torch.equal(found == 0, law(kept) == 0)


def by_hand(row):
    """The softmax by the math module."""
    weights = [math.exp(value - max(row)) for value in row]
    return [weight / math.fsum(weights) for weight in weights]


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_merging_is_associative_and_takes_any_order(data):
    kept = torch.tensor(rows(data, least=3), dtype=torch.float64)
    kept[:, -1] = -2.0
    slices = kept.tensor_split(3, dim=1)
    expected = torch.tensor([by_hand(row) for row in kept.tolist()], dtype=torch.float64)
    for one, two, three in permutations(map(partial, slices)):
        for whole in (merge(merge(one, two), three), merge(one, merge(two, three))):
            found = torch.cat([probabilities(each, whole) for each in slices], dim=1)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-15)


@both_dtypes
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize(
    "row", [[NAN, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, NAN], [NEVER] * 4, [0.0, INF, 1.0, 2.0]]
)
def test_a_row_without_a_law_is_nan_and_disturbs_no_other(dtype, width, row):
    kept = torch.tensor([row, [0.0, NEVER, 1.0, 2.0]], dtype=dtype)
    found = online_law(width)(kept)
    assert found[0].isnan().all()
    torch.testing.assert_close(found[1], law(kept)[1])


@both_dtypes
@pytest.mark.parametrize("width", [1, 3, 5])
def test_a_greedy_row_stays_an_exact_one_hot(dtype, width):
    cold = row_settings(
        temperature=[0.0], top_k=[None], top_p=[1.0], min_p=[0.0], vocabulary=5, device=CPU
    )
    kept = filtered(torch.tensor([[3.0, 9.0, 9.0, -1.0, 2.0]], dtype=dtype), cold)
    assert online_law(width)(kept).tolist() == [[0.0, 1.0, 0.0, 0.0, 0.0]]


def test_large_values_do_not_overflow():
    kept = torch.tensor([[1e30, 1e30, -1e30, 0.0]])
    assert online_law(2)(kept).tolist() == [[0.5, 0.5, 0.0, 0.0]]
