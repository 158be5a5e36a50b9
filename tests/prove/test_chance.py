"""The statistics by themselves: closed forms, hand-made counts and simulated multinomials."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.prove.chance import Fit, adjusted, fit, least_seen, power, survival

LEVEL = 1e-3
positive = st.floats(1e-3, 300.0)


def poisson_tail(half, statistic):
    """Q(n, x) for a whole n: exp(-x) times the first n terms of exp(x)."""
    x = statistic / 2
    return math.fsum(math.exp(-x + k * math.log(x) - math.lgamma(k + 1)) for k in range(half))


@given(half=st.integers(1, 60), statistic=positive)
def test_survival_with_even_freedom_is_a_poisson_sum(half, statistic):
    # torch's series is good to about 1e-9 around the mean.
    expected = poisson_tail(half, statistic)
    assert survival(statistic, 2 * half) == pytest.approx(expected, rel=1e-7, abs=1e-300)


@given(statistic=positive)
def test_survival_with_freedom_one_is_a_normal_tail(statistic):
    expected = math.erfc(math.sqrt(statistic / 2))
    assert survival(statistic, 1) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize(
    ("statistic", "freedom", "chance"), [(18.307, 10, 0.05), (29.588, 10, 0.001), (0.0, 0, 1.0)]
)
def test_survival_as_printed_tables_have_it(statistic, freedom, chance):
    assert survival(statistic, freedom) == pytest.approx(chance, rel=1e-3)


def test_a_fit_by_hand():
    found = fit({"a": 30, "b": 50, "c": 20}, {"a": 0.25, "b": 0.5, "c": 0.25})
    assert found == Fit(texts=100, statistic=25 / 25 + 0 + 25 / 25, freedom=2)
    assert found.p_value == pytest.approx(math.exp(-1))


def test_small_cells_are_one():
    law = {"a": 0.02, "b": 0.03, "c": 0.049, "d": 0.901}
    # a and b expect 2 and 3 of 100: together just enough. c expects 4.9 and goes with them.
    found = fit({"a": 1, "b": 4, "d": 95}, law)
    assert found.freedom == 1
    assert found.statistic == pytest.approx((5 - 9.9) ** 2 / 9.9 + (95 - 90.1) ** 2 / 90.1)


def test_the_next_cell_joins_when_the_small_ones_are_too_few():
    found = fit({"a": 1, "b": 39, "c": 60}, {"a": 0.01, "b": 0.39, "c": 0.6})
    assert found == Fit(texts=100, statistic=0.0, freedom=1)


@pytest.mark.parametrize("law", [{"a": 1.0}, {"a": 1.0, "b": 0.0}, {"a": 0.5, "b": 0.5}])
def test_one_cell_says_nothing(law):
    found = fit({"a": 4}, law)
    assert (found.statistic, found.freedom, found.p_value) == (0.0, 0, 1.0)


def test_a_text_that_cannot_be_is_no_chance():
    for law in ({"a": 1.0}, {"a": 1.0, "b": 0.0}):
        assert fit({"a": 10**6, "b": 1}, law).p_value == 0.0


def test_no_texts_fit():
    assert fit({}, {"a": 0.5, "b": 0.5}).p_value == 1.0


def test_fits_add_up():
    both = Fit(texts=3, statistic=1.5, freedom=2) + Fit(texts=4, statistic=2.0, freedom=3)
    assert both == Fit(texts=7, statistic=3.5, freedom=5)


def test_holm_as_worked_by_hand():
    assert adjusted([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjusted([0.9, 0.8]) == [1.0, 1.0]


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20))
def test_holm_lies_between_the_plain_and_bonferronis(p_values):
    for plain, holm in zip(p_values, adjusted(p_values), strict=True):
        assert plain <= holm <= min(1.0, len(p_values) * plain)
    assert min(adjusted(p_values)) == min(1.0, len(p_values) * min(p_values))


def rejected(law, true, texts, repeats=4000):
    """How often a test of LEVEL rejects `law` when `true` is drawn from, and its freedom."""
    rng = np.random.default_rng(8)
    counts = rng.multinomial(texts, true, size=repeats)
    expected = dict(enumerate(law))
    fits = [fit(dict(enumerate(map(int, row))), expected) for row in counts]
    return sum(each.p_value <= LEVEL for each in fits) / repeats, fits[0].freedom


LAW = np.array([0.3, 0.25, 0.2, 0.15, 0.1])
# The least visible way to be off: every chance by the same share of itself.
EVEN = LAW * np.array([1, -1, 1, -1, 1])
EVEN -= LAW * EVEN.sum()


@pytest.mark.parametrize(("texts", "bias"), [(2000, 0.03), (2000, 0.05), (8000, 0.04)])
def test_the_power_is_what_simulated_counts_show(texts, bias):
    true = LAW + EVEN * bias / (np.abs(EVEN).sum() / 2)
    share, freedom = rejected(LAW, true, texts)
    claimed = power(bias, Fit(texts=texts, freedom=freedom), LEVEL)
    assert 0.1 < claimed < 1.0
    assert claimed < share + 4 * math.sqrt(share * (1 - share) / 4000) + 0.005
    assert share < claimed + 0.1


def test_other_ways_to_be_off_are_seen_more_often():
    true = LAW + np.array([0.0, 0.0, 0.0, -0.04, 0.04])
    share, freedom = rejected(LAW, true, 2000)
    assert share > power(0.04, Fit(texts=2000, freedom=freedom), LEVEL) + 0.2


def test_a_true_law_is_rejected_at_the_level():
    share, _ = rejected(LAW, LAW, 2000)
    assert share < LEVEL + 4 * math.sqrt(LEVEL / 4000)


def test_what_is_just_seen_has_the_power_asked_for():
    seen = Fit(texts=9000, freedom=20)
    bias = least_seen(seen, LEVEL)
    assert power(bias, seen, LEVEL) >= 0.99 > power(bias - 2e-4, seen, LEVEL)


def test_without_freedom_nothing_is_seen():
    assert power(0.5, Fit(texts=9000), LEVEL) == 0.0
    assert least_seen(Fit(texts=9000), LEVEL) == 1.0
