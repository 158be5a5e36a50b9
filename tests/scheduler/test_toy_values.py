"""The toy values of the contract (sections 2 and 10), through the functions that serve requests.

A law comes out of a verifier by counting: each uniform runs over the midpoints of a grid so fine
that every bound and every cumulative sum of the toy falls between two of them. The count is exact.
"""

import math
from collections import Counter
from itertools import product

import pytest
import torch

from scheduler.commit import Ledger, stage
from scheduler.plan import TerminalKind
from scheduler.runtime.rows import Segment, pack
from scheduler.sampling.verify import (
    DraftBatch,
    one_hot_rows,
    verify_block,
    verify_match,
    verify_token,
)
from scheduler.speedup import (
    acceptance_mass,
    block_expected_accepted,
    committed_law,
    expected_accepted,
    iid_profile,
)
from scheduler.stats import CommitOutcome
from tests.oracles.rig import request
from tests.scheduler.staging import DRAFTS, PLAN, PROMPT, SNAPSHOT, decoding, verified

F64 = torch.float64
THREE = ([0.6, 0.3, 0.1], [0.2, 0.3, 0.5])  # p, q
CROSSED = ([0.30, 0.45, 0.25], [0.60, 0.20, 0.20])
MIRRORED = ([1 / 3, 2 / 3], [2 / 3, 1 / 3])
SCALED = ([3 / 8, 3 / 8, 1 / 4], [1 / 8, 1 / 4, 5 / 8])  # after token 2, P_1 is 2/5


def outcomes(verifier, laws, *grids):
    """What `verifier` makes of drafts when every row is (p, q).

    `grids` are the cells of each test's uniform, then of the terminal's. Gives (probability,
    drafts, accepted, terminal) for all that can happen.
    """
    k = len(grids) - 1
    p, q = (torch.tensor(law, dtype=F64) for law in laws)
    cells = list(product(*map(range, grids)))
    uniforms = (torch.tensor(cells, dtype=F64) + 0.5) / torch.tensor(grids)
    for drafts in product(range(len(q)), repeat=k):
        n = len(cells)
        batch = DraftBatch(
            drafts=torch.tensor([drafts]).expand(n, k),
            k=torch.full((n,), k),
            target_row=torch.zeros(n, dtype=torch.int64),
            draft_row=torch.zeros(n, dtype=torch.int64),
        )
        rows = p.expand(k + 1, -1), q.expand(k, -1)
        verdict = verifier(batch, *rows, uniforms[:, :k], uniforms[:, k])
        assert not verdict.fallback.any()
        weight = float(q[list(drafts)].prod()) / n
        pairs = zip(verdict.accepted.tolist(), verdict.terminal.tolist(), strict=True)
        for (accepted, terminal), count in Counter(pairs).items():
            yield weight * count, drafts, accepted, terminal


@pytest.mark.parametrize(("verifier", "expected"), [(verify_token, 10 / 9), (verify_block, 11 / 9)])
def test_block_keeps_eleven_ninths_of_two_drafts_where_token_keeps_ten(verifier, expected):
    found = math.fsum(
        weight * accepted for weight, _, accepted, _ in outcomes(verifier, MIRRORED, 12, 12, 1)
    )
    assert found == pytest.approx(expected, abs=1e-14)
    p, q = MIRRORED
    closed = {
        verify_token: expected_accepted(iid_profile(acceptance_mass(p, q), 2)),
        verify_block: block_expected_accepted(p, q, 2),
    }
    assert found == pytest.approx(closed[verifier], abs=1e-14)


@pytest.mark.parametrize("verifier", [verify_token, verify_block])
def test_the_masses_that_are_reported_have_the_same_mean(verifier):
    # Low-variance acceptance: E[A] is the mean sum of P_i by block, of mass products by token.
    p, q = (torch.tensor(law, dtype=F64) for law in MIRRORED)
    drafts = torch.tensor(list(product(range(2), repeat=2)))
    batch = DraftBatch(
        drafts=drafts,
        k=torch.full((4,), 2),
        target_row=torch.zeros(4, dtype=torch.int64),
        draft_row=torch.zeros(4, dtype=torch.int64),
    )
    half = torch.full((4, 2), 0.5, dtype=F64)
    verdict = verifier(batch, p.expand(3, -1), q.expand(2, -1), half, half[:, 0])
    mass = (q[drafts].prod(dim=1)[:, None] * verdict.mass).sum(dim=0).tolist()
    if verifier is verify_block:
        assert mass == pytest.approx([2 / 3, 5 / 9])
        assert sum(mass) == pytest.approx(11 / 9)
    else:
        assert mass == pytest.approx([2 / 3, 2 / 3])
        assert mass[0] + mass[0] * mass[1] == pytest.approx(10 / 9)


@pytest.mark.parametrize("verifier", [verify_token, verify_block])
@pytest.mark.parametrize("laws", [THREE, CROSSED])
def test_the_first_token_has_the_law_of_the_target(verifier, laws):
    law = [0.0] * 3
    for weight, drafts, accepted, terminal in outcomes(verifier, laws, 60, 60):
        law[drafts[0] if accepted else terminal] += weight
    assert law == pytest.approx(laws[0], abs=1e-12)


@pytest.mark.parametrize("verifier", [verify_token, verify_block])
def test_two_drafts_have_the_joint_law_of_the_target(verifier):
    # The bounds are multiples of 1/25, the terminals' sums of 1/24.
    p = SCALED[0]
    joint = dict.fromkeys(product(range(3), repeat=3), 0.0)
    for weight, drafts, accepted, terminal in outcomes(verifier, SCALED, 25, 25, 24):
        run = (*drafts[:accepted], terminal)
        for rest in product(range(3), repeat=3 - len(run)):
            joint[run + rest] += weight * math.prod(p[token] for token in rest)
    assert joint == pytest.approx({run: math.prod(p[x] for x in run) for run in joint}, abs=1e-12)


