"""What every `ModelRunner` keeps, whatever executes its rounds."""

import math

import numpy as np
import pytest

from scheduler.plan import DeviceDraft, HostDraft, TerminalKind
from scheduler.request import FinishReason
from tests.oracles.rig import BLOCK, NGRAM, NOISE, NONE, TOKEN, expected, noise_of, request

KINDS = {
    "greedy": {"temperature": 0.0},
    "token": {"temperature": 0.9, "verifier": TOKEN, "top_k": 12},
    "block": {"temperature": 0.9, "verifier": BLOCK, "presence_penalty": 0.5},
    "noise": {"temperature": 0.9, "verifier": NOISE},
    "lookup": {"temperature": 0.9, "verifier": TOKEN, "proposer": NGRAM},
    "plain": {"temperature": 0.9, "verifier": TOKEN, "proposer": NONE},
}


def depth(group):
    if isinstance(group.draft, HostDraft):
        return len(group.draft.token_ids)
    return group.draft.depth if group.draft is not None else 0


def log_softmax(row):
    peak = max(row)
    norm = peak + math.log(sum(math.exp(value - peak) for value in row))
    return [value - norm for value in row]


def clients(**more):
    """One request of every kind; their prompts come in chunks beside the others' drafts."""
    return [
        request(n, [n, 2, 7] * (2 + 4 * (n % 3)), max_tokens=12, logprobs=3, **kind, **more)
        for n, kind in enumerate(KINDS.values(), 1)
    ]


def rounds(subject, *requests):
    """(plan, result) of every round that serves `requests`."""
    rig = subject.rig()
    rig.submit(*requests)
    found = []
    while (work := rig.plan()) is not None:
        plan, jobs = work
        result, staged = rig.execute(plan, jobs)
        rig.land(jobs, staged, result)
        found.append((plan, result))
    assert len(found) > 5
    return found


def pairs(found):
    return [each for plan, result in found for each in zip(plan.groups, result.groups, strict=True)]


@pytest.fixture
def served(subject):
    return rounds(subject, *clients())


def test_results_answer_their_plan_group_by_group(served):
    for plan, result in served:
        assert (result.round_id, result.coordinate) == (plan.round_id, plan.coordinate)
        assert [(g.request, g.generation) for g in result.groups] == [
            (g.request, g.generation) for g in plan.groups
        ]


def test_rows_are_counted_as_they_were_planned(served):
    for plan, result in served:
        emitters = [group for group in plan.groups if group.emits]
        assert result.target_rows == sum(group.rows + depth(group) for group in plan.groups)
        kept = sum(group.retains for group in plan.groups)
        assert result.logit_rows == kept + sum(depth(g) + (g.rows > 0) for g in emitters)
        drafts = [g.draft for g in emitters if isinstance(g.draft, DeviceDraft)]
        assert result.draft_rows == sum(d.catch_up + max(d.depth - 1, 0) for d in drafts)
        assert result.host_syncs == (2 if emitters else 1)


def test_written_rows_are_the_inputs_of_the_target(served):
    for group, result in pairs(served):
        own = group.tokens[group.start : group.start + group.rows]
        drafts = result.written[len(own) :]
        assert result.written[: len(own)] == own
        assert len(drafts) == depth(group)
        assert tuple(each.token for each in result.outcomes) == drafts[: len(result.outcomes)]
        if isinstance(group.draft, HostDraft):
            assert drafts == group.draft.token_ids


def test_a_run_is_the_accepted_prefix_and_one_terminal(served):
    kinds = set()
    for group, result in pairs(served):
        assert result.error is None
        if not group.emits:
            assert (result.emitted, result.terminal, result.outcomes) == ((), None, ())
            continue
        drafts = tuple(each.token for each in result.outcomes)
        assert result.emitted[:-1] == drafts[: result.accepted]
        assert len(result.emitted) == result.accepted + 1
        wanted = TerminalKind.CORRECTION if result.accepted < len(drafts) else TerminalKind.BONUS
        assert result.terminal is (wanted if drafts else TerminalKind.PLAIN)
        assert all(0 <= token < 16 for token in result.emitted)
        kinds.add(result.terminal)
    assert kinds == {TerminalKind.CORRECTION, TerminalKind.BONUS, TerminalKind.PLAIN}


def test_prompts_drafts_and_plain_steps_share_a_round(subject):
    long = [request(n, [n] * 80, max_tokens=2) for n in (8, 9)]
    mixed = [
        plan
        for plan, _ in rounds(subject, *clients(), *long)
        if {True, False} <= {depth(g) > 0 for g in plan.groups}
        and any(g.rows > 1 for g in plan.groups)
    ]
    assert mixed


def test_no_draft_work_without_drafts(subject):
    for plan, result in rounds(subject, *clients(k=0)):
        assert result.draft_rows == 0
        assert all(not depth(group) for group in plan.groups)
        assert all(not each.outcomes and not each.draft_written for each in result.groups)


def test_rows_of_the_draft_are_the_tokens_it_read(served):
    seen = 0
    for group, result in pairs(served):
        if not isinstance(group.draft, DeviceDraft):
            assert result.draft_written == ()
            continue
        drafts = tuple(each.token for each in result.outcomes)
        pending = group.tokens[group.draft.rows : group.draft.rows + group.draft.catch_up]
        assert result.draft_written == pending + drafts[:-1]
        assert group.draft.depth == 0 or group.draft.rows + len(pending) == len(group.tokens)
        seen += 1
    assert seen


