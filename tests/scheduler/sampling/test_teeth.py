"""Every planted fault moves the enumerated law: the oracle sees what it is for."""

import pytest
import torch

from scheduler.sampling import verify
from scheduler.sampling.rng import DrawKey, Stream, round_keys
from scheduler.sampling.verify import DraftBatch, verify_block, verify_token
from tests.oracles.enumeration import deviation
from tests.oracles.noise import NoiseEnumeration, played, serial
from tests.oracles.policies import BIASED, EXACT, TEXTBOOK
from tests.oracles.rows import Processing, Table, random_logits
from tests.oracles.scenario import Case, Policy, scenario

EXACT_TO = 1e-12
SEEN = 1e-5
# Tables on which every fault below matters: of two tokens, residuals are one-hot, for example.
SEEDS = {2: 45, 3: 31}
both_rules = pytest.mark.parametrize("rule", ["token", "block"])
NOISY = [each for each in (*BIASED, *EXACT) if each.noisy]
two = Policy(length=lambda *_: 2)


def random_case(vocabulary=3, *, claimed=None, on_draft=None):
    return Case(
        target=Table(random_logits(SEEDS[vocabulary], vocabulary)),
        draft=Table(random_logits(SEEDS[vocabulary] + 1, vocabulary), settings=on_draft),
        claimed=claimed,
    )


def key(seed, choice, stream, position, offset=0):
    return DrawKey(seed=seed, choice=choice, stream=stream, position=position, offset=offset)


def absolute_keys(seed, choice, position, k):
    """Proposal and acceptance keyed by the place of the token in the text."""
    proposal = tuple(key(seed, choice, Stream.PROPOSAL, position + i) for i in range(k))
    tests = tuple(key(seed, choice, Stream.ACCEPTANCE, position + i) for i in range(k))
    return proposal, tests, key(seed, choice, Stream.TERMINAL, position)


def absolute_acceptance(seed, choice, position, k):
    proposal, _, last = round_keys(seed, choice, position, k)
    return proposal, absolute_keys(seed, choice, position, k)[1], last


def absolute_proposal(seed, choice, position, k):
    _, tests, last = round_keys(seed, choice, position, k)
    return absolute_keys(seed, choice, position, k)[0], tests, last


def same_every_round(seed, choice, _position, k):
    return round_keys(seed, choice, 0, k)


def terminal_shares_the_test(seed, choice, position, k):
    proposal, tests, last = round_keys(seed, choice, position, k)
    return proposal, tests, tests[-1] if tests else last


def one_draw_for_all_tests(seed, choice, position, k):
    proposal, tests, last = round_keys(seed, choice, position, k)
    return proposal, tests[:1] * k, last


@pytest.mark.parametrize("keys", [absolute_keys, absolute_acceptance, absolute_proposal])
def test_absolute_keys_bias_block(keys):
    one = random_case(2)
    found = deviation(scenario(one, rule="block", policy=two, rounds=3, keys=keys))
    assert found.total_variation > 0.01


def test_absolute_keys_do_not_bias_token():
    one = random_case(2)
    found = deviation(scenario(one, rule="token", policy=two, rounds=3, keys=absolute_keys))
    assert found.largest <= EXACT_TO


@both_rules
def test_remembered_intervals_change_nothing_with_the_right_keys(rule):
    def keys(*coordinate):
        return round_keys(*coordinate)

    found = deviation(scenario(random_case(2), rule=rule, policy=two, rounds=3, keys=keys))
    assert found.largest <= EXACT_TO


@both_rules
@pytest.mark.parametrize("keys", [same_every_round, terminal_shares_the_test])
def test_reused_draws_bias(rule, keys):
    found = deviation(scenario(random_case(2), rule=rule, policy=two, keys=keys))
    assert found.total_variation > 0.01


@both_rules
def test_one_draw_for_all_tests_biases(rule):
    found = deviation(scenario(random_case(2), rule=rule, policy=two, keys=one_draw_for_all_tests))
    assert found.total_variation > SEEN


def test_two_requests_with_one_seed_and_choice_are_refused():
    with pytest.raises(ValueError, match="share a seed"):
        deviation(scenario(TEXTBOOK, TEXTBOOK, rule="token", policy=two))


@both_rules
@pytest.mark.parametrize("example", BIASED, ids=lambda each: each.name)
def test_policies_that_look_at_what_they_leave_out_bias(rule, example):
    assert deviation(example.under(rule)).total_variation > 0.05


@both_rules
@pytest.mark.parametrize("example", EXACT, ids=lambda each: each.name)
def test_policies_that_do_not_are_exact(rule, example):
    assert deviation(example.under(rule, at=1e-10)).largest <= EXACT_TO


@pytest.mark.parametrize("example", NOISY, ids=lambda each: each.name)
def test_any_policy_is_exact_under_shared_noise(example):
    setting = example.under("shared-noise", at=1.0 - 1e-10)
    assert deviation(setting, NoiseEnumeration).largest <= EXACT_TO


@pytest.mark.parametrize("example", [*BIASED, *EXACT], ids=lambda each: each.name)
def test_any_policy_gives_the_serial_text_under_shared_noise(example):
    setting = example.under("shared-noise")
    for seed in range(10):
        assert played(setting, seed) == serial(setting, seed)


class OneNoise(NoiseEnumeration):
    """The same noise for all places of a round."""

    def _noise_key(self, branch, r, place):
        return super()._noise_key(branch, r, 0)


