"""Runs the benchmark of dynamic K on a small pair and over tables, and checks what it counts and
how it reduces. It never looks at a speed."""

import json
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import torch

from scheduler.assembly import build_engine
from scheduler.request import FinishReason, Verifier
from scheduler.stats import Choice, Decision, Reason
from tests.bench.figures import Machine, Versions
from tests.bench.k.__main__ import main
from tests.bench.k.crowd import Crowd, Relay, Stage, Timed, Trace
from tests.bench.k.figures import Models, Report, Settings
from tests.bench.k.options import read_options
from tests.bench.k.plot import draw
from tests.bench.k.reduction import (
    AUTO,
    BARE,
    best_k,
    fixed,
    free_choices,
    held_out,
    idle,
    level,
    ramp,
    stretch,
    switches,
)
from tests.bench.k.table import render
from tests.bench.k.turns import Place, Turnstile
from tests.oracles.rig import VOCABULARY, config, tabular_runner
from tests.telemetry.rounds import drafted, ended, plain, step

TOKENS = 8


@asynccontextmanager
async def crowd(runner=None):
    settings = config()
    relay = Relay()
    runner = runner or tabular_runner(settings)[0]
    engine = build_engine(settings, runner, sink=relay, clock=time.perf_counter)
    await engine.start()
    try:
        yield Crowd(engine, relay, Place(Turnstile(1.0))), engine
    finally:
        await engine.stop()


def trace(*stages, k=0):
    return Trace(
        stages=tuple(Stage(concurrency=many, tokens=tokens) for many, tokens in stages),
        k=k,
        prompts=tuple(tuple((n + i) % VOCABULARY for i in range(12)) for n in range(5)),
        tokens=TOKENS,
        temperature=1.0,
        verifier=Verifier.TOKEN,
        seed=7,
    )


# ---- the crowd ---------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("k", [0, 3, None])
async def test_so_many_requests_run_in_every_round_of_a_stage(k):
    async with crowd() as (each, engine):
        timed = await each.serve(trace((1, 20), (4, 50), (2, 20), k=k))
        assert engine.load().running == engine.load().target_pool.used == 0
    assert [part.stage.concurrency for part in timed] == [1, 4, 2]
    for part in timed:
        assert {len(step.groups) for step in part.steps} == {part.stage.concurrency}
        assert all(step.load.waiting == 0 for step in part.steps)


@pytest.mark.anyio
async def test_a_stage_is_whole_rounds_up_to_its_tokens():
    async with crowd() as (each, _):
        timed = await each.serve(trace((3, 40), (1, 10), k=4))
    numbers = [step.round_id for part in timed for step in part.steps]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    for part in timed:
        committed = [sum(group.committed for group in step.groups) for step in part.steps]
        assert sum(committed) == part.tokens >= part.stage.tokens > sum(committed[:-1])
        assert part.seconds > 0


@pytest.mark.anyio
async def test_first_requests_end_one_after_another_and_are_replaced_by_whole_ones():
    async with crowd() as (each, _):
        (timed,) = await each.serve(trace((4, 32)))
    # Lengths 2, 3, 5 and 7, a token of each before time starts; replacements have 8 and 12 + 8.
    assert [len(step.finished) for step in timed.steps] == [1, 1, 0, 1, 0, 1, 0, 0]
    prefilled = [sum(group.prefilled for group in step.groups) for step in timed.steps]
    assert [bool(rows) for rows in prefilled] == [0, 1, 1, 0, 1, 0, 1, 0]


@pytest.mark.anyio
async def test_every_request_asks_for_the_k_of_the_trace():
    async with crowd() as (each, _):
        (timed,) = await each.serve(trace((2, 40), k=3))
    ks = {choice.k for step in timed.steps for choice in free_choices(step)}
    assert max(ks) == 3
    assert 0 not in ks


@pytest.mark.anyio
async def test_an_engine_serves_one_trace_after_another():
    async with crowd() as (each, _):
        first, second = [await each.serve(trace((2, 30))) for _ in range(2)]
    assert [part.tokens for part in first] == [part.tokens for part in second]


class Broken:
    def __init__(self, runner):
        self.capabilities, self.failure = runner.capabilities, runner.failure

    def run(self, plan):
        raise RuntimeError("planted")


@pytest.mark.anyio
async def test_a_request_that_fails_fails_the_run():
    async with crowd(Broken(tabular_runner(config())[0])) as (each, _):
        with pytest.raises(RuntimeError, match="a request ended early"):
            await each.serve(trace((2, 30)))


# ---- reduction ---------------------------------------------------------------------------------


def deciding(*choices):
    """A round of requests 1, 2, .. with these K, or pairs of K and reason."""
    pairs = [each if isinstance(each, tuple) else (each, Reason.KEPT) for each in choices]
    found = {n: Choice(k=k, reason=reason) for n, (k, reason) in enumerate(pairs, 1)}
    return step(*(plain(request=n) for n in found), decision=Decision(choices=found))


