"""Random lives of requests through the real scheduler, ledger, landing and round executor.

The texts are known from the serial oracle, so any wrong row, block, draw or ledger shows as a
wrong token. Invariants are checked after every step.
"""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from scheduler.config import PoolConfig
from scheduler.errors import CommitRejected
from scheduler.landing import stage_round
from scheduler.lifecycle import Status
from scheduler.plan import DeviceDraft, HostDraft, Role
from scheduler.request import FinishReason
from scheduler.stats import CommitOutcome
from tests.oracles.rig import (
    BLOCK,
    MODEL,
    NGRAM,
    NOISE,
    NONE,
    TOKEN,
    Letters,
    Rig,
    config,
    expected,
    request,
)

CONTEXT = 40


def depth(draft):
    """Drafts that a plan gives a group."""
    if isinstance(draft, HostDraft):
        return len(draft.token_ids)
    return draft.depth if isinstance(draft, DeviceDraft) else 0


WARM = {"temperature": st.just(0.8), "verifier": st.just(NOISE)}
COLD = {"temperature": st.just(0.0), "verifier": st.sampled_from([TOKEN, BLOCK, NOISE])}
OTHERS = {
    "k": st.sampled_from([None, 0, 1, 3, 8]),
    "proposer": st.sampled_from([MODEL, MODEL, NGRAM, NONE]),
    "text": st.sampled_from([(), ("ab",), ("b", "ca")]).map(Letters),
    "token_ids": st.sampled_from([frozenset(), frozenset({5}), frozenset({0, 9})]),
    "max_tokens": st.integers(1, 20),
    "priority": st.integers(0, 1),
}
# Only these laws have one text, so that the serial oracle knows it.
ARRIVALS = st.fixed_dictionaries({**OTHERS, **WARM}) | st.fixed_dictionaries({**OTHERS, **COLD})


