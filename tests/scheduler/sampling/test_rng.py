"""Counter randomness equals its plain-integer definition and looks uniform."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scheduler.sampling.rng import CounterRandomness, DrawKey, Stream, noise_key, round_keys
from tests.oracles import splitmix

CPU = torch.device("cpu")
field = CounterRandomness()
int64 = st.integers(-(2**63), 2**63 - 1)
any_key = st.builds(
    DrawKey,
    seed=int64,
    choice=st.integers(0, 127),
    stream=st.sampled_from(Stream),
    position=st.integers(0, 2**40),
    offset=st.integers(0, 64),
)


def grid(seeds=(0, 1, -1, 2**63 - 1, -(2**63))):
    return [
        DrawKey(seed=seed, choice=choice, stream=stream, position=position, offset=offset)
        for seed in seeds
        for choice in (0, 1)
        for stream in Stream
        for position in range(1, 8)
        for offset in range(5)
    ]


def test_reference_is_the_published_generator():
    # First outputs of SplitMix64 from state 1234567, as Rosetta Code lists them.
    words = [splitmix.mix((1234567 + n * splitmix.GAMMA) & splitmix.MASK) for n in (1, 2, 3)]
    assert words == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.lists(any_key, max_size=6))
def test_uniforms_equal_the_reference(keys):
    found = field.uniforms(keys)
    assert found.dtype == torch.float64
    assert found.tolist() == [splitmix.uniform(key) for key in keys]


@given(st.lists(any_key, max_size=4), st.integers(1, 9))
def test_token_values_equal_the_reference(keys, vocabulary):
    found = field.open_uniforms(keys, vocabulary, CPU)
    assert found.shape == (len(keys), vocabulary)
    expected = [[splitmix.open_uniform(key, v) for v in range(vocabulary)] for key in keys]
    assert found.tolist() == expected


@given(any_key)
def test_gumbel_is_the_double_logarithm(key):
    found = field.gumbel([key], 5, CPU)[0].tolist()
    expected = [-math.log(-math.log(splitmix.open_uniform(key, v))) for v in range(5)]
    assert found == pytest.approx(expected, rel=1e-13)


def test_order_and_company_of_keys_do_not_matter():
    keys = grid()
    together = field.uniforms(keys).tolist()
    assert field.uniforms(keys[::-1]).tolist() == together[::-1]
    assert [field.uniforms([key]).item() for key in keys[:50]] == together[:50]


def test_every_field_separates():
    keys = grid()
    assert len(set(field.uniforms(keys).tolist())) == len(keys)
    assert len(torch.unique(field.open_uniforms(keys, 50, CPU))) == 50 * len(keys)


def test_a_field_outside_int64_is_refused():
    with pytest.raises(OverflowError):
        field.uniforms([noise_key(2**63, 0, 1)])


@pytest.mark.parametrize("word", [0, splitmix.MASK])
def test_extreme_bits_stay_inside_the_interval(word, monkeypatch):
    monkeypatch.setattr(
        "scheduler.sampling.rng._finalise", lambda words: words.fill_(word - (word >> 63 << 64))
    )
    found = field.open_uniforms([noise_key(1, 0, 1)], 1, CPU)
    assert 0.0 < found.item() < 1.0
    assert field.gumbel([noise_key(1, 0, 1)], 1, CPU).isfinite().all()


def test_largest_bits_stay_below_one(monkeypatch):
    monkeypatch.setattr(
        "scheduler.sampling.rng._finalised",
        lambda words: np.full_like(words, np.uint64(splitmix.MASK)),
    )
    assert field.uniforms([noise_key(1, 0, 1)]).item() == 1.0 - 2.0**-53


def chi_square(values, bins):
    counts = np.bincount((values * bins).astype(int), minlength=bins)
    expected = len(values) / bins
    return ((counts - expected) ** 2 / expected).sum()


# With 63 degrees of freedom a chi-square exceeds 125 with probability 5e-6.
LIMIT_63 = 125.0


@pytest.mark.parametrize("moving", ["seed", "position", "offset"])
def test_uniform_along_each_field(moving):
    start = {"seed": 3, "choice": 0, "stream": Stream.PROPOSAL, "position": 10, "offset": 0}
    keys = [DrawKey(**{**start, moving: n}) for n in range(20_000)]
    assert chi_square(field.uniforms(keys).numpy(), 64) < LIMIT_63


def test_uniform_over_tokens_and_positions():
    keys = [noise_key(3, 0, position) for position in range(40)]
    assert chi_square(field.open_uniforms(keys, 1000, CPU).flatten().numpy(), 64) < LIMIT_63


def test_neighbouring_draws_are_independent():
    keys = [round_keys(5, 0, position, 1) for position in range(20_000)]
    proposal = field.uniforms([p[0] for p, _, _ in keys]).numpy()
    test = field.uniforms([a[0] for _, a, _ in keys]).numpy()
    cell = np.floor(proposal * 8) + np.modf(test * 8)[1] * 8
    assert chi_square((cell + 0.5) / 64, 64) < LIMIT_63


def test_keys_of_a_round():
    proposal, tests, last = round_keys(-1, 2, 17, 3)
    assert [(key.stream, key.offset) for key in proposal] == [
        (Stream.PROPOSAL, i) for i in range(3)
    ]
    assert [(key.stream, key.offset) for key in tests] == [(Stream.ACCEPTANCE, i) for i in range(3)]
    assert (last.stream, last.offset) == (Stream.TERMINAL, 0)
    assert {(key.seed, key.choice, key.position) for key in (*proposal, *tests, last)} == {
        (-1, 2, 17)
    }
    assert round_keys(-1, 2, 17, 0)[:2] == ((), ())
    assert noise_key(-1, 2, 17) == DrawKey(
        seed=-1, choice=2, stream=Stream.NOISE, position=17, offset=0
    )
