"""The goodput controller in a live engine whose rounds take a virtual time by their rows."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.config import PoolConfig
from scheduler.controller import DraftView, FixedController, LoadView
from scheduler.costs import CostTable, RoundCurve, rising
from scheduler.goodput import GoodputController
from scheduler.plan import DeviceDraft
from scheduler.request import ProposerKind
from scheduler.stats import Policy, Reason
from tests.oracles.desk import Paced, desk, outcome, outcomes
from tests.oracles.rig import (
    BLOCK,
    DRAFT,
    NGRAM,
    NOISE,
    TARGET,
    TOKEN,
    Rig,
    config,
    expected,
    request,
)
from tests.telemetry.rounds import LOAD, drafted, plain, step

pytestmark = pytest.mark.anyio

K_MAX = 8
STEP, CAUGHT = 0.1, 0.001
NUMBERS = (1, 2, 4, 8, 16)


def crowded(rows):
    """Eight rows cost little, each further one as much as an eighth of a round."""
    return 1.0 + 0.02 * min(rows, 8) + 0.2 * max(rows - 8, 0)


def profile(rounds=crowded, step=STEP):
    """The table of a machine whose rounds take `rounds(rows)`, without error."""
    curves = [
        RoundCurve(
            emitters=n, seconds=rising((n * (k + 1), rounds(n * (k + 1))) for k in range(K_MAX + 1))
        )
        for n in NUMBERS
    ]
    return CostTable(
        context=0,
        rounds=tuple(curves),
        step=rising((n, step) for n in NUMBERS),
        catch_up=rising((rows, step + CAUGHT * rows) for rows in (1, 256)),
    )


def paced(rounds=crowded, step=STEP):
    """Runners like that. Depth is not in a result: rows of the draft beyond the steps are cheap."""

    class Machine(Paced):
        def __init__(self, real):
            super().__init__(real, lambda result: rounds(result.target_rows))

        def run(self, plan):
            drafts = [g.draft for g in plan.groups if isinstance(g.draft, DeviceDraft)]
            self.now += step * max((each.depth for each in drafts), default=0)
            self.now += CAUGHT * sum(each.catch_up for each in drafts)
            return super().run(plan)

    return Machine


def roomy(**changes):
    """An engine for sixteen requests of up to 400 tokens."""
    pools = {
        "target_pool": PoolConfig(blocks=2000, block_size=4),
        "draft_pool": PoolConfig(blocks=1000, block_size=8),
    }
    sizes = {"max_model_len": 400, "draft_max_len": 400, "max_batched_tokens": 200}
    return config(**{**pools, **sizes, "max_requests": 16, **changes})


def controlled(settings=None, rounds=crowded, step=STEP, **options):
    """A desk with a controller that knows its machine."""
    controller = GoodputController(profile(rounds, step), K_MAX)
    runner = paced(rounds, step)
    return desk(settings or roomy(), controller=controller, runner=runner, **options)


def crowd(count, first=100, **changes):
    return [
        request(n, (n % 16, 3), **{"max_tokens": 40, **changes})
        for n in range(first, first + count)
    ]


def chosen(d, number):
    """(requests that emit, K, reason) of every round in which one request was decided on."""
    return [
        (len(step.decision.choices), found.k, found.reason)
        for step in d.sink.steps
        if (found := step.decision.choices.get(number)) is not None
    ]


async def until(subscription, count):
    """Read tokens until there are `count`."""
    tokens = []
    while len(tokens) < count:
        tokens += [token.token for token in (await anext(subscription)).tokens]
    return tokens


async def test_a_crowd_ends_drafting_and_its_end_brings_it_back():
    """With the target for a draft every draft is accepted, as long as its cache is right."""
    long = request(1, max_tokens=300)
    async with controlled(draft=TARGET) as d:
        (subscription,) = d.ask(long)
        tokens = await until(subscription, 60)
        await outcomes(d.ask(*crowd(15)))
        tokens += (await outcome(subscription))[0]
    assert tokens == expected(long, context=400)
    seen = chosen(d, 1)
    places = [place for place, (count, _, _) in enumerate(seen) if count == 16]
    before = [k for _, k, _ in seen[2 : places[0]]]
    during = [k for _, k, _ in seen[places[3] : places[-1]]]
    after = [k for _, k, _ in seen[places[-1] + 5 : -8]]
    assert min(before) >= 4
    assert len(during) > 5
    assert sum(during) <= 1
    assert len(after) >= 5
    assert min(after) >= 4
    for each in d.sink.steps:
        for group in each.groups:
            if group.request == 1 and group.speculation is not None:
                assert group.speculation.accepted == group.speculation.k


async def test_rounds_without_drafts_run_no_draft_row():
    async with controlled() as d:
        await outcomes(d.ask(*crowd(16)))
    plain = [step for step in d.sink.steps if not any(c.k for c in step.decision.choices.values())]
    assert len(plain) > 10
    assert all(step.draft_rows == 0 for step in plain)


async def test_greedy_and_sampled_requests_keep_their_texts():
    kinds = itertools.cycle(
        [{}, {"temperature": 0.8, "verifier": NOISE}, {"proposer": NGRAM}, {"verifier": BLOCK}]
    )
    asked = [request(n, (n % 16, 3), max_tokens=20 + 7 * n, **next(kinds)) for n in range(1, 13)]
    others = crowd(4, temperature=0.9, verifier=TOKEN, max_tokens=60)
    async with controlled() as d:
        found = await outcomes(d.ask(*asked, *others))
    for each, (tokens, _, _) in zip(asked, found, strict=False):
        assert tokens == expected(each, context=400)
    ks = {c.k for step in d.sink.steps for c in step.decision.choices.values()}
    assert len(ks) >= 3


async def test_a_fixed_k_binds_its_own_request_only():
    fixed = request(1, k=3, max_tokens=60)
    none = request(2, (5,), k=0, max_tokens=60)
    free = request(3, (6,), max_tokens=60)
    async with controlled(draft=TARGET) as d:
        await outcomes(d.ask(fixed, none, free))
        early = chosen(d, 3)
        await outcomes(d.ask(request(4, k=3, max_tokens=20), *crowd(15)))
    assert all(k == 3 and why is Reason.FIXED for _, k, why in chosen(d, 1)[1:12])
    assert {(k, why) for _, k, why in chosen(d, 2)} == {(0, Reason.FIXED)}
    assert sum(k >= 2 for _, k, _ in early) >= 5
    crowd_rounds = [k for count, k, _ in chosen(d, 4)[1:] if count == 16]
    assert crowd_rounds[0] == 3
    assert sum(k for count, k, _ in chosen(d, 100)[3:] if count == 16) <= 1


async def test_near_a_threshold_drafting_is_not_switched_on_and_off():
    """Where drafting gains about nothing, estimates wander across the threshold all the time."""
    switches = []  # a thousand rounds; each start and end of a request is one, for want of room
    for cost in (0.6, 0.68):

        def near(rows, cost=cost):
            return 1.0 + cost / 2 * (rows - 1)

        async with controlled(rounds=near, step=cost / 2) as d:
            for n in range(1, 3):
                one = request(n, temperature=0.9, verifier=TOKEN, max_tokens=390)
                await outcome(d.ask(one)[0])
        aside = (Reason.PROBE, Reason.BASELINE)
        on = [
            found.k > 0
            for step in d.sink.steps
            for found in step.decision.choices.values()
            if found.reason not in aside
        ]
        switches.append(1000 * sum(a != b for a, b in itertools.pairwise(on)) / len(on))
    assert max(switches) <= 20


async def test_a_request_with_much_to_catch_up_takes_no_drafts_from_its_neighbours():
    """Its draft cache lags by more than the rows of two rounds."""
    sizes = roomy(max_batched_tokens=48)
    long = request(1, [1, 2, 3] * 50, max_tokens=20)
    short = request(2, (4, 5), max_tokens=60)
    async with desk(sizes, controller=FixedController(4)) as d:
        await outcomes(d.ask(long, short))
    together = [
        (step.decision.choices[1].k, step.decision.choices[2].k)
        for step in d.sink.steps
        if {1, 2} <= step.decision.choices.keys()
    ]
    assert together[1:4] == [(0, 4)] * 3
    assert all(k == 4 for _, k in together[1:])


# --- dozing --------------------------------------------------------------------------------------


def looked_at(count):
    """A round of requests that decode."""
    views = (
        DraftView(
            request=n,
            asked=None,
            room=K_MAX,
            policy=Policy.TOKEN,
            proposer=ProposerKind.DRAFT_MODEL,
            lag=40,
            context=48,
            emitted=40,
            left=200,
        )
        for n in range(count)
    )
    return LoadView(requests=tuple(views), rows=count, prefill_rows=0, spare=200, load=LOAD)


def test_a_doze_ends_although_the_load_stays():
    """A decision without a thought has no forecast."""
    controller = GoodputController(profile(), K_MAX)
    asleep = [controller.decide(looked_at(16)).forecast is None for _ in range(60)]
    runs = [len(list(run)) for dozing, run in itertools.groupby(asleep) if dozing]
    assert len(runs) > 5
    assert max(runs) <= 5


def test_a_fallen_load_ends_a_doze_at_once():
    controller = GoodputController(profile(), K_MAX)
    while controller.decide(looked_at(16)).forecast is not None:
        pass
    found = controller.decide(looked_at(1))
    assert found.forecast is not None
    assert found.k(0) > 0


# --- one seed ------------------------------------------------------------------------------------


async def test_requests_with_one_seed_are_not_drafted_for_but_their_neighbours_are():
    warm = {"temperature": 0.9, "verifier": TOKEN, "max_tokens": 40, "own_seed": True}
    noisy = {**warm, "verifier": NOISE}
    async with controlled() as d:
        await outcomes(
            d.ask(
                request(1, seed=7, **warm),
                request(2, seed=7, **warm),
                request(3, seed=8, **warm),
                request(4, seed=8, **noisy),
                request(5, seed=7, k=2, **warm),
            )
        )
    for number in (1, 2):
        assert all(k == 0 for _, k, _ in chosen(d, number))
        assert Reason.SHARED_SEED in {why for _, _, why in chosen(d, number)}
    assert any(k for _, k, _ in chosen(d, 4))
    assert {why for _, _, why in chosen(d, 5)} == {Reason.FIXED}
    assert any(k == 2 for _, k, _ in chosen(d, 5))


# --- probing -------------------------------------------------------------------------------------


def test_probes_cost_a_small_share_of_the_time():
    """Nothing is ever accepted; a draft costs half of a round."""
    controller = GoodputController(profile(lambda rows: 1.0 + 0.25 * (rows - 1), 0.25), K_MAX)
    spent, total, probes, willing = 0.0, 0.0, 0, 0
    for number in range(1500):
        choice = controller.decide(looked_at(1)).choices[0]
        if number > 100 and choice.reason is Reason.PROBE:
            spent += 0.5 * choice.k
            probes += 1
        willing += number > 100 and choice.k > 0 and choice.reason is not Reason.PROBE
        seconds = 1.0 + 0.5 * choice.k
        total += seconds
        group = drafted(choice.k, 0, mass=0.0, request=0) if choice.k else plain(request=0)
        rows = {"target_rows": 1 + choice.k, "draft_rows": choice.k}
        controller.learn(step(group, round_seconds=seconds, **rows))
    assert probes >= 3
    assert spent <= 0.006 * total
    # What was seen fades when nothing is seen: now and then it is tried once more.
    assert willing <= 10


# --- decisions and plans -------------------------------------------------------------------------


def planned(plan):
    """Drafts of the draft model in a plan, by request."""
    drafts = {group.request: group.draft for group in plan.groups}
    return {n: d.depth for n, d in drafts.items() if isinstance(d, DeviceDraft) and d.depth}


async def reasons(settings, *asked):
    """Reasons of all that was decided, after the requests' first tokens."""
    async with desk(settings, controller=FixedController(8)) as d:
        await outcomes(d.ask(*asked))
    return {c.reason for step in d.sink.steps for c in step.decision.choices.values()}