class Lives(RuleBasedStateMachine):
    """One engine core over a small pool."""

    @initialize(
        blocks=st.integers(10, 24),
        drafts=st.integers(0, 12),
        budget=st.integers(9, 40),
        places=st.integers(1, 6),
    )
    def start(self, blocks, drafts, budget, places):
        self.rig = Rig(
            config(
                max_model_len=CONTEXT,
                draft_max_len=CONTEXT - 4,
                max_batched_tokens=budget,
                max_requests=places,
                target_pool=PoolConfig(blocks=blocks, block_size=4),
                draft_pool=PoolConfig(blocks=drafts, block_size=8),
            )
        )
        self.asked = {}
        self.whole = {}
        self.last = 0
        self.generations = {}
        self.flight = None
        self.old = None
        self.failures = 0

    @rule(prompt=st.lists(st.integers(0, 3), min_size=1, max_size=24), settings=ARRIVALS)
    def arrive(self, prompt, settings):
        self.last += 1
        number = self.last
        asked = request(number, prompt, **settings)
        self.rig.submit(asked)
        self.asked[number] = asked
        self.whole[number] = expected(asked, context=CONTEXT)
        self.generations[number] = 0

    @precondition(lambda self: self.flight is None)
    @rule()
    def step(self):
        self._take_off()
        self._arrive_at()

    @precondition(lambda self: self.flight is None)
    @rule(rounds=st.integers(2, 6))
    def several_steps(self, rounds):
        for _ in range(rounds):
            self._take_off()
            self._arrive_at()

    @precondition(lambda self: self.flight is None)
    @rule()
    def take_off(self):
        """Leave a round in flight, so that other things happen meanwhile."""
        self._take_off()

    @precondition(lambda self: self.flight is not None)
    @rule()
    def come_back(self):
        self._arrive_at()

    @precondition(lambda self: self.flight is not None)
    @rule()
    def break_down(self):
        """The runner fails: nothing of the round may show. Never twice for the same request."""
        plan = self.flight[0]
        if any(self._failed_before(group.request) for group in plan.groups):
            self._arrive_at()
            return
        before = dict(self.rig.book.ledger.states)
        self.rig.fail(plan)
        assert self.rig.book.ledger.states == before
        self.flight = None
        self.failures += 1

    @precondition(lambda self: self.old is not None)
    @rule()
    def late_result(self):
        """The result of an earlier round comes once more, and is staged for the present plan."""
        jobs, staged, result = self.old
        before = dict(self.rig.book.ledger.states)
        landed = self.rig.landing.land(jobs, staged, result, self.rig.now)
        assert not landed.events
        assert {each.outcome for each in landed.groups} <= {
            CommitOutcome.REPLAYED,
            CommitOutcome.STALE,
        }
        assert self.rig.book.ledger.states == before
        if self.flight is not None:
            with pytest.raises(CommitRejected, match="stale result: round_id"):
                stage_round(*self.flight, result)

    @precondition(lambda self: self.rig.book.entries)
    @rule(which=st.integers(0, 10))
    def cancel(self, which):
        live = sorted(self.rig.book.entries)
        number = live[which % len(live)]
        self.rig.cancel(number)
        assert self.rig.finished[-1].reason is FinishReason.ABORT
        del self.asked[number]

    @invariant()
    def no_block_is_lost(self):
        rig = self.rig
        rig.book.tables.check_integrity([*rig.book.entries.values(), *rig._cancelled])
        for entry in rig.book.entries.values():
            assert (entry.status is Status.RUNNING) == (entry in rig.book.running)
            assert (entry.status is Status.WAITING) == (entry in rig.book.waiting)
            if entry.status is Status.WAITING:
                assert not entry.blocks
                assert entry.draft_rows == 0

    @invariant()
    def states_keep_their_identities(self):
        for number, state in self.rig.book.ledger.states.items():
            entry = self.rig.book.entries[number]
            output = state.tokens[len(entry.request.prompt) :]
            assert list(output) == self.rig.outputs[number].tokens
            assert state.kv_rows <= len(state.tokens) - 1
            if output and entry.status is Status.RUNNING and entry.counters.rounds:
                held = len(entry.blocks.get(Role.TARGET, ())) * 4
                assert state.kv_rows <= held
            assert 0 <= entry.draft_rows <= len(state.tokens) - 1
            assert entry.draft_rows <= len(entry.blocks.get(Role.DRAFT, ())) * 8

    @invariant()
    def published_text_is_a_prefix_of_the_serial_one(self):
        for number in self.asked:
            output, whole = self.rig.outputs[number], self.whole[number]
            assert output.tokens == whole[: len(output.tokens)]
            if output.finish is not None:
                assert output.tokens == whole

    @invariant()
    def generations_count_publications_and_preemptions(self):
        for number, state in self.rig.book.ledger.states.items():
            assert state.generation == self.generations[number]

    def teardown(self):
        if not hasattr(self, "rig"):
            return
        if self.flight is not None:
            self._arrive_at()
        for _ in range(400):
            if not self.rig.book.entries:
                break
            self._take_off()
            self._arrive_at()
            self.no_block_is_lost()
            self.generations_count_publications_and_preemptions()
        assert not self.rig.book.entries
        self.published_text_is_a_prefix_of_the_serial_one()
        for number in self.asked:
            self._complete(number)
        self.rig.plan()
        self.rig.book.tables.check_integrity(())

    def _complete(self, number):
        output = self.rig.outputs[number]
        assert output.finish.reason in {FinishReason.STOP, FinishReason.LENGTH}
        stats = output.finish.stats
        assert stats.completion_tokens == len(output.tokens)
        assert sum(stats.histogram) == stats.steps
        assert sum(a * count for a, count in enumerate(stats.histogram)) == stats.accepted
        positions = [token.position for event in output.events for token in event.tokens]
        first = len(self.asked[number].prompt)
        assert positions == list(range(first, first + len(positions)))

    def _failed_before(self, number):
        entry = self.rig.book.entries.get(number)
        return entry is not None and entry.failures > 0

    def _take_off(self):
        rig = self.rig
        waiting = {n: s.kv_rows for n, s in rig.book.ledger.states.items()}
        before = {n: s.generation for n, s in rig.book.ledger.states.items()}
        work = rig.plan()
        for number, state in rig.book.ledger.states.items():
            moved = state.generation - before[number]
            # One plan may preempt a request once, and then its rows are gone.
            assert moved in (0, 1)
            assert not moved or (state.kv_rows == 0 and waiting[number] >= 0)
            self.generations[number] += moved
        if work is None:
            assert not rig.book.running
            return
        self._check_plan(work[0])
        self.flight = work

    def _check_plan(self, plan):
        budget = self.rig.config.max_batched_tokens
        rows = sum(group.rows + depth(group.draft) for group in plan.groups)
        assert 0 < rows <= budget
        catch_up = [g.draft.catch_up for g in plan.groups if isinstance(g.draft, DeviceDraft)]
        assert sum(catch_up) <= budget
        assert len(plan.groups) <= self.rig.config.max_requests
        counted = Counter(b for group in plan.groups for b in group.blocks[Role.TARGET])
        assert all(count == 1 for count in counted.values())
        for group in plan.groups:
            reach = group.start + group.rows + depth(group.draft)
            assert reach <= min(len(group.blocks[Role.TARGET]) * 4, CONTEXT - 1)
            assert depth(group.draft) < group.max_emit
            if group.draft is not None and group.emits:
                assert group.rows == 1

    def _arrive_at(self):
        if self.flight is None:
            return
        plan, jobs = self.flight
        self.flight = None
        result, staged = self.rig.execute(plan, jobs)
        before = dict(self.rig.book.ledger.states)
        landed = self.rig.land(jobs, staged, result)
        self.old = (jobs, staged, result)
        for stats in landed.groups:
            if stats.request in before:
                assert stats.outcome is CommitOutcome.PUBLISHED
                self.generations[stats.request] += 1
            else:
                assert stats.outcome is CommitOutcome.STALE


def test_random_lives():
    run_state_machine_as_test(
        Lives,
        settings=settings(
            max_examples=100,
            stateful_step_count=20,
            deadline=None,
            # A failing life is told as it is: to shrink it takes minutes.
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_request_that_is_cancelled_in_flight_leaves_the_others_alone():
    rig = Rig()
    asked = [request(1, temperature=0.8, verifier=NOISE), request(2, (4, 5)), request(3, (6,))]
    rig.submit(*asked)
    rig.step()
    plan, jobs = rig.plan()
    rig.cancel(2)
    result, staged = rig.execute(plan, jobs)
    landed = rig.land(jobs, staged, result)
    outcomes = {each.request: each.outcome for each in landed.groups}
    assert outcomes[2] is CommitOutcome.STALE
    assert outcomes[1] is outcomes[3] is CommitOutcome.PUBLISHED
    rig.drain()
    for each in (asked[0], asked[2]):
        assert rig.outputs[each.request_id].tokens == expected(each)


def test_a_plan_of_changed_results_is_refused_whole():
    rig = Rig()
    rig.submit(request(1), request(2, (4, 5)))
    plan, jobs = rig.plan()
    result = rig.runner.run(plan)
    elsewhere = replace(plan.coordinate, digest="other")
    for name, value in (("coordinate", elsewhere), ("round_id", 99)):
        with pytest.raises(CommitRejected, match=rf"stale result: ({name}|digest)"):
            stage_round(plan, jobs, replace(result, **{name: value}))
    with pytest.raises(CommitRejected, match="stale result: request"):
        stage_round(plan, jobs, replace(result, groups=result.groups[::-1]))
