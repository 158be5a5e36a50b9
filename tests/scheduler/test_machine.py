"""Random lives of requests, and cancels and results that come at the wrong time."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from scheduler.errors import CommitRejected
from scheduler.plan import Layout
from scheduler.staging import stage_round
from scheduler.stats import CommitOutcome
from tests.oracles.machine import Lives
from tests.oracles.rig import NOISE, Rig, config, expected, request


def test_random_lives():
    run_state_machine_as_test(
        Lives,
        settings=settings(
            max_examples=50,
            stateful_step_count=15,
            deadline=None,
            # A failing life is told as it is: to shrink it takes minutes.
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("layout", Layout)
def test_a_request_that_is_cancelled_in_flight_leaves_the_others_alone(layout):
    rig = Rig(config(layout=layout))
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
