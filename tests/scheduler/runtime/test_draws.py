"""Which draw decides what: the uniforms that rounds report are those of their keys."""

import pytest

from scheduler.sampling.rng import CounterRandomness, DrawKey, Stream
from tests.oracles.rig import BLOCK, TOKEN, Rig, request


def uniform(stream, seed, choice, length, offset):
    """The draw of contract section 7: keyed by the published length at the start of the round."""
    key = DrawKey(seed=seed, choice=choice, stream=stream, position=length, offset=offset)
    return CounterRandomness().uniforms([key]).item()


@pytest.mark.parametrize("verifier", [TOKEN, BLOCK])
def test_every_test_uses_the_draw_of_its_own_key(verifier):
    """Two choices of one request among them: same prompt, same seed."""
    rig = Rig()
    kind = {"temperature": 0.9, "verifier": verifier, "k": 3, "max_tokens": 25}
    rig.submit(
        *(
            request(n, (4, 2), seed=seed, choice=choice, **kind)
            for n, (seed, choice) in enumerate([(5, 0), (5, 1), (-6, 0)], 1)
        )
    )
    seen = set()
    while (work := rig.plan()) is not None:
        plan, jobs = work
        result, staged = rig.execute(plan, jobs)
        rig.land(jobs, staged, result)
        for group, each in zip(plan.groups, result.groups, strict=True):
            names = (group.sampling.seed, group.choice, len(group.tokens))
            for place, outcome in enumerate(each.outcomes):
                assert outcome.uniform == uniform(Stream.ACCEPTANCE, *names, place)
                seen.add(outcome.uniform)
    assert len(seen) > 30
    assert rig.outputs[1].tokens != rig.outputs[2].tokens
