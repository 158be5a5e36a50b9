"""What the engine reports of its rounds and requests, and that the numbers agree."""

from dataclasses import replace
from itertools import product

import pytest

from scheduler.controller import FixedController
from scheduler.plan import TerminalKind
from scheduler.stats import CommitOutcome, Forecast, Policy, Reason, without_evidence
from tests.oracles.desk import desk, outcome, outcomes
from tests.oracles.rig import (
    BLOCK,
    MODEL,
    NGRAM,
    NOISE,
    NONE,
    TARGET,
    TOKEN,
    config,
    expected,
    request,
)

pytestmark = pytest.mark.anyio


def check_ladder(groups):
    """Contract section 10: who may be reached at place i + 1 was accepted at place i."""
    speculations = [(g.speculation, g.terminal) for g in groups if g.speculation is not None]
    for spec, _ in speculations:
        assert 0 <= spec.accepted <= spec.reached <= spec.k
    for policy, spec in ((g.policy, g.speculation) for g in groups if g.speculation is not None):
        shown = spec.k if policy is Policy.BLOCK else spec.reached
        assert len(spec.mass) == len(spec.base) == shown
    for place in range(1, 9):
        reached = sum(spec.reached > place for spec, _ in speculations)
        accepted = sum(spec.accepted >= place for spec, _ in speculations)
        stopped = sum(
            spec.accepted == place and terminal is TerminalKind.STOP
            for spec, terminal in speculations
        )
        full = sum(
            spec.accepted == spec.k == place and terminal is not TerminalKind.STOP
            for spec, terminal in speculations
        )
        assert reached == accepted - stopped - full


RULES = [(1, 0.0, TOKEN), (4, 0.9, NOISE), (8, 0.9, TOKEN), (3, 0.9, BLOCK), (0, 0.9, TOKEN)]


@pytest.fixture
async def served():
    """Requests of every rule with stops, their outcomes, and the desk that served them."""
    asked = [
        request(
            n,
            (n, 2),
            max_tokens=25,
            k=k,
            temperature=warm,
            verifier=verifier,
            token_ids=frozenset({3, 11}),
        )
        for n, (k, warm, verifier) in enumerate(RULES, 1)
    ]
    async with desk(draft=TARGET) as d:
        found = await outcomes(d.ask(*asked))
    return d, found


def shares(d, number):
    """What all rounds say of one request."""
    return [group for group in d.stats if group.request == number]


async def test_what_may_be_learnt_from_is_all_but_the_evidence(served):
    d, _ = served
    assert any(group.evidence is not None for group in d.stats)
    for step in d.sink.steps:
        groups = tuple(replace(group, evidence=None) for group in step.groups)
        assert without_evidence(step) == replace(step, groups=groups)


async def test_reached_accepted_and_stopped_make_a_ladder(served):
    d, _ = served
    check_ladder(d.stats)
    for group in d.stats:
        if group.speculation is not None and group.terminal is not TerminalKind.STOP:
            assert group.committed == group.speculation.accepted + 1


async def test_places_past_a_rejection_are_not_reached():
    kinds = list(enumerate(product((TOKEN, BLOCK, NOISE), (0.0, 1.0)), 1))
    async with desk() as d:
        asked = [
            request(n, (n, 2), k=6, max_tokens=30, temperature=warm, verifier=rule)
            for n, (rule, warm) in kinds
        ]
        await outcomes(d.ask(*asked))
    check_ladder(d.stats)
    for n, _ in kinds:
        specs = [group.speculation for group in shares(d, n) if group.speculation is not None]
        assert any(spec.accepted + 1 < spec.k for spec in specs)


async def test_a_request_s_numbers_are_the_sums_of_its_rounds(served):
    d, found = served
    for number, (tokens, _, finish) in enumerate(found, 1):
        groups, stats = shares(d, number), finish.stats
        specs = [g.speculation for g in groups if g.speculation is not None]
        assert stats.completion_tokens == len(tokens) == sum(g.committed for g in groups)
        assert stats.rounds == len(groups)
        assert stats.steps == len(specs) == sum(stats.histogram)
        assert stats.drafted == sum(spec.k for spec in specs)
        assert stats.accepted == sum(spec.accepted for spec in specs)
        assert stats.admitted <= stats.first_token <= stats.finished
        assert sum(g.prefilled for g in groups) == 1
    ended = {each.request: each for step in d.sink.steps for each in step.finished}
    assert set(ended) == set(range(1, 6))
    for number, each in ended.items():
        assert each.request_stats == found[number - 1][2].stats
        assert each.speculated == (each.request_stats.drafted > 0)
    assert not ended[5].speculated


async def test_a_round_s_rows_and_seconds_add_up(served):
    d, _ = served
    for step in d.sink.steps:
        assert step.target_rows == sum(
            g.prefilled + 1 + (0 if g.speculation is None else g.speculation.k) for g in step.groups
        )
        assert step.host_syncs == 1
        assert step.round_seconds >= step.schedule_seconds + step.commit_seconds


