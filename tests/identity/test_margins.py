"""The margin rule against the production choice: 0 where it is drawn, and never too large."""

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.sampling.draw import race
from scheduler.sampling.processors import filtered, row_settings
from tests.identity.margins import Law, margin, noise_of
from tests.oracles.teacher import shared_noise

VOCABULARY = 24
LAWS = st.builds(
    Law,
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    top_k=st.sampled_from([None, 1, 3, 10, VOCABULARY]),
    top_p=st.sampled_from([1.0, 0.4, 0.9, 0.99]),
    min_p=st.sampled_from([0.0, 0.02, 0.3]),
)


def chosen(logits, law, noise):
    """What production draws from float64 logits."""
    rows = row_settings(
        temperature=[law.temperature],
        top_k=[law.top_k],
        top_p=[law.top_p],
        min_p=[law.min_p],
        vocabulary=VOCABULARY,
        device=torch.device("cpu"),
    )
    gumbel = torch.zeros(1, VOCABULARY, dtype=torch.float64)
    if noise is not None:
        gumbel = torch.from_numpy(noise)[None]
    return int(race(filtered(torch.from_numpy(logits)[None], rows), gumbel))


def test_the_noise_is_that_of_the_published_key():
    for seed, position in ((0, 1), (12345, 77), (2**62 + 9, 300)):
        expected = shared_noise(seed, 0, position, 50).numpy()
        assert np.allclose(noise_of(seed, position, 50), expected, rtol=0, atol=1e-13)


@settings(max_examples=100, deadline=None)
@given(law=LAWS, seed=st.integers(0, 1 << 32))
def test_only_the_drawn_token_has_no_margin(law, seed):
    draw = np.random.default_rng(seed)
    logits, noise = draw.normal(size=VOCABULARY) * 2, draw.gumbel(size=VOCABULARY)
    margins = [margin(logits, law, noise, token) for token in range(VOCABULARY)]
    drawn = chosen(logits, law, noise)
    assert [token for token in range(VOCABULARY) if margins[token] == 0] == [drawn]


@settings(max_examples=100, deadline=None)
@given(law=LAWS, seed=st.integers(0, 1 << 32))
@example(law=Law(temperature=0.5, top_k=3, top_p=0.9), seed=1 << 32)  # comes in past top-k
@example(law=Law(temperature=1.7, top_k=3, top_p=0.4), seed=1219)  # passes another that was cut
@example(law=Law(temperature=0.5, top_k=3, top_p=0.4), seed=2051)  # the better one is passed, cut
def test_no_smaller_change_of_the_logits_draws_the_token(law, seed):
    draw = np.random.default_rng(seed)
    logits, noise = draw.normal(size=VOCABULARY) * 2, draw.gumbel(size=VOCABULARY)
    for _ in range(10):
        # Two logits differ by less than `width` more or less than they did.
        width = draw.choice([0.01, 0.1, 0.5, 1.0])
        moved = logits + draw.uniform(-width / 2, width / 2, size=VOCABULARY)
        token = chosen(moved, law, noise)
        assert margin(logits, law, noise, token) <= width


@settings(max_examples=60, deadline=None)
@given(law=LAWS, seed=st.integers(0, 1 << 32))
def test_a_near_tie_has_a_small_margin(law, seed):
    """So that the rule can pass: the token drawn on one side of a change has, on the other side,
    a margin that no bisection can make large."""
    draw = np.random.default_rng(seed)
    logits, noise = draw.normal(size=VOCABULARY) * 2, draw.gumbel(size=VOCABULARY)
    other = logits + draw.normal(size=VOCABULARY)
    first = chosen(logits, law, noise)
    if chosen(other, law, noise) == first:
        return
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        at = logits + middle * (other - logits)
        low, high = (middle, high) if chosen(at, law, noise) == first else (low, middle)
    before, after = (logits + x * (other - logits) for x in (low, high))
    assert margin(before, law, noise, chosen(after, law, noise)) < 1e-8


def test_at_temperature_0_the_margin_is_the_gap():
    logits = np.array([1.0, 3.0, 2.5, -1.0])
    found = [margin(logits, Law(temperature=0.0), None, token) for token in range(4)]
    assert found == [2.0, 0.0, 0.5, 4.0]
