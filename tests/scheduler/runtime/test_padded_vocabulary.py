"""Tables wider than the event space: ids past it are no events, however likely they seem."""

import time

import pytest

from scheduler.runtime.torch_runner import Pair, TorchRunner
from scheduler.sampling.rng import CounterRandomness
from tests.oracles.rig import (
    BLOCK,
    DRAFT,
    NOISE,
    TARGET,
    TOKEN,
    VOCABULARY,
    Rig,
    capabilities,
    config,
    expected,
    request,
)
from tests.oracles.tabular import TabularForward


def padded(table, more):
    """`table` with `more` ids behind it, each likelier than any other."""
    return lambda prefix: [*table(prefix), *[9.0] * more]


def wide_rig():
    settings = config()
    forwards = [
        TabularForward(padded(table, more), VOCABULARY + more, pool.blocks, pool.block_size)
        for table, more, pool in (
            (TARGET, 4, settings.target_pool),
            (DRAFT, 2, settings.draft_pool),
        )
    ]
    pair = Pair(target=forwards[0], draft=forwards[1], vocabulary=VOCABULARY)
    runner = TorchRunner(pair, capabilities(), CounterRandomness(), time.perf_counter)
    return Rig(settings, runner=runner)


def outcomes_of(rig, *asked):
    """Every draft that was verified while `asked` were served."""
    rig.submit(*asked)
    found = []
    while (work := rig.plan()) is not None:
        plan, jobs = work
        result, staged = rig.execute(plan, jobs)
        rig.land(jobs, staged, result)
        found += [outcome for group in result.groups for outcome in group.outcomes]
    return found


def test_a_greedy_text_and_its_drafts_stay_inside():
    asked = [request(n, (n, 3), k=4, max_tokens=12, logprobs=2) for n in (1, 2)]
    rig = wide_rig()
    assert all(each.token < VOCABULARY for each in outcomes_of(rig, *asked))
    assert [rig.outputs[n].tokens for n in (1, 2)] == [expected(each) for each in asked]


@pytest.mark.parametrize("verifier", [TOKEN, BLOCK, NOISE])
def test_a_padded_pair_draws_what_a_bare_one_draws(verifier):
    kind = {"temperature": 0.9, "verifier": verifier, "k": 4, "max_tokens": 12}
    asked = [request(n, (n, 3), top_p=top_p, **kind) for n, top_p in ((1, 1.0), (2, 0.9))]
    wide, bare = wide_rig(), Rig()
    assert outcomes_of(wide, *asked) == outcomes_of(bare, *asked)
    assert [each.tokens for each in wide.outputs.values()] == [
        each.tokens for each in bare.outputs.values()
    ]
