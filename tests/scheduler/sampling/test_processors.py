"""Row laws against a plain-Python reading of the rules."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scheduler.sampling.processors import (
    add_bias,
    filtered,
    forbid,
    greedy_choice,
    law,
    penalise,
    row_settings,
    usable,
)
from tests.oracles.rows import CPU, Processing, survivors

NEVER = float("-inf")
NAN = float("nan")
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def settings_of(rows, vocabulary):
    return row_settings(
        temperature=[row.temperature for row in rows],
        top_k=[row.top_k for row in rows],
        top_p=[row.top_p for row in rows],
        min_p=[row.min_p for row in rows],
        vocabulary=vocabulary,
        device=CPU,
    )


def law_of(logits, *rows):
    return law(filtered(logits, settings_of(rows, logits.shape[1])))


# Values that tie often, and cuts that no sum of their masses meets.
values = st.sampled_from([-3.0, -1.0, 0.0, 0.5, 1.0, 4.0, NEVER])
chosen = st.builds(
    Processing,
    temperature=st.sampled_from([0.0, 1e-6, 0.5, 1.0, 1.7]),
    top_k=st.sampled_from([None, 1, 2, 3, 100]),
    top_p=st.sampled_from([1.0, 0.07, 0.37, 0.61, 0.93]),
    min_p=st.sampled_from([0.0, 0.013, 0.41, 0.97]),
)


@both_dtypes
@given(st.data())
def test_filters_equal_the_plain_reading(dtype, data):
    vocabulary = data.draw(st.integers(1, 9))
    row = st.lists(values, min_size=vocabulary, max_size=vocabulary).filter(
        lambda r: max(r) > NEVER
    )
    table = data.draw(st.lists(st.tuples(row, chosen), min_size=1, max_size=4))
    logits = torch.tensor([r for r, _ in table], dtype=dtype)
    before = logits.clone()
    found = law_of(logits, *[s for _, s in table])
    expected = np.stack([survivors(np.array(r), s) for r, s in table])
    assert found.dtype == dtype
    assert np.array_equal(found.numpy() > 0, expected > 0)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    assert torch.equal(logits, before)


@both_dtypes
@pytest.mark.parametrize(
    "row", [Processing(top_k=50), Processing(top_p=0.9), Processing(top_k=200, top_p=0.8)]
)
def test_filters_on_a_large_vocabulary(dtype, row):
    logits = torch.randn(6, 3000, dtype=torch.float64, generator=torch.manual_seed(1)) * 2
    logits = logits.round(decimals=1).to(dtype)
    found = law_of(logits, *[row] * 6)
    expected = np.stack([survivors(r, row) for r in logits.double().numpy()])
    assert np.array_equal(found.numpy() > 0, expected > 0)


@both_dtypes
def test_ties_at_a_cut_keep_the_lowest_ids(dtype):
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0, 1.0]], dtype=dtype)
    assert (law_of(logits, Processing(top_k=4))[0] > 0).tolist() == [1, 1, 1, 1, 0, 0]
    flat = torch.zeros(1, 10, dtype=dtype)
    assert (law_of(flat, Processing(top_p=0.35))[0] > 0).tolist() == [1] * 4 + [0] * 6


def test_top_p_is_the_smallest_set_that_reaches_the_mass():
    logits = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64).log()
    for mass, kept in [(0.0, 1), (0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3)]:
        assert (law_of(logits, Processing(top_p=mass)) > 0).sum() == kept


def test_a_mass_that_is_reached_exactly_ends_the_run():
    # Equal logits have equal weights, whose sums are exact.
    for vocabulary, mass, kept in [(4, 0.5, 2), (4, 0.75, 3), (8, 0.25, 2), (2, 0.5, 1)]:
        flat = torch.zeros(1, vocabulary, dtype=torch.float64)
        assert (law_of(flat, Processing(top_p=mass)) > 0).sum() == kept


def test_a_row_without_top_p_keeps_its_tail_beside_one_with_it():
    logits = torch.tensor([[0.0, -50.0, -60.0]] * 2)
    found = law_of(logits, Processing(), Processing(top_p=0.9))
    assert (found > 0).sum(-1).tolist() == [3, 1]


def test_top_p_counts_mass_after_each_rows_own_top_k():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]] * 2, dtype=torch.float64).log()
    # Of the top two, the first has 4/7: more than a half, though 0.4 alone is not.
    found = law_of(logits, Processing(top_k=2, top_p=0.5), Processing(top_k=3))
    assert (found > 0).sum(-1).tolist() == [1, 3]


def test_min_p_keeps_what_is_just_likely_enough():
    logits = torch.tensor([[2.0, 1.0, 2.0]])
    assert law_of(logits, Processing(min_p=1.0)).tolist() == [[0.5, 0.0, 0.5]]


def test_all_filters_off_is_a_softmax():
    logits = torch.randn(3, 7, generator=torch.manual_seed(2))
    assert torch.equal(law_of(logits, *[Processing()] * 3), torch.softmax(logits, -1))


@both_dtypes
def test_greedy_rows_are_exact_one_hots_at_the_lowest_argmax(dtype):
    logits = torch.tensor([[1e30, -5.0, 1e30], [-1e4, -1e4, -2e4], [1.0, 3.0, 2.0]], dtype=dtype)
    cold = Processing(temperature=0.0)
    assert law_of(logits, cold, cold, cold).tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 0]]
    mixed = law_of(logits, cold, cold, Processing())
    assert mixed[:2].tolist() == [[1, 0, 0], [1, 0, 0]]
    assert torch.equal(mixed[2], torch.softmax(logits[2], -1))


@given(st.lists(st.lists(values, min_size=5, max_size=5), min_size=1, max_size=4))
def test_greedy_choice_is_the_lowest_argmax(rows):
    expected = [row.index(max(row)) if max(row) > NEVER else 0 for row in rows]
    assert greedy_choice(torch.tensor(rows)).tolist() == expected


@pytest.mark.parametrize(
    "row",
    [
        Processing(),
        Processing(temperature=0.0),
        Processing(top_k=1),
        Processing(top_k=2),
        Processing(top_p=0.5),
        Processing(min_p=0.1),
    ],
)
@pytest.mark.parametrize("companion", [Processing(), Processing(temperature=0.0)])
@pytest.mark.parametrize(
    "bad", [[NAN, 1.0, 0.0], [1.0, 0.0, NAN], [NEVER, NEVER, NEVER], [float("inf"), 0.0, 0.0]]
)
def test_unusable_rows_stay_unusable_and_alone(row, companion, bad):
    logits = torch.tensor([bad, [1.0, 2.0, 0.5]])
    chosen_rows = settings_of([row, companion], 3)
    assert usable(logits).tolist() == [False, True]
    kept = filtered(logits, chosen_rows)
    assert usable(kept).tolist() == [False, True]
    assert usable(law(kept)).tolist() == [False, True]
    alone = law_of(logits[1:], companion)
    assert torch.equal(law(kept)[1:], alone)


def test_bias_and_masks_are_sparse_and_pure():
    logits = torch.ones(2, 3)
    found = add_bias(
        logits, torch.tensor([0, 1, 1]), torch.tensor([2, 0, 1]), torch.tensor([1.5, -100.0, 2.0])
    )
    assert found.tolist() == [[1.0, 1.0, 2.5], [-99.0, 3.0, 1.0]]
    masked = forbid(found, torch.tensor([1, 0]), torch.tensor([2, 0]))
    assert masked.tolist() == [[NEVER, 1.0, 2.5], [-99.0, 3.0, NEVER]]
    assert found.isfinite().all()
    assert (logits == 1).all()
    nothing = torch.tensor([], dtype=torch.int64)
    assert torch.equal(forbid(found, nothing, nothing), found)


def test_penalties():
    logits = torch.tensor([[2.0, -2.0, 2.0, -2.0, 1.0]] * 2)
    found = penalise(
        logits,
        torch.tensor([[1, 1, 0, 0, 0]] * 2),
        torch.tensor([[0, 3, 2, 0, 0]] * 2),
        torch.tensor([2.0, 1.0]),
        torch.tensor([0.5, 0.0]),
        torch.tensor([0.25, 0.0]),
    )
    assert found[0].tolist() == [1.0, -4.0 - 0.5 - 0.75, 1.0 - 0.5 - 0.5, -2.0, 1.0]
    assert torch.equal(found[1], logits[1])


def test_penalties_accept_masks_and_leave_forbidden_tokens_forbidden():
    logits = torch.tensor([[NEVER, 1.0]])
    one = torch.tensor([1.5])
    prompt = torch.tensor([[True, False]])
    found = penalise(logits, prompt, torch.tensor([[1, 0]]), one, one, one)
    assert found.tolist() == [[NEVER, 1.0]]
