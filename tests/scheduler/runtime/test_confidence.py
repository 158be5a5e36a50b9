"""Drafting that ends before an unsure token: where, at what cost, and that nothing else changes.

That the law stays exact is proven by enumeration elsewhere.
"""

import numpy as np
import pytest

from scheduler.plan import TerminalKind
from tests.oracles.rig import BLOCK, DRAFT, NGRAM, NOISE, TOKEN, Rig, expected, request
from tests.oracles.serial import softmax
from tests.scheduler.test_planning import decoding

RULES = pytest.mark.parametrize(
    ("verifier", "temperature"), [(TOKEN, 0.0), (TOKEN, 0.9), (BLOCK, 0.9), (NOISE, 0.9)]
)
FLOOR = 0.3


def sure(prefix, temperature):
    """The oracle: whether the draft's row after `prefix` has a token of at least FLOOR."""
    return max(softmax(DRAFT(prefix), temperature or 1.0)) >= FLOOR


def confident_rounds(verifier, temperature, **changes):
    rig = Rig()
    asked = request(
        1,
        k=6,
        verifier=verifier,
        temperature=temperature,
        min_confidence=FLOOR,
        max_tokens=60,
        **changes,
    )
    rig.submit(asked)
    while (work := rig.plan()) is not None:
        plan, jobs = work
        rig.draft.calls.clear()
        result, staged = rig.execute(plan, jobs)
        rig.land(jobs, staged, result)
        yield plan.groups[0], result.groups[0], list(rig.draft.calls)


@RULES
def test_a_draft_ends_before_the_first_row_that_is_not_sure(verifier, temperature):
    lengths = []
    for group, result, calls in confident_rounds(verifier, temperature):
        if group.draft is None:
            continue
        drafts = tuple(each.token for each in result.outcomes)
        going = [
            sure(group.tokens + drafts[:place], temperature)
            for place in range(min(len(drafts) + 1, group.draft.depth))
        ]
        assert all(going[: len(drafts)])
        assert len(drafts) == group.draft.depth or not going[len(drafts)]
        if not drafts:
            assert result.terminal is TerminalKind.PLAIN
        # The row that ends the draft is the last that is computed.
        assert len(calls) == min(len(drafts) + 1, group.draft.depth)
        assert not result.draft_lost
        lengths.append(len(drafts))
    assert {0, 1} <= set(lengths)
    assert max(lengths) > 1


@RULES
def test_the_rows_of_a_draft_that_ended_count_in_its_ledger(verifier, temperature):
    for group, result, _ in confident_rounds(verifier, temperature):
        if group.draft is None:
            continue
        pending = group.tokens[group.draft.rows :]
        assert result.draft_written[: len(pending)] == pending
        assert len(pending) <= 2 or group.draft.rows == 0


@pytest.mark.parametrize("floor", [0.0, 0.2, 0.5, 0.99])
@pytest.mark.parametrize("kind", [{"temperature": 0.0}, {"temperature": 0.9, "verifier": NOISE}])
def test_the_text_does_not_depend_on_it(floor, kind):
    asked = [
        request(n, (n, 3), k=k, max_tokens=25, min_confidence=own, **kind)
        for n, (k, own) in enumerate([(4, floor), (8, floor), (3, 0.0)], 1)
    ]
    assert Rig().serve(*asked) == [expected(each) for each in asked]


@RULES
def test_what_was_not_drafted_has_no_target_row(verifier, temperature):
    rig = Rig()
    asked = [
        request(n, (n, 3), k=6, max_tokens=40, temperature=temperature, verifier=verifier, **own)
        for n, own in ((1, {"min_confidence": FLOOR}), (2, {"min_confidence": FLOOR}), (3, {}))
    ]
    decoding(rig, *asked)
    shorter = 0
    for _ in range(6):
        plan, jobs = rig.plan()
        rig.target.calls.clear()
        result, staged = rig.execute(plan, jobs)
        rig.land(jobs, staged, result)
        rows = sum(group.rows for group in plan.groups)
        drafts = sum(len(each.outcomes) for each in result.groups)
        assert rig.target.calls == [rows + drafts] == [result.target_rows]
        for group, each in zip(plan.groups, result.groups, strict=True):
            own = group.tokens[group.start : group.start + group.rows]
            assert each.written == own + tuple(outcome.token for outcome in each.outcomes)
            shorter += len(each.outcomes) < 6 and group.emits
    assert shorter


def test_requests_are_stopped_each_by_its_own_floor():
    rig = Rig()
    asked = [
        request(n, (n, 3), k=5, max_tokens=40, temperature=0.9, min_confidence=floor)
        for n, floor in ((1, 0.0), (2, 0.999), (3, FLOOR))
    ]
    decoding(rig, *asked)
    plan, _ = rig.plan()
    found = {each.request: len(each.outcomes) for each in rig.runner.run(plan).groups}
    assert (found[1], found[2]) == (5, 0)


def test_tokens_known_beforehand_are_certain():
    rig = Rig()
    known = {"proposer": NGRAM, "logit_bias": {5: 90.0}}
    asked = request(1, (5, 6) * 6, k=3, min_confidence=0.9, temperature=0.9, **known)
    decoding(rig, asked)
    plan, _ = rig.plan()
    (result,) = rig.runner.run(plan).groups
    assert len(result.outcomes) == len(plan.groups[0].draft.token_ids) > 0


def test_confidence_of_a_greedy_request_is_its_softmax():
    """Its law is one-hot at every row, which would stop nothing."""
    ended = [
        len(result.outcomes) < group.draft.depth
        for group, result, _ in confident_rounds(TOKEN, 0.0)
        if group.draft is not None
    ]
    assert np.mean(ended) > 0.3