def in_draft(stats, seconds, rows):
    return replace(stats, timings=replace(stats.timings, draft=seconds), draft_rows=rows)


def timed(*steps, tokens=100, seconds=1.0, concurrency=1):
    stage = Stage(concurrency=concurrency, tokens=tokens)
    return Timed(stage=stage, tokens=tokens, seconds=seconds, steps=steps)


def test_a_request_at_its_first_or_last_token_says_nothing_of_k():
    groups = (plain(request=1), plain(request=2, prefilled=7), plain(request=3), drafted(2, 1))
    decision = Decision(
        choices={
            1: Choice(k=0, reason=Reason.KEPT),
            2: Choice(k=0, reason=Reason.LOAD),
            3: Choice(k=0, reason=Reason.LOAD),
            4: Choice(k=2, reason=Reason.KEPT),
        }
    )
    ends = tuple(replace(ended(FinishReason.LENGTH), request=n) for n in (3, 4))
    stats = step(*groups, decision=decision, finished=ends)
    assert [choice.k for choice in free_choices(stats)] == [0, 2]
    assert free_choices(step()) == []


def test_switches_are_turns_between_drafting_and_not():
    rounds = [free_choices(deciding(*ks)) for ks in [(0, 0), (0, 3), (1, 0), (), (2, 2), (0, 0)]]
    assert switches(rounds) == 2


def test_looks_of_the_controller_are_no_lasting_switches():
    looks = [(0, 0), (0, (1, Reason.PROBE)), (0, 0), (3, 3)]
    looks += [((0, Reason.BASELINE), (0, Reason.BASELINE)), (3, 3)]
    part = stretch(timed(*(deciding(*each) for each in looks)))
    assert part.switches == 5
    assert part.lasting_switches == 1


def test_idle_counts_rounds_in_which_nothing_was_to_be_drafted():
    steps = [
        in_draft(deciding(0, 0), 0.25, 0),
        in_draft(deciding(0, 1), 8.0, 5),
        in_draft(deciding(0), 0.5, 3),
        in_draft(step(), 8.0, 5),
        in_draft(deciding(), 8.0, 5),
    ]
    found = idle(steps)
    assert (found.rounds, found.draft_seconds, found.draft_rows) == (2, 0.75, 3)


def test_the_best_k_has_the_best_median_and_is_the_least_of_equals():
    assert best_k({0: [1, 9, 1], 4: [2, 2, 2], 2: [2, 2, 2]}) == 2


def test_held_out_picks_the_best_k_by_the_other_rounds():
    rates = {0: [10.0, 20.0, 10.0], 2: [11.0, 12.0, 13.0]}
    # Without round 1 the medians are 15 and 12.5, without round 2 10 and 12, without round 3 15
    # and 11.5.
    found = held_out([5.0, 6.0, 7.0], rates)
    assert found.values == (0.5, 0.5, 0.7)
    assert held_out([5.0], {0: [1.0]}) is None


def runs(*rates):
    return [stretch(timed(deciding(0), tokens=round(rate), seconds=1.0)) for rate in rates]


WAYS = {
    fixed(0): (100, 90, 50),
    fixed(2): (150, 90, 60),
    BARE: (100, 100, 50),
    AUTO: (120, 90, 66),
}


def a_level(concurrency=1):
    return level(concurrency, 96, {way: runs(*rates) for way, rates in WAYS.items()})


def test_ratios_are_taken_inside_rounds():
    found = a_level()
    assert [arm.name for arm in found.arms] == ["K 0", "K 2", "no draft", "auto"]
    assert found.best == 0
    assert found.over_best.values == pytest.approx((1.2, 1.0, 1.32))
    assert found.over_plain.values == pytest.approx((1.2, 1.0, 1.32))
    assert found.plain_over_no_draft.values == pytest.approx((1.0, 0.9, 1.0))
    assert found.over_best.median == pytest.approx(1.2)
    assert found.arms[0].tokens == 240


def test_mean_k_is_over_requests_of_all_rounds():
    found = {way: [stretch(timed(deciding(0, 4), deciding(2)))] for way in WAYS}
    assert {arm.mean_k for arm in level(1, 96, found).arms} == {2.0}


def a_ramp():
    parts = [
        timed(in_draft(deciding(0), 0.25, 0), tokens=50, concurrency=1),
        timed(deciding(4, 4), concurrency=2),
    ]
    fast = [replace(part, seconds=0.25) for part in parts]
    return ramp(96, {fixed(0): [parts], fixed(4): [fast], AUTO: [fast]})