@pytest.mark.parametrize(
    ("laws", "matrix"),
    [
        (THREE, [[0.2, 0, 0], [0, 0.3, 0], [0.4, 0, 0.1]]),
        (CROSSED, [[0.30, 0.25, 0.05], [0, 0.20, 0], [0, 0, 0.20]]),
    ],
)
def test_the_coupling_of_proposal_and_output(laws, matrix):
    found = [[0.0] * 3 for _ in range(3)]
    for weight, drafts, accepted, terminal in outcomes(verify_token, laws, 60, 60):
        found[drafts[0]][drafts[0] if accepted else terminal] += weight
    for row, expected in zip(found, matrix, strict=True):
        assert row == pytest.approx(expected, abs=1e-12)
    kept = sum(found[x][x] for x in range(3))
    assert kept == pytest.approx(acceptance_mass(*laws), abs=1e-12)


def test_two_drafts_of_the_toy_pair_commit_one_two_or_three_tokens():
    law = [0.0] * 3
    for weight, _, accepted, _ in outcomes(verify_token, THREE, 10, 10, 1):
        law[accepted] += weight
    assert law == pytest.approx([0.4, 0.24, 0.36], abs=1e-12)
    assert law == pytest.approx(committed_law(iid_profile(0.6, 2)), abs=1e-12)
    assert sum(g * share for g, share in enumerate(law, 1)) == pytest.approx(1.96, abs=1e-12)


def snapshot_verdict(verifier):
    """The contract's snapshot as laws over 16 tokens: 8 and 6 are certain, 2 cannot be, 11 is."""
    wanted = torch.tensor([8, 6, 11, 0])
    batch = DraftBatch(
        drafts=torch.tensor([DRAFTS]),
        k=torch.tensor([3]),
        target_row=torch.tensor([0]),
        draft_row=torch.tensor([0]),
    )
    if verifier is verify_match:
        return verify_match(batch, wanted)
    draft_rows = 0.5 * (one_hot_rows(torch.tensor(DRAFTS), 16, F64) + 1 / 16)
    draft_rows = draft_rows / draft_rows.sum(dim=1, keepdim=True)
    tests, last = torch.full((1, 3), 0.9, dtype=F64), torch.tensor([0.5], dtype=F64)
    return verifier(batch, one_hot_rows(wanted, 16, F64), draft_rows, tests, last)


@pytest.mark.parametrize("verifier", [verify_token, verify_block, verify_match])
def test_the_snapshot_from_verdict_to_publication(verifier):
    verdict = snapshot_verdict(verifier)
    assert (verdict.accepted.item(), verdict.terminal.item()) == (2, 11)
    state = decoding()
    group, result = verified(state, verdict.accepted.item(), verdict.terminal.item())
    # The call's rows are the frontier and the drafts, at positions 5, 6, 7, 8.
    rows = pack([Segment(start=state.kv_rows, rows=4, blocks=(0,))], 16, torch.device("cpu"))
    assert rows.positions.tolist() == [5, 6, 7, 8]
    assert result.written == (12, 8, 6, 2)
    ledger = Ledger()
    ledger.open(group.request, state)
    staged = stage(PLAN, group, state, SNAPSHOT, result)
    assert ledger.publish(staged) is CommitOutcome.PUBLISHED
    after = ledger.state(group.request)
    kept = len(staged.record.committed_kv_token_ids)
    assert rows.positions.tolist()[:kept] == [5, 6, 7]
    assert rows.positions.tolist()[kept:] == [8]
    assert staged.record.discarded_kv_token_ids == (2,)
    assert (len(state.tokens), state.kv_rows) == (6, 5)
    assert (len(after.tokens), after.kv_rows) == (9, 8)
    assert after.tokens == (*PROMPT, 8, 6, 11)


@pytest.mark.parametrize(
    ("stops", "accepted", "emitted", "kept", "terminal"),
    [
        ({}, 3, (8, 6, 2, 11), 3, TerminalKind.BONUS),
        ({}, 0, (11,), 0, TerminalKind.CORRECTION),
        ({"max_tokens": 3}, 3, (8, 6, 2), 3, TerminalKind.STOP),
        ({"token_ids": frozenset({6})}, 3, (8, 6), 2, TerminalKind.STOP),
        ({"token_ids": frozenset({11})}, 2, (8, 6, 11), 2, TerminalKind.CORRECTION),
        ({"token_ids": frozenset({11})}, 3, (8, 6, 2, 11), 3, TerminalKind.BONUS),
    ],
    ids=["all kept", "none kept", "cap after d_3", "EOS at d_2", "EOS corrects", "EOS as bonus"],
)
def test_output_grows_by_what_is_published(stops, accepted, emitted, kept, terminal):
    asked = request(5, PROMPT, **({"max_tokens": 20, "temperature": 1.0} | stops))
    state = decoding(asked)
    group, result = verified(state, accepted, 11)
    staged = stage(PLAN, group, state, asked, result)
    record = staged.record
    assert record.emitted_token_ids == emitted
    assert record.accepted_draft_count == kept
    assert record.terminal_kind is terminal
    # G = A_emit + 1 if a correction or bonus went out, and the frontier's row is there anyway.
    assert len(emitted) == kept + (terminal is not TerminalKind.STOP)
    assert len(record.committed_kv_token_ids) == len(emitted)
    assert record.committed_kv_token_ids == staged.successor.tokens[5 : 5 + len(emitted)]