async def test_every_token_but_the_first_has_waited(served):
    d, found = served
    waits = [wait for step in d.sink.steps for wait in step.itl_seconds]
    assert sum(count for _, count in waits) + len(found) == sum(len(t) for t, _, _ in found)
    assert len(waits) + len(found) == len([g for g in d.stats if g.committed])
    assert all(seconds >= 0 for seconds, _ in waits)


async def test_tokens_that_come_with_the_first_waited_for_nothing():
    """A prompt of one token has no rows before its frontier: its first round drafts."""
    async with desk(draft=TARGET) as d:
        tokens, _, finish = await outcome(d.ask(request(1, (4,), k=4, max_tokens=12))[0])
    waits = [wait for step in d.sink.steps for wait in step.itl_seconds]
    assert waits[0] == (0.0, d.stats[0].committed - 1)
    assert d.stats[0].committed > 1
    assert sum(count for _, count in waits) == len(tokens) - 1
    spent = finish.stats.finished - finish.stats.first_token
    assert sum(seconds * count for seconds, count in waits) == pytest.approx(spent)


async def test_rows_written_for_drafts_and_rows_kept(served):
    d, found = served
    for group in d.stats:
        drafted = 0 if group.speculation is None else group.speculation.k
        assert group.branch_rows == drafted
        # The frontier's row and those of the tokens before the last one out.
        assert group.kept_rows == group.prefilled + group.committed
    # Two prompt tokens each, and every token out but the last one.
    kept = sum(group.kept_rows for group in d.stats)
    assert kept == sum(len(tokens) + 1 for tokens, _, _ in found)


async def test_wishes_and_trace_come_back_with_the_end():
    async with desk() as d:
        asked = request(1, ttft=0.5, tpot=0.25, trace="00-a-b-01")
        await outcomes(d.ask(asked, request(2)))
    ends = [each for step in d.sink.steps for each in step.finished]
    found = {each.request: (each.ttft, each.tpot, each.trace) for each in ends}
    assert found == {1: (0.5, 0.25, "00-a-b-01"), 2: (None, None, None)}


async def test_a_cancelled_round_s_drafts_were_for_nothing():
    async with desk(draft=TARGET) as d:
        (subscription,) = d.ask(request(1, (1, 2), k=4, max_tokens=40))
        await anext(subscription)
        d.runner.open.clear()
        rounds = d.runner.rounds
        while d.runner.rounds == rounds:
            await d.runner.reached()
        d.engine.abort(1)
        d.runner.open.set()
    last = d.stats[-1]
    assert (last.outcome, last.branch_rows, last.kept_rows) == (CommitOutcome.STALE, 4, 0)


async def test_the_load_is_told_when_it_changes_between_rounds():
    async with desk() as d:
        d.runner.open.clear()
        (subscription,) = d.ask(request(1))
        assert d.sink.loads[-1].waiting == 1
        await d.runner.reached()
        d.engine.abort(1)
        d.runner.open.set()
        await outcome(subscription)
    assert d.sink.loads[-1].running == d.sink.loads[-1].waiting == 0
    assert d.sink.loads[-1].target_pool.used == 0


async def test_nothing_is_drafted_when_a_proposer_finds_nothing():
    async with desk() as d:
        asked = request(1, (1, 2, 3), proposer=NGRAM, max_tokens=3)
        tokens, _, finish = await outcome(d.ask(asked)[0])
    assert tokens == expected(asked)
    assert finish.stats.histogram[0] == finish.stats.steps
    assert {g.proposer for g in d.stats} <= {NONE, NGRAM}
    assert MODEL not in {g.proposer for g in d.stats}


async def test_places_past_a_stop_are_not_reached():
    whole = expected(request(1, max_tokens=20))
    place = next(i for i in range(2, 8) if whole.index(whole[i]) == i)
    asked = request(1, max_tokens=20, k=8, token_ids=frozenset({whole[place]}))
    async with desk(draft=TARGET) as d:
        tokens, _, finish = await outcome(d.ask(asked)[0])
    assert tokens == whole[: place + 1]
    last = d.stats[-1]
    # The first token came with the prompt, the others are drafts.
    assert (last.speculation.k, last.speculation.accepted) == (8, place)
    assert last.speculation.reached == len(last.speculation.mass) == place
    assert last.terminal is TerminalKind.STOP
    assert finish.stats.histogram[place] == 1


async def test_a_round_that_was_cut_has_no_forecast():
    """What was forecast is another round."""

    class Sure(FixedController):
        def decide(self, view):
            told = Forecast(tokens=9.0, seconds=1.0, plain_tokens=1.0, plain_seconds=1.0)
            return replace(super().decide(view), forecast=told)

    asked = [request(n, (n,), max_tokens=40) for n in (1, 2, 3)]
    async with desk(config(max_batched_tokens=12), controller=Sure(8)) as d:
        await outcomes(d.ask(*asked))
    seen = {False: 0, True: 0}
    for step in d.sink.steps:
        cut = any(c.reason is Reason.ROWS for c in step.decision.choices.values())
        assert (step.decision.forecast is None) == cut
        assert all(c.accepted <= c.k for c in step.decision.choices.values())
        seen[cut] += 1
    assert all(seen.values())