class LaggingNoise(NoiseEnumeration):
    """Noise of the place before: the last token's is looked at again."""

    def _noise_key(self, branch, r, place):
        return super()._noise_key(branch, r, max(place - 1, 0))


class DraftChoice(NoiseEnumeration):
    """Commits what the race gives on other rows than the target's."""

    def _draw(self, rows, values):
        return super()._draw(rows.flip(1) if len(rows) > 1 else rows, values)


@pytest.mark.parametrize("wrong", [OneNoise, LaggingNoise, DraftChoice])
def test_wrong_noise_is_seen(wrong):
    setting = scenario(random_case(2), rule="shared-noise", policy=two)
    assert deviation(setting, NoiseEnumeration).largest <= EXACT_TO
    assert deviation(setting, wrong).total_variation > 0.01


def error_of(rule, *, mutant=None, one=None):
    return deviation(scenario(one or random_case(), rule=rule, policy=two, verify=mutant)).largest


def normalised(rows):
    return rows / rows.sum(-1, keepdim=True), torch.zeros(len(rows), dtype=torch.bool)


@both_rules
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda p, _q, _s: normalised(p), id="raw p"),
        pytest.param(lambda _p, q, _s: normalised(q + 1e-300), id="raw q"),
        pytest.param(lambda p, q, s: normalised((q - s[:, None] * p).abs()), id="both signs"),
        pytest.param(lambda p, q, _s: normalised((p * (p > q)) + 1e-300), id="threshold only"),
        pytest.param(
            lambda p, q, s: normalised((s[:, None] * p.roll(1, 0) - q).clamp(min=1e-300)),
            id="wrong row",
        ),
    ],
)
def test_wrong_residuals_are_seen(rule, wrong, monkeypatch):
    monkeypatch.setattr(verify, "residual", wrong)
    assert error_of(rule) > SEEN


def test_unscaled_residual_is_seen_under_block(monkeypatch):
    right = verify.residual
    monkeypatch.setattr(verify, "residual", lambda p, q, s: right(p, q, torch.ones_like(s)))
    assert error_of("token") <= EXACT_TO
    assert error_of("block") > SEEN


@pytest.mark.parametrize("verifier", [verify_token, verify_block])
def test_bonus_from_the_draft_is_seen(verifier):
    def mutant(batch, p, q, tests, last):
        right = verifier(batch, p, q, tests, last)
        full = right.accepted == batch.k
        drafted = batch.k > 0
        bonus = torch.where(full & drafted, batch.target_row + batch.k, -1)
        swapped = p.clone()
        rows, sources = bonus[bonus >= 0], (batch.draft_row + batch.k - 1)[bonus >= 0]
        swapped[rows] = q[sources]
        return verifier(batch, swapped, q, tests, last)

    rule = "token" if verifier is verify_token else "block"
    assert error_of(rule, mutant=mutant) > SEEN


def test_testing_past_the_first_rejection_is_seen(monkeypatch):
    monkeypatch.setattr(verify, "_leading", verify.__dict__["_largest"])
    assert error_of("token") > SEEN


def test_stopping_at_the_first_failure_is_seen_under_block(monkeypatch):
    monkeypatch.setattr(verify, "_largest", verify.__dict__["_leading"])
    assert error_of("block") > SEEN


def test_reach_in_place_of_the_bound_is_seen_under_block(monkeypatch):
    monkeypatch.setattr(verify, "block_bounds", lambda reach, _surplus, _k: reach[:, 1:])
    assert error_of("block") > SEEN


def test_confidence_as_acceptance_is_seen(monkeypatch):
    monkeypatch.setattr(verify, "acceptance_bound", lambda _p, q: (q > 0.4).to(q.dtype))
    assert error_of("token") > SEEN


@both_rules
def test_raw_draft_rows_as_denominator_are_seen(rule):
    raw = Table(random_logits(SEEDS[3] + 1, 3))
    hot = Processing(temperature=0.4)
    assert error_of(rule, one=random_case(on_draft=hot, claimed=raw)) > SEEN
    assert error_of(rule, one=random_case(on_draft=hot)) <= EXACT_TO


@both_rules
def test_rows_off_by_one_are_seen(rule):
    verifier = {"token": verify_token, "block": verify_block}[rule]

    def mutant(batch, p, q, tests, last):
        return verifier(batch, p.roll(1, 0), q, tests, last)

    assert error_of(rule, mutant=mutant) > SEEN


@pytest.mark.parametrize("verifier", [verify_token, verify_block])
def test_a_weak_inequality_would_accept_a_masked_token(verifier):
    batch = DraftBatch(
        drafts=torch.tensor([[0]]),
        k=torch.tensor([1]),
        target_row=torch.tensor([0]),
        draft_row=torch.tensor([0]),
    )
    p = torch.tensor([[0.0, 1.0], [0.5, 0.5]], dtype=torch.float64)
    q = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    zero = torch.zeros(1, 1, dtype=torch.float64)
    last = torch.zeros(1, dtype=torch.float64)
    right = verifier(batch, p, q, zero, last)
    assert (right.accepted.item(), right.terminal.item()) == (0, 1)
    # u <= bound is the same as (the float below u) < bound.
    weak = torch.nextafter(zero, torch.full_like(zero, -1.0))
    assert verifier(batch, p, q, weak, last).accepted.item() == 1
