"""The simulator's arms, figures, catalogue and command."""

import json
from dataclasses import replace

import pytest

from scheduler.controller import FixedController
from scheduler.stats import Choice, Decision, Reason
from tests.bench.simulation.__main__ import main
from tests.bench.simulation.arms import OracleController, best_uniform, expected_rate
from tests.bench.simulation.catalogue import catalogue
from tests.bench.simulation.engine import VirtualEngine
from tests.bench.simulation.measure import Point, Tally, run_arm
from tests.bench.simulation.record import outcomes
from tests.bench.simulation.table import render
from tests.bench.simulation.traffic import (
    steady,
)
from tests.bench.virtual import QUIET, TRUTH, world


@pytest.mark.parametrize("k", [0, 2, 5])
def test_the_expected_rate_is_met(k):
    where = world(prompts=(2, 2), outputs=(900, 900), stop=0.0, span=60.0, noise=QUIET)
    found = run_arm(where, FixedController(k), "", 0.1).rate
    profile = (0.7,)
    expected = expected_rate(TRUTH, {profile: 4}, {profile: k}, 0)
    assert found == pytest.approx(expected, rel=0.02)


def test_the_oracle_takes_the_best_k_of_each_profile():
    good, bad = (0.9,), (0.05,)
    chosen = best_uniform(TRUTH, {good: 2, bad: 2}, 8, 0)
    assert chosen[good] > 1
    assert chosen[bad] == 0
    where = world(steady(0.9), steady(0.05), stop=0.0, span=30.0)
    oracle = run_arm(where, OracleController(TRUTH, 8), "", 0.1).rate
    best = max(run_arm(where, FixedController(k), "", 0.1).rate for k in range(9))
    assert oracle > 1.02 * best


class Scripted(FixedController):
    """K by round for all, with reasons."""

    def __init__(self, *script):
        super().__init__(0)
        self._script = list(script)

    def decide(self, view):
        if not any(each.room for each in view.requests) or not self._script:
            return Decision()
        k, reason = self._script.pop(0)
        choices = {each.request: Choice(k=k, reason=reason) for each in view.requests}
        return Decision(choices=choices)


def test_switches_and_probes_are_counted():
    kept, probe = Reason.KEPT, Reason.PROBE
    script = [(2, kept), (2, kept), (3, kept), (0, kept), (1, probe), (0, kept), (4, kept)]
    rounds = []
    where = world(load=1, outputs=(60, 60), stop=0.0, span=0.4, prompts=(20, 20))
    VirtualEngine(where, Scripted(*script), rounds.append).run()
    assert [each.shares[0].k for each in rounds[1:8]] == [2, 2, 3, 0, 1, 0, 4]
    rounds = rounds[:8]
    tally = Tally(0.0)
    for each in rounds:
        tally.add(each)
    arm = tally.arm("x")
    assert (arm.flips, arm.changes) == (2, 3)
    assert arm.probing == pytest.approx(rounds[5].seconds / arm.seconds)
    assert arm.idle_draft == pytest.approx(rounds[5].draft_seconds / arm.seconds)
    assert arm.tokens == sum(each.tokens for each in rounds)


def test_the_first_of_the_span_is_not_counted():
    whole = run_arm(world(), FixedController(0), "", 0.0)
    part = run_arm(world(), FixedController(0), "", 0.5)
    assert part.rounds == pytest.approx(whole.rounds / 2, rel=0.05)
    assert part.rate == pytest.approx(whole.rate, rel=0.05)


def test_catalogue_names_are_unique_and_every_world_stands():
    names = [each.name for each in catalogue()]
    assert len(names) == len(set(names)) > 40
    for each in catalogue():
        for concurrency in each.concurrencies:
            assert each.world(concurrency, seed=1).span > 0


def test_recorded_outcomes_come_from_an_acceptance_log():
    def place(position, accepted):
        record = {"record": "position", "request": 3, "policy": "token", "position": position}
        return json.dumps(record | {"accepted": accepted})

    plain = {"record": "plain", "request": 3, "policy": "token", "position": 20}
    lines = ['{"record":"header"}', json.dumps(plain), place(21, True), place(22, False)]
    lines += [place(23, True), place(25, False)]
    assert outcomes(lines) == {"token": ["110110"]}


def test_the_table_names_the_worst():
    where = world(span=2.0)
    arms = [run_arm(where, FixedController(k), f"k={k}", 0.0) for k in (0, 2)]
    auto, oracle = (replace(arms[0], name=name) for name in ("auto", "oracle"))
    auto = replace(auto, rate=0.5 * arms[0].rate)
    point = Point(scenario="s", concurrency=4, paced=False, arms=(*arms, auto, oracle))
    assert point.over("k=0") == pytest.approx(0.5)
    assert point.best_fixed == "k=2"
    text = render([point])
    assert "AGAINST PLAIN DECODING: 1 OF 1 POINTS BELOW 0.97, WORST\n  0.500  s at 4" in text
    assert "WITH TWO MORE SEEDS: 1 OF 1 POINTS BELOW 0.97" in text
    lucky = replace(point, arms=(*arms, replace(auto, rate=arms[1].rate), oracle))
    elsewhere = replace(lucky, concurrency=8)
    text = render([point], [lucky, lucky, elsewhere])
    assert text.splitlines()[-2:] == [
        "WITH TWO MORE SEEDS: 0 OF 1 POINTS BELOW 0.97",
        f"  {point.worst:.3f}, 1.000, 1.000: median 1.000  s at 4",
    ]


def test_points_below_the_bar_are_run_with_two_more_seeds(monkeypatch, capsys):
    monkeypatch.setattr("tests.bench.simulation.__main__.FLOOR", 2.0)
    assert main(["--only", "iid-0.9/gpu", "--at", "1", "--quick", "--seed", "5"]) == 0
    told = capsys.readouterr()
    assert [line.split()[1] for line in told.err.splitlines()] == ["1/1", "1/2", "2/2"]


def test_the_command_runs_and_writes(tmp_path, capsys):
    target = tmp_path / "figures.json"
    asked = ["--only", "iid-0.9/gpu", "--at", "1", "--quick", "--json", str(target)]
    assert main(asked) == 0
    assert "iid-0.9/gpu" in capsys.readouterr().out
    arms = json.loads(target.read_text("utf-8"))[0]["arms"]
    assert [arm["name"] for arm in arms] == [*(f"k={k}" for k in range(9)), "auto", "oracle"]
    assert main(["--only", "no such"]) == 2