async def test_a_cut_for_rows_says_so():
    found = await reasons(
        config(max_batched_tokens=12), *(request(n, (n,), max_tokens=40) for n in (1, 2, 3))
    )
    assert Reason.ROWS in found
    assert Reason.MEMORY not in found


async def test_a_cut_for_blocks_says_so():
    tight = config(
        target_pool=PoolConfig(blocks=24, block_size=4),
        draft_pool=PoolConfig(blocks=64, block_size=8),
        max_batched_tokens=100,
    )
    found = await reasons(
        tight, request(1, [1] * 43, max_tokens=50), request(2, [2] * 47, max_tokens=40)
    )
    assert Reason.MEMORY in found


@settings(max_examples=25, deadline=None)
@given(
    lives=st.lists(
        st.tuples(
            st.integers(1, 40),
            st.sampled_from([None, None, 0, 2, 8]),
            st.sampled_from([ProposerKind.DRAFT_MODEL, ProposerKind.DRAFT_MODEL, NGRAM]),
            st.integers(1, 20),
        ),
        min_size=1,
        max_size=6,
    ),
    budget=st.integers(9, 60),
    blocks=st.integers(24, 40),
    drafts=st.integers(0, 12),
)
def test_a_decision_says_what_was_planned(lives, budget, blocks, drafts):
    rig = Rig(
        config(
            max_batched_tokens=budget,
            target_pool=PoolConfig(blocks=blocks, block_size=4),
            draft_pool=PoolConfig(blocks=drafts, block_size=8),
        ),
        controller=GoodputController(profile(), K_MAX),
        draft=DRAFT,
    )
    asked = [
        request(n, [n] * length, k=k, proposer=proposer, max_tokens=count)
        for n, (length, k, proposer, count) in enumerate(lives, 1)
    ]
    rig.submit(*asked)
    modelled = {n for n, each in enumerate(lives, 1) if each[2] is not NGRAM}
    while (work := rig.plan()) is not None:
        plan, jobs = work
        choices = rig.scheduler.decision.choices
        assert choices.keys() == {group.request for group in plan.groups if group.emits}
        told = {n: found.k for n, found in choices.items() if found.k and n in modelled}
        assert told == planned(plan)
        rig.land(jobs, *rig.execute(plan, jobs)[::-1])
    assert [rig.outputs[each.request_id].tokens for each in asked] == list(map(expected, asked))
