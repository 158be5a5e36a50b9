"""Random lives through scheduler, ledger, landing and executor, beside the reckoning of each life.

Both layouts, small pools, cancels, preemptions, broken rounds, faults at every point, late results,
rows without a law in either model. After every step the product must stand where the reckoning
does.
"""

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from scheduler.commit import FaultPoint, Staged
from scheduler.config import PoolConfig
from scheduler.plan import Layout, Role
from scheduler.request import FinishReason
from scheduler.stats import CommitOutcome
from tests.oracles.accounts import (
    check_blocks,
    check_drafts,
    check_end,
    check_life,
    check_plan,
    check_record,
    check_result,
    check_stats,
)
from tests.oracles.breakage import Broken
from tests.oracles.reckoning import (
    LOST,
    NO_LAW,
    SIZES,
    draft,
    drafts_of,
    life_of,
    target,
)
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
    request,
)

CONTEXT = 40
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
PROMPTS = st.tuples(
    st.sampled_from([(), (), (LOST,), (NO_LAW,)]),
    st.lists(st.integers(0, 3), min_size=1, max_size=22),
).map(lambda parts: (*parts[0], *parts[1]))
PUBLISHED, STALE, ABORTED, REPLAYED = (
    CommitOutcome.PUBLISHED,
    CommitOutcome.STALE,
    CommitOutcome.ABORTED,
    CommitOutcome.REPLAYED,
)


