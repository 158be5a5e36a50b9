"""Two races on one noise: their closed-form law, and noise that leads to each outcome."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduler.sampling.draw import race
from scheduler.sampling.rng import CounterRandomness, noise_key
from tests.oracles.rows import CPU
from tests.oracles.rules import others, races

weights = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.7, 1.0]), min_size=2, max_size=5)


def laws(data):
    p = np.array(data.draw(weights))
    q = np.array(data.draw(st.permutations(p.tolist()) | st.just([1.0] * len(p))))
    assume(p.sum() > 0)
    return p / p.sum(), q / q.sum()


@settings(deadline=None)
@given(st.data())
def test_each_race_has_its_own_law_and_both_agree_as_often_as_they_must(data):
    p, q = laws(data)
    found = races(p, q)
    agreement = sum(chance for i, j, chance, *_ in found if i == j)
    for v in range(len(p)):
        assert sum(c for i, _, c, *_ in found if i == v) == pytest.approx(q[v], abs=1e-14)
        assert sum(c for _, j, c, *_ in found if j == v) == pytest.approx(p[v], abs=1e-14)
    both = np.flatnonzero((p > 0) & (q > 0)).tolist()
    with np.errstate(divide="ignore", invalid="ignore"):
        shared = sum(1 / np.fmax(p / p[i], q / q[i]).sum() for i in both)
    assert agreement == pytest.approx(shared, abs=1e-14)


@pytest.mark.parametrize("at", [1e-10, 0.5, 1.0 - 1e-10])
def test_the_product_races_as_each_outcome_says(at):
    p, q = np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.1, 0.3, 0.35, 0.25])
    for i, j, _, low, high in races(p, q):
        ratio = low + at / (1 - at) if np.isinf(high) else low + at * (high - low)
        least = others(p, q, i, j, ratio) / (1 - at)
        least[j], least[i] = ratio, 1.0
        noise = torch.from_numpy(-np.log(least)).expand(2, -1)
        kept = torch.from_numpy(np.stack([q, p])).log()
        assert race(kept, noise).tolist() == [i, j]


def test_outcomes_are_as_frequent_on_the_products_noise():
    p, q = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5])
    n = 40_000
    noise = CounterRandomness().gumbel([noise_key(3, 0, t) for t in range(n)], 3, CPU)
    drafts, choices = (race(torch.from_numpy(row).log().expand(n, 3), noise) for row in (q, p))
    counts = np.bincount((3 * drafts + choices).numpy(), minlength=9)
    expected = np.zeros(9)
    for i, j, chance, *_ in races(p, q):
        expected[3 * i + j] = n * chance
    seen = expected > 0
    assert counts[~seen].sum() == 0
    # With at most 8 degrees of freedom a chi-square exceeds 37.4 with probability 1e-5.
    assert ((counts - expected)[seen] ** 2 / expected[seen]).sum() < 37.4
