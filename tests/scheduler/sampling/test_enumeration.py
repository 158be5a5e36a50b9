"""The joint law of whole rounds equals the serial law, by exact enumeration (contract 11.1)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles.enumeration import Enumeration, deviation
from tests.oracles.rows import Processing, Table, constant_logits, random_logits
from tests.oracles.scenario import Case, Policy, scenario

EXACT = 1e-12
# Next to both ends of every interval: there a wrong decision shows, and a slightly wrong law too.
anywhere = pytest.mark.parametrize("at", [1e-10, 1.0 - 1e-10])
both_rules = pytest.mark.parametrize("rule", ["token", "block"])


def fixed(k):
    return Policy(length=lambda _r, _tokens, _trace: k)


def within_budget(k, horizon, prompt=1):
    """K never exceeds the remaining budget minus one."""
    return Policy(length=lambda _r, tokens, _trace: min(k, horizon - (len(tokens) - prompt) - 1))


def case(vocabulary, *, seed=0, on_target=None, on_draft=None, prompt=(0,), **kwargs):
    def table(which, chosen):
        logits = random_logits(1000 * seed + which, vocabulary)
        return Table(logits, prompt_length=len(prompt), settings=chosen)

    return Case(target=table(1, on_target), draft=table(2, on_draft), prompt=prompt, **kwargs)


def assert_exact(setting):
    found = deviation(setting)
    assert found.largest <= EXACT, found


@anywhere
@both_rules
@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_fixed_length(rule, k, at):
    assert_exact(scenario(case(2, seed=k), rule=rule, policy=fixed(k), rounds=3, horizon=5, at=at))


@anywhere
@both_rules
@pytest.mark.parametrize(
    ("vocabulary", "k", "rounds", "horizon"), [(3, 2, 3, 5), (3, 3, 2, 4), (4, 2, 2, 3)]
)
def test_larger_vocabularies(rule, vocabulary, k, rounds, horizon, at):
    policy = within_budget(k, horizon)
    setting = scenario(
        case(vocabulary), rule=rule, policy=policy, rounds=rounds, horizon=horizon, at=at
    )
    assert_exact(setting)


@anywhere
@both_rules
def test_length_from_published_tokens(rule, at):
    policy = Policy(length=lambda _r, tokens, _trace: (3 * sum(tokens) + len(tokens)) % 4)
    assert_exact(scenario(case(2, seed=5), rule=rule, policy=policy, rounds=3, horizon=5, at=at))


@anywhere
@both_rules
def test_draft_stops_at_a_row_before_its_token_is_drawn(rule, at):
    policy = Policy(length=lambda *_: 3, goes_on=lambda row: row.max() < 0.8)
    assert_exact(scenario(case(2, seed=7), rule=rule, policy=policy, rounds=3, horizon=5, at=at))


@anywhere
@both_rules
@pytest.mark.parametrize(
    ("on_target", "on_draft"),
    [
        (Processing(top_k=2), Processing(top_k=2)),
        (Processing(top_k=2), None),
        (None, Processing(top_k=1)),
        (Processing(top_p=0.7), Processing(top_p=0.9)),
        (Processing(min_p=0.3), Processing(min_p=0.1)),
        (Processing(temperature=0.5, top_k=2, top_p=0.8), Processing(temperature=2.0)),
        (Processing(temperature=0.0), None),
        (Processing(temperature=0.0), Processing(temperature=0.0)),
        (None, Processing(temperature=0.0)),
        (Processing(bias={1: 2.0, 2: -1.0}), Processing(bias={0: 1.0})),
        (Processing(repetition=1.7, presence=0.6, frequency=0.9), None),
        (Processing(repetition=0.6, frequency=-0.5), Processing(presence=1.5)),
        (Processing(late=(1,), min_tokens=2), None),
        (Processing(late=(1,), min_tokens=3, top_p=0.9, frequency=0.7), Processing(min_p=0.2)),
    ],
)
def test_processors(rule, on_target, on_draft, at):
    one = case(3, seed=8, on_target=on_target, on_draft=on_draft, prompt=(2, 0))
    assert_exact(scenario(one, rule=rule, policy=within_budget(2, 4, prompt=2), at=at))


@anywhere
@both_rules
def test_stop_tokens_and_a_budget_that_cuts_the_run(rule, at):
    one = case(3, seed=9, stop=frozenset({1}))
    assert_exact(scenario(one, rule=rule, policy=fixed(3), horizon=3, at=at))


@anywhere
@both_rules
def test_stop_tokens_that_are_masked_at_first(rule, at):
    rows = Processing(late=(1,), min_tokens=2, frequency=0.8)
    one = case(2, seed=10, on_target=rows, stop=frozenset({1}))
    assert_exact(scenario(one, rule=rule, policy=fixed(2), rounds=3, at=at))


@anywhere
@both_rules
def test_ragged_requests_in_one_batch(rule, at):
    cases = (
        case(2, seed=11, choice=0),
        case(2, seed=12, choice=1, prompt=(1, 0, 1), stop=frozenset({0})),
        case(2, seed=13, choice=2, on_draft=Processing(temperature=0.0)),
    )
    policy = Policy(length=lambda r, tokens, _trace: (r + 1 + sum(tokens)) % 3)
    assert_exact(scenario(*cases, rule=rule, policy=policy, horizon=3, at=at))


@both_rules
@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    lengths=st.lists(st.integers(0, 3), min_size=5, max_size=5),
    on_target=st.builds(
        Processing,
        temperature=st.floats(0.3, 3.0),
        top_k=st.sampled_from([None, 1, 2, 3]),
        top_p=st.floats(0.2, 1.0),
        min_p=st.floats(0.0, 0.5),
        frequency=st.floats(-1.0, 1.0),
    ),
    on_draft=st.builds(Processing, temperature=st.floats(0.3, 3.0), top_p=st.floats(0.2, 1.0)),
)
def test_any_rows_lengths_and_filters(rule, seed, lengths, on_target, on_draft):
    one = case(2, seed=seed, on_target=on_target, on_draft=on_draft, stop=frozenset({1}))
    policy = Policy(length=lambda _r, tokens, _trace: lengths[len(tokens) - 1])
    assert_exact(scenario(one, rule=rule, policy=policy))


@pytest.mark.parametrize(("rule", "ninths"), [("token", 10), ("block", 11)])
def test_expected_acceptance_of_the_textbook_pair(rule, ninths):
    one = Case(
        target=Table(constant_logits(1 / 3, 2 / 3)), draft=Table(constant_logits(2 / 3, 1 / 3))
    )
    policy = Policy(length=lambda *_: 2, memory=1)
    branches = Enumeration(scenario(one, rule=rule, policy=policy, rounds=1)).branches()
    expected = sum(branch.weight * branch.traces[0][-1][1] for branch in branches)
    assert expected == pytest.approx(ninths / 9, abs=EXACT)


def expected_accepted(rule, seed, k):
    policy = Policy(length=lambda *_: k, memory=1)
    setting = scenario(case(3, seed=seed), rule=rule, policy=policy, rounds=1)
    return sum(b.weight * b.traces[0][-1][1] for b in Enumeration(setting).branches())


@pytest.mark.parametrize("seed", range(20, 25))
def test_block_never_accepts_fewer_drafts(seed):
    assert expected_accepted("block", seed, 1) == pytest.approx(
        expected_accepted("token", seed, 1), abs=EXACT
    )
    assert expected_accepted("block", seed, 3) >= expected_accepted("token", seed, 3) - EXACT