def test_a_ramp_counts_what_happens_between_its_steps():
    found = a_ramp()
    assert found.trace == (1, 2)
    assert found.best == 4
    assert (found.over_best.median, found.over_plain.median) == (1.0, 4.0)
    auto = found.arms[-1]
    assert (auto.rate.median, auto.switches) == (300.0, 2.0)
    assert [(step.rate.median, step.mean_k) for step in auto.steps] == [(200.0, 0.0), (400.0, 4.0)]


# ---- what is shown -----------------------------------------------------------------------------


@pytest.fixture
def report():
    return Report(
        date="2026-11-30T00:00:00+00:00",
        machine=Machine(cpu="cpu", cores=2, usable_cores=2, flags=(), memory_gib=1.0, load=0.0),
        versions=Versions(
            fencepost="0", revision=None, changed=0, python="3", torch="2", transformers="5"
        ),
        settings=Settings(
            ks=(2,),
            k_max=8,
            concurrency=(1, 16),
            rounds=3,
            ramps=1,
            tokens=48,
            prompt_tokens=128,
            per_client=16,
            least=96,
            temperature=1.0,
            verifier="token",
            threads=1,
            seed=0,
            profile_seconds=1.0,
            turn=0.25,
            layout="replay_frontier",
        ),
        models=Models(name="pair", target="a", draft="b", dtype="float32", parameters=(6, 1)),
        profile_took=1.0,
        levels=(a_level(1), a_level(16)),
        ramp=a_ramp(),
    )


def test_the_table_shows_rates_ratios_and_ramp(report):
    lines = [line.split() for line in render(report).splitlines()]
    assert ["16", "90.0", "90.0", "100.0", "90.0", "0.00"] in lines
    ratios = [
        "1.200",
        "1.00-1.32",
        "1.000",
        "0.80-1.10",
        "1.200",
        "1.00-1.32",
        "1.000",
        "0.90-1.00",
    ]
    assert ["16", "0", *ratios] in lines
    assert ["auto", "300.0", "300.00-300.00", "2.00", "2.00"] in lines
    assert ["ramp", "K", "0", "1", "0.250", "250.00", "0"] in lines


def test_the_table_does_without_a_ramp(report):
    assert "Ramp" not in render(replace(report, ramp=None))


def test_the_picture_is_a_png(report, tmp_path):
    draw(report, tmp_path / "k.png")
    assert (tmp_path / "k.png").read_bytes().startswith(b"\x89PNG")


# ---- the command -------------------------------------------------------------------------------


def test_runs_on_the_embedded_pair_last_longer():
    options = read_options(["--pair", "embedded", "--ks", "4,2,4"])
    assert (options.least, options.ks, options.k_max) == (768, (2, 4), 8)
    assert read_options(["--pair", "embedded", "--quick", "--least", "5"]).least == 5
    assert read_options(["--ks", "9"]).k_max == 9


@pytest.mark.parametrize("flags", ["--pair nowhere", "--ks 0", "--ramps -1", "--concurrency 0,1"])
def test_bad_flags_end_the_command(flags, capsys):
    with pytest.raises(SystemExit) as stopped:
        read_options(flags.split())
    assert stopped.value.code == 2
    assert flags.split()[0] in capsys.readouterr().err


def test_a_pair_that_is_not_there_is_said_plainly(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tests.bench.measure.TARGET", tmp_path / "none")
    assert main(["--pair", "embedded"]) == 2
    assert "bench-k: no embedded pair" in capsys.readouterr().err
    assert main(["--pair", f"{tmp_path / 'a'},{tmp_path / 'b'}"]) == 2
    assert f"bench-k: {tmp_path / 'a'}: " in capsys.readouterr().err


def test_a_quick_run_on_the_embedded_pair_reports_everything(tmp_path, capsys):
    threads = torch.get_num_threads()
    file, picture = tmp_path / "k.json", tmp_path / "k.png"
    flags = "--pair embedded --quick --threads 1 --profile-seconds 0.2"
    assert main([*flags.split(), "--json", str(file), "--plot", str(picture)]) == 0
    torch.set_num_threads(threads)
    told = json.loads(file.read_text("utf-8"))
    assert [found["concurrency"] for found in told["levels"]] == [1, 4]
    for found in told["levels"]:
        arms = {arm["name"]: arm for arm in found["arms"]}
        assert list(arms) == ["no draft", "K 0", "K 2", "K 4", "auto"]
        assert all(arm["tokens"] >= found["window"] for arm in arms.values())
        assert arms["K 4"]["mean_k"] > arms["K 2"]["mean_k"] > arms["K 0"]["mean_k"] == 0
        for name in ("no draft", "K 0"):
            assert arms[name]["idle"]["draft_rows"] == 0
            assert arms[name]["idle"]["rounds"] > 0
    assert told["ramp"]["trace"] == [1, 4, 1]
    assert picture.exists()
    assert "auto / K 0" in capsys.readouterr().out