def test_a_retry_gives_the_same_result(subject):
    rig = subject.rig()
    rig.submit(*clients())
    for _ in range(8):
        plan, jobs = rig.plan()
        rig.runner.run(plan)
        result, staged = rig.execute(plan, jobs)
        assert rig.runner.run(plan).groups == result.groups
        rig.land(jobs, staged, result)


def test_logprobs_are_the_raw_model_s(subject, served):
    for group, result in pairs(served):
        assert len(result.logprobs) == len(result.emitted)
        for place, (token, told) in enumerate(zip(result.emitted, result.logprobs, strict=True)):
            row = log_softmax(subject.reference(group.tokens + result.emitted[:place]))
            assert told.logprob == pytest.approx(row[token], abs=subject.tolerance)
            values = [value for _, value in told.top]
            assert values == sorted(values, reverse=True)
            assert values == pytest.approx(sorted(row, reverse=True)[:3], abs=subject.tolerance)
            for best, value in told.top:
                assert value == pytest.approx(row[best], abs=subject.tolerance)


def test_nobody_pays_for_logprobs_that_nobody_asked_for(subject):
    for _, result in rounds(subject, *clients()[:0], request(1, max_tokens=20), request(2)):
        assert result.host_syncs == 1
        assert all(not each.logprobs for each in result.groups)


def test_provenance_of_drafts(served):
    for group, result in pairs(served):
        ratio = group.sampling.temperature > 0 and group.verifier is not NOISE
        for place, each in enumerate(result.outcomes):
            assert 0.0 <= each.target_prob <= 1.0 + 1e-6
            assert 0.0 < each.draft_prob <= 1.0 + 1e-6
            # By block the chance of a prefix may rise again, so mass may exceed its base.
            most = 1.0 if ratio and group.verifier is BLOCK else each.base
            assert 0.0 <= each.mass <= most + 1e-6
            assert (each.uniform is not None) == ratio
            if isinstance(group.draft, HostDraft):
                assert each.draft_prob == 1.0
            if place < result.accepted:
                assert each.target_prob > 0.0
        if ratio and group.verifier is TOKEN:
            tested = [
                each.uniform < min(1.0, each.target_prob / each.draft_prob)
                for each in result.outcomes
            ]
            assert result.accepted == (tested.index(False) if False in tested else len(tested))


def test_target_probabilities_are_those_of_the_reference(subject):
    """Temperature alone, so that the law is a softmax."""
    asked = request(1, max_tokens=20, temperature=0.7, verifier=TOKEN, k=3)
    checked = 0
    for group, result in pairs(rounds(subject, asked)):
        drafts = tuple(each.token for each in result.outcomes)
        for place, each in enumerate(result.outcomes):
            logits = subject.reference(group.tokens + drafts[:place])
            law = log_softmax([value / 0.7 for value in logits])
            assert each.target_prob == pytest.approx(
                math.exp(law[each.token]), abs=2 * subject.tolerance
            )
            checked += 1
    assert checked > 6


@pytest.mark.parametrize("kind", [{"temperature": 0.0}, {"temperature": 0.9, "verifier": NOISE}])
def test_the_text_is_the_serial_one(subject, kind):
    asked = [
        request(n, [n, 3] * n, k=k, max_tokens=15, proposer=proposer, **kind)
        for n, (k, proposer) in enumerate([(0, NONE), (3, None), (8, None), (4, NGRAM)], 1)
        for proposer in [proposer or request().speculation.proposer]
    ]
    found = subject.rig().serve(*asked)
    if not subject.slack:
        assert found == [expected(each, subject.reference) for each in asked]
    for each, tokens in zip(asked, found, strict=True):
        assert len(tokens) == 15
        assert max(losses(each, tokens, subject.reference)) <= subject.slack


def losses(asked, tokens, reference):
    """By how much the reference likes its own choice after each prefix better than the token."""
    for place, token in enumerate(tokens):
        prefix = (*asked.prompt, *tokens[:place])
        row = np.asarray(reference(prefix), dtype=np.float64)
        if not asked.sampling.greedy:
            row = row + asked.sampling.temperature * noise_of(asked)(len(prefix))
        yield row.max() - row[token]


def test_a_runner_says_what_it_is(subject):
    told = subject.runner.capabilities()
    assert told == subject.runner.capabilities()
    assert told.vocabulary == 16
    assert told.draft is not None
    assert subject.runner.memory_bytes() >= 0


@pytest.mark.parametrize("cleared", [True, False])
def test_cleared_blocks_hold_nothing_that_is_not_finite(llama, cleared):
    """Attention multiplies masked rows by zero, which a NaN survives."""
    pair = llama.runner._pair
    for forward in (pair.target, pair.draft):
        for layer in forward.pool.layers:
            layer.fill_(float("nan"))
        if cleared:
            forward.clear_blocks(range(forward.pool.blocks))
    rig = llama.rig()
    asked = request(1, (1, 2, 3), max_tokens=6)
    rig.submit(asked)
    rig.drain()
    output = rig.outputs[1]
    assert output.finish.reason is (FinishReason.LENGTH if cleared else FinishReason.ERROR)
    assert output.tokens == (expected(asked, llama.reference) if cleared else [])
