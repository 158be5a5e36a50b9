"""Verification of one round: worked values, raggedness, rounding, and no host synchronisation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.sampling import draw, processors
from scheduler.sampling.rng import CounterRandomness, noise_key
from scheduler.sampling.verify import (
    DraftBatch,
    acceptance_bound,
    block_bounds,
    block_reach,
    one_hot_rows,
    residual,
    verify_block,
    verify_match,
    verify_token,
)
from tests.oracles.rules import accepted_length, bounds, reaches, terminal_row

F64 = torch.float64
verifiers = pytest.mark.parametrize("verifier", [verify_token, verify_block])


def tensor(values):
    return torch.tensor(values, dtype=F64)


def single(drafts):
    """One request whose rows come first."""
    return DraftBatch(
        drafts=torch.tensor([drafts], dtype=torch.int64),
        k=torch.tensor([len(drafts)]),
        target_row=torch.tensor([0]),
        draft_row=torch.tensor([0]),
    )


def test_worked_values_of_the_token_rule():
    p, q = tensor([[0.6, 0.3, 0.1]]), tensor([[0.2, 0.3, 0.5]])
    assert acceptance_bound(p, q)[0].tolist() == pytest.approx([1, 1, 0.2])
    assert torch.minimum(p, q)[0].tolist() == pytest.approx([0.2, 0.3, 0.1])
    assert residual(p, q, tensor([1.0]))[0][0].tolist() == pytest.approx([1, 0, 0])
    verdict = verify_token(single([2]), torch.cat([p, p]), q, tensor([[0.2]]), tensor([0.99]))
    assert (verdict.accepted.item(), verdict.terminal.item()) == (0, 0)
    assert verdict.mass.item() == pytest.approx(0.6)
    assert (verdict.p_draft.item(), verdict.q_draft.item()) == (0.1, 0.5)


def test_worked_values_of_a_residual():
    p, q = tensor([[0.30, 0.45, 0.25]]), tensor([[0.60, 0.20, 0.20]])
    rows, empty = residual(p, q, tensor([1.0]))
    assert rows[0].tolist() == pytest.approx([0, 0.25 / 0.30, 0.05 / 0.30])
    assert not empty.item()
    verdict = verify_token(single([0]), torch.cat([p, p]), q, tensor([[0.7]]), tensor([0.5]))
    assert verdict.mass.item() == pytest.approx(0.70)
    assert verdict.terminal.item() == 1


def test_worked_values_of_the_block_rule():
    # p = [1/3, 2/3], q = [2/3, 1/3]: drafts (1, 1) reach P = 1, 1; drafts (0, 0) 1/2, 1/4.
    reach = block_reach(
        tensor([[2 / 3, 2 / 3], [1 / 3, 1 / 3]]), tensor([[1 / 3, 1 / 3], [2 / 3, 2 / 3]])
    )
    assert reach.tolist() == [[1, 1, 1], [1, 0.5, 0.25]]
    surplus = tensor([[1 / 3, 1 / 3], [1 / 3, 0.0]])
    bound = block_bounds(reach, surplus, torch.tensor([2, 2]))
    assert bound.tolist() == [[1, 1], [0, 0.25]]


def test_equal_laws_pass_every_test_of_the_block_rule():
    bound = block_bounds(tensor([[1.0, 1.0, 1.0]]), tensor([[0.0, 0.0]]), torch.tensor([2]))
    assert bound.tolist() == [[1, 1]]


def test_a_masked_draft_has_bound_zero_even_if_the_draft_could_not_make_it():
    zero = tensor([[0.0]])
    assert acceptance_bound(zero, zero).item() == 0
    assert block_reach(zero, zero)[0].tolist() == [1, 0]


@verifiers
def test_a_draft_that_the_target_prefers_is_always_accepted(verifier):
    p, q = tensor([[0.6, 0.4], [0.0, 1.0]]), tensor([[0.5, 0.5]])
    verdict = verifier(single([0]), p, q, tensor([[1 - 2.0**-53]]), tensor([0.0]))
    assert (verdict.accepted.item(), verdict.terminal.item()) == (1, 1)


@verifiers
def test_a_rejection_that_only_rounding_can_cause_falls_back_to_the_target(verifier):
    below = 0.5 - 2.0**-54
    p, q = tensor([[0.0, below, 0.5], [0.5, 0.5, 0.0]]), tensor([[0.0, 0.5, 0.5]])
    verdict = verifier(single([1]), p, q, tensor([[1 - 2.0**-53]]), tensor([0.0]))
    assert verdict.fallback.item()
    assert (verdict.accepted.item(), verdict.terminal.item()) == (0, 1)


def test_a_small_but_real_residual_is_used():
    p, q = tensor([[0.5 + 1e-9, 0.5 - 1e-9]]), tensor([[0.5, 0.5]])
    rows, empty = residual(p, q, tensor([1.0]))
    assert rows[0].tolist() == [1, 0]
    assert not empty.item()
    scaled, empty = residual(tensor([[0.5, 0.5]]), tensor([[1.0, 0.0]]), tensor([1e-16]))
    assert scaled[0].tolist() == [0, 1]
    assert not empty.item()


@verifiers
def test_one_hot_drafts(verifier):
    q = one_hot_rows(torch.tensor([1, 0]), 3, F64)
    assert q.tolist() == [[0, 1, 0], [1, 0, 0]]
    p = tensor([[0.2, 0.5, 0.3], [0.4, 0.3, 0.3], [0.1, 0.1, 0.8]])
    verdict = verifier(single([1, 0]), p, q, tensor([[0.37, 0.41]]), tensor([0.9]))
    if verifier is verify_token:
        assert verdict.mass[0].tolist() == pytest.approx([0.5, 0.4])
    assert (verdict.accepted.item(), verdict.terminal.item()) == (1, 2)


def ragged(seed, lengths, vocabulary, dtype=F64):
    rng = np.random.default_rng(seed)
    longest = max(lengths, default=0)
    rows = [rng.dirichlet([0.7] * vocabulary, k + 1) for k in lengths]
    proposals = [rng.dirichlet([0.7] * vocabulary, k) for k in lengths]
    drafts = np.zeros((len(lengths), longest), dtype=np.int64)
    for r, k in enumerate(lengths):
        drafts[r, :k] = rng.integers(vocabulary, size=k)
    batch = DraftBatch(
        drafts=torch.from_numpy(drafts),
        k=torch.tensor(lengths),
        target_row=torch.tensor([0, *np.cumsum([k + 1 for k in lengths])[:-1].tolist()]),
        draft_row=torch.tensor([0, *np.cumsum(lengths)[:-1].tolist()]),
    )
    p = torch.from_numpy(np.concatenate(rows)).to(dtype)
    q = torch.from_numpy(np.concatenate(proposals).reshape(-1, vocabulary)).to(dtype)
    tests = torch.from_numpy(rng.random((len(lengths), longest)))
    return batch, p, q, tests, torch.from_numpy(rng.random(len(lengths)))


@pytest.mark.parametrize(("rule", "verifier"), [("token", verify_token), ("block", verify_block)])
@settings(deadline=None)
@given(st.integers(0, 10_000), st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_ragged_batches_equal_the_definitions(rule, verifier, seed, lengths):
    batch, p, q, tests, last = ragged(seed, lengths, 4)
    verdict = verifier(batch, p, q, tests, last)
    for r, k in enumerate(lengths):
        first, q_first = batch.target_row[r].item(), batch.draft_row[r].item()
        rows, proposals = p[first : first + k + 1].numpy(), q[q_first : q_first + k].numpy()
        drafts = batch.drafts[r, :k].tolist()
        limits = bounds(rule, rows, proposals, drafts)
        accepted = accepted_length(rule, limits, tests[r, :k].tolist())
        sums = np.cumsum(terminal_row(rule, rows, proposals, drafts, accepted))
        assert verdict.accepted[r].item() == accepted
        assert verdict.terminal[r].item() == np.flatnonzero(sums > last[r].item())[0]
        assert verdict.bound[r, :k].tolist() == pytest.approx(limits)
        assert not verdict.fallback[r].item()
        if rule == "token":
            mass, base = np.minimum(rows[:-1], proposals).sum(-1), np.ones(k)
        else:
            reach = reaches(rows, proposals, drafts)
            mass, base = np.array(reach[1:]), np.array(reach[:-1])
        assert verdict.mass[r, :k].tolist() == pytest.approx(mass.tolist())
        assert verdict.base[r, :k].tolist() == pytest.approx(base.tolist())
        for name in ("bound", "mass", "base", "p_draft", "q_draft"):
            assert not getattr(verdict, name)[r, k:].any()


@verifiers
def test_production_precision(verifier):
    batch, p, q, tests, last = ragged(3, [4, 0, 2, 1], 50)
    wide = verifier(batch, p, q, tests, last)
    narrow = verifier(batch, p.float(), q.float(), tests, last)
    assert narrow.mass.dtype == torch.float32
    assert torch.equal(narrow.accepted, wide.accepted)
    assert torch.equal(narrow.terminal, wide.terminal)


@verifiers
@pytest.mark.parametrize("longest", [0, 3])
def test_a_batch_in_which_nobody_drafted(verifier, longest):
    batch = DraftBatch(
        drafts=torch.zeros(2, longest, dtype=torch.int64),
        k=torch.tensor([0, 0]),
        target_row=torch.tensor([0, 1]),
        draft_row=torch.tensor([0, 0]),
    )
    p = tensor([[0.0, 1.0], [1.0, 0.0]])
    verdict = verifier(batch, p, p[:0], tensor([[0.0] * longest] * 2), tensor([0.5, 0.5]))
    assert verdict.accepted.tolist() == [0, 0]
    assert verdict.terminal.tolist() == [1, 0]
    assert verdict.mass.shape == (2, longest)
    assert not verdict.fallback.any()


@verifiers
def test_a_bad_row_leaves_the_others_alone(verifier):
    batch, p, q, tests, last = ragged(4, [1, 3, 1], 5)
    right = verifier(batch, p, q, tests, last)
    broken_p, broken_q = p.clone(), q.clone()
    broken_p[2:6] = float("nan")
    broken_q[1:4] = float("nan")
    found = verifier(batch, broken_p, broken_q, tests, last)
    for name in ("accepted", "terminal", "mass", "bound"):
        assert torch.equal(getattr(found, name)[[0, 2]], getattr(right, name)[[0, 2]])
    assert 0 <= found.terminal[1].item() < 5


@pytest.mark.parametrize(
    ("choices", "accepted", "terminal"),
    [([5, 6, 7, 8], 3, 8), ([5, 6, 1, 8], 2, 1), ([1, 6, 7, 8], 0, 1), ([5, 1, 7, 8], 1, 1)],
)
def test_match(choices, accepted, terminal):
    verdict = verify_match(single([5, 6, 7]), torch.tensor(choices))
    assert (verdict.accepted.item(), verdict.terminal.item()) == (accepted, terminal)
    assert verdict.mass[0].tolist() == [c == d for c, d in zip(choices, [5, 6, 7], strict=False)]
    assert verdict.base[0].tolist() == [1, 1, 1]


def test_match_on_a_ragged_batch():
    batch = DraftBatch(
        drafts=torch.tensor([[0, 0], [4, 9], [3, 0]]),
        k=torch.tensor([0, 2, 1]),
        target_row=torch.tensor([0, 1, 4]),
        draft_row=torch.tensor([0, 0, 2]),
    )
    verdict = verify_match(batch, torch.tensor([0, 4, 9, 7, 3, 3]))
    assert verdict.accepted.tolist() == [0, 2, 1]
    assert verdict.terminal.tolist() == [0, 7, 3]
    assert verdict.base.tolist() == [[0, 0], [1, 1], [1, 0]]


@verifiers
def test_greedy_laws_are_decided_like_a_match(verifier):
    logits = torch.randn(5, 6, generator=torch.manual_seed(5))
    choices = processors.greedy_choice(logits)
    p = one_hot_rows(choices, 6, F64)
    drafts = [*choices[:3].tolist(), (choices[3].item() + 1) % 6]
    q = one_hot_rows(torch.tensor(drafts), 6, F64)
    batch = single(drafts)
    found = verifier(batch, p, q, tensor([[0.3, 0.0, 0.9, 0.0]]), tensor([0.7]))
    expected = verify_match(batch, choices)
    assert found.accepted.tolist() == expected.accepted.tolist() == [3]
    assert found.terminal.tolist() == expected.terminal.tolist()


def on_meta(value):
    return value.to("meta")


def test_nothing_waits_for_the_device():
    """A meta tensor has no values: whatever reads one on the host raises here."""
    batch, p, q, tests, last = (
        DraftBatch(
            **{n: on_meta(getattr(b, n)) for n in ("drafts", "k", "target_row", "draft_row")}
        )
        if isinstance(b, DraftBatch)
        else on_meta(b)
        for b in ragged(6, [2, 0, 3], 5)
    )
    verify_token(batch, p, q, tests, last)
    verify_block(batch, p, q, tests, last)
    chosen = processors.row_settings(
        temperature=[0.5] * 3 + [0.0] * 5,
        top_k=[2, None] * 4,
        top_p=[0.9] * 8,
        min_p=[0.1] * 8,
        vocabulary=5,
        device=torch.device("meta"),
    )
    kept = processors.filtered(p, chosen)
    processors.usable(processors.law(kept))
    keys = [noise_key(1, 0, t) for t in range(8)]
    noise = CounterRandomness().gumbel(keys, 5, torch.device("meta"))
    assert verify_match(batch, draw.race(kept, noise)).terminal.is_meta