class Lives(RuleBasedStateMachine):
    """One engine core over a small pool. `steps` counts rounds over all machines."""

    steps = 0

    @initialize(
        layout=st.sampled_from(Layout),
        blocks=st.integers(10, 24),
        drafts=st.integers(0, 12),
        budget=st.integers(9, 40),
        places=st.integers(1, 6),
    )
    def start(self, layout, blocks, drafts, budget, places):
        self.layout = layout
        self.rig = Rig(
            config(
                layout=layout,
                max_model_len=CONTEXT,
                draft_max_len=CONTEXT - 4,
                max_batched_tokens=budget,
                max_requests=places,
                target_pool=PoolConfig(blocks=blocks, block_size=SIZES[Role.TARGET]),
                draft_pool=PoolConfig(blocks=drafts, block_size=SIZES[Role.DRAFT]),
            ),
            fault=self._fault,
            target=target,
            draft=draft,
        )
        self.lives = {}
        self.last = 0
        self.flight = None
        self.past = []
        self.armed, self.struck = None, None

    def _fault(self, point, number):
        if self.armed == (point, number):
            self.armed, self.struck = None, (point, number)
            raise Broken(point.value)

    @rule(prompt=PROMPTS, settings=ARRIVALS)
    def arrive(self, prompt, settings):
        self.last += 1
        if prompt[0] == NO_LAW:
            # A row without a law ends a request even behind a stop of the same round.
            settings = {**settings, "text": Letters(), "token_ids": frozenset()}
        asked = request(self.last, prompt, **settings)
        self.rig.submit(asked)
        self.lives[self.last] = life_of(asked, CONTEXT)

    @precondition(lambda self: self.flight is None and self.lives)
    @rule(rounds=st.integers(1, 6))
    def step(self, rounds):
        for _ in range(rounds):
            self._take_off()
            self._arrive_at()

    @precondition(lambda self: self.flight is None and self.lives)
    @rule()
    def take_off(self):
        """Leave a round in flight, so that other things happen meanwhile."""
        self._take_off()

    @precondition(lambda self: self.flight is not None)
    @rule()
    def come_back(self):
        self._arrive_at()

    @precondition(lambda self: self.flight is not None)
    @rule(point=st.sampled_from(FaultPoint), which=st.integers(0, 5))
    def break_at(self, point, which):
        """The round in flight breaks at one point, for one of its requests."""
        groups = self.flight[0].groups
        self.armed = (point, groups[which % len(groups)].request)
        self._arrive_at()
        self.armed = None

    @precondition(lambda self: self.flight is not None)
    @rule()
    def break_down(self):
        """The round is given up, though its result is there and may yet come."""
        (plan, jobs), self.flight = self.flight, None
        result = self._run(plan)
        self.past.append((plan, jobs, self.rig.stage(plan, jobs, result), result))
        self._given_up(plan, self.rig.fail(plan))

    @precondition(lambda self: self.past)
    @rule(which=st.integers(0, 1000))
    def late_result(self, which):
        """The result of an earlier round comes once more."""
        plan, jobs, staged, result = self.past[which % len(self.past)]
        landed = self.rig.land(jobs, staged, result)
        assert not landed.events
        assert not landed.finished
        for stats in landed.groups:
            life = self.lives.get(stats.request)
            again = life is not None and life.last_round == plan.round_id
            assert stats.outcome is (REPLAYED if again else STALE)

    @precondition(lambda self: self.lives)
    @rule(which=st.integers(0, 10))
    def cancel(self, which):
        number = sorted(self.lives)[which % len(self.lives)]
        self.rig.cancel(number)
        self.lives[number].reason = FinishReason.ABORT
        self._end(number)

    @precondition(lambda self: any(life.running for life in self.lives.values()))
    @rule(which=st.integers(0, 10))
    def preempt(self, which):
        """Somebody takes a request's blocks, perhaps while its round is in flight."""
        running = sorted(number for number, life in self.lives.items() if life.running)
        number = running[which % len(running)]
        self.rig.book.preempt(self.rig.book.entries[number])
        self.lives[number].preempt()

    @invariant()
    def the_product_stands_where_the_reckoning_does(self):
        book = self.rig.book
        assert book.entries.keys() == book.ledger.states.keys() == self.lives.keys()
        for number, life in self.lives.items():
            check_life(self.rig, number, life)

    @invariant()
    def every_block_is_held_once_or_free(self):
        check_blocks(self.rig, self.lives)

    def teardown(self):
        if not hasattr(self, "rig"):
            return
        self._arrive_at()
        for _ in range(600):
            if not self.lives:
                break
            self._take_off()
            self._arrive_at()
            self.the_product_stands_where_the_reckoning_does()
            self.every_block_is_held_once_or_free()
        assert not self.lives
        assert self.rig.plan() is None
        assert self.rig.book.tables.all_free
        assert not self.rig.book.ledger.states

    def _take_off(self):
        work = self.rig.plan()
        waiting = {entry.request.request_id for entry in self.rig.book.waiting}
        for number, life in self.lives.items():
            if life.running and number in waiting:
                life.preempt()
            elif not life.running and number not in waiting:
                life.admit(self.rig.now)
        if work is None:
            assert not any(life.running for life in self.lives.values())
            return
        self.flight = work
        check_plan(work[0], self.lives, self.rig.config)

    def _arrive_at(self):
        """The round in flight runs and lands, unless it breaks at the armed point."""
        if self.flight is None:
            return
        (plan, jobs), self.flight = self.flight, None
        self.struck = None
        result = self._run(plan)
        effects = self._effects(plan, result)
        staged = self.rig.stage(plan, jobs, result)
        landed = self.rig.land(jobs, staged, result)
        self.past.append((plan, jobs, staged, result))
        for group, each, stats in zip(plan.groups, staged, landed.groups, strict=True):
            if isinstance(each, Staged) and effects[group.request] is not None:
                life = self._about(plan, group)
                check_record(each.record, life, group, effects[group.request])
            self._landed(plan, group, stats, effects[group.request])

    def _run(self, plan):
        type(self).steps += 1
        self.rig.target.calls.clear()
        self.rig.draft.calls.clear()
        result = self.rig.runner.run(plan)
        check_result(plan, result, self.rig)
        return result

    def _effects(self, plan, result):
        """What the round does to each request that it is still about."""
        found = {}
        for group, each in zip(plan.groups, result.groups, strict=True):
            life = self._about(plan, group)
            found[group.request] = None
            if life is not None:
                drafts = drafts_of(life, group)
                check_drafts(group, each, drafts)
                found[group.request] = life.effect(group, drafts)
        return found

    def _about(self, plan, group):
        """The life that the round is about, if it has not moved on."""
        life = self.lives.get(group.request)
        current = life is not None and life.generation == group.generation
        return life if current and life.given_up < plan.round_id else None

    def _landed(self, plan, group, stats, effect):
        """One share of a round that came back."""
        life = self._about(plan, group)
        if life is None:
            assert stats.outcome is STALE
            return
        if effect.fails:
            life.reason = FinishReason.ERROR
        elif self._struck(group.request):
            life.abort(group, plan.round_id)
            life.reason = FinishReason.ERROR if life.failures > 1 else None
        else:
            assert stats.outcome is PUBLISHED
            check_stats(stats, group, effect, self.layout)
            life.publish(effect, plan.round_id, self.rig.now)
            self._end(group.request)
            return
        assert stats.outcome is ABORTED
        self._end(group.request)

    def _struck(self, number):
        """Whether the request's share broke before it was published."""
        point, about = self.struck or (FaultPoint.AFTER_PUBLICATION, number)
        return about == number and point is not FaultPoint.AFTER_PUBLICATION

    def _given_up(self, plan, landed):
        """A whole round that broke: once more, each alone; who breaks alone ends."""
        about = [group for group in plan.groups if self._about(plan, group) is not None]
        outcomes = {each.request: each.outcome for each in landed.groups}
        assert outcomes == {group.request: ABORTED for group in about}
        for group in about:
            life = self.lives[group.request]
            life.abort(group, plan.round_id)
            if len(plan.groups) == 1 and life.failures > 1:
                life.reason = FinishReason.ERROR
            self._end(group.request)

    def _end(self, number):
        """Take leave of a request that has a reason to end."""
        life = self.lives[number]
        if life.reason is not None:
            del self.lives[number]
            check_end(self.rig, number, life)
