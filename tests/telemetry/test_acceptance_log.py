"""What the log says of real rounds, and that it never costs more than its queue and its files."""

import json
from dataclasses import replace

import numpy as np
import pytest

from scheduler.sampling.rng import CounterRandomness, round_keys
from scheduler.stats import CommitOutcome, Policy
from telemetry.fan_out import FanOut
from tests.oracles import rules
from tests.oracles.desk import Sink
from tests.oracles.rig import DRAFT, NOISE, TARGET, expected
from tests.telemetry.conftest import Board
from tests.telemetry.logs import (
    RETAINED,
    Shelf,
    decided,
    every_rule,
    outcome,
    plainly,
    records,
    rounds_of,
    served,
)
from tests.telemetry.rounds import LOAD, ended, plain, step

RATIO = {"token", "block"}


def softmax(row):
    weights = np.exp(np.array(row) - max(row))
    return weights / weights.sum()


# ---- what a record says --------------------------------------------------------------------------


SHARED = json.loads(
    """{"round_id": 7, "request": 1, "generation": 3, "k": 4, "policy": "token",
    "proposer": "draft_model", "domain": "code", "prefix": "0-255", "verified": 1,
    "committed_token_count": 2, "cut": false}"""
)
FIRST = json.loads(
    """{"record": "position", "position": 10, "place": 1, "accepted": true,
    "draft_token": 5, "target_token": null, "q_prob": 0.5, "p_prob": 0.25, "accept_ratio": 0.5,
    "uniform": 0.625, "reach": null, "terminal_kind": null, "terminal_token": null,
    "correction_distribution_id": null, "correction_scale": null, "unreached": []}"""
)


def test_records_of_a_token_round(tmp_path):
    (file,) = Shelf(tmp_path).keep([step(decided(4, 1, domain="code"), round_id=7)])
    first, last = records(file)
    assert first == FIRST | SHARED
    assert last == first | {
        "position": 11,
        "place": 2,
        "accepted": False,
        "terminal_kind": "correction",
        "terminal_token": 9,
        "correction_distribution_id": "residual",
    }


def test_a_block_round_keeps_the_tests_past_the_last_reached_place(tmp_path):
    drafts = tuple(outcome(mass=mass, bound=mass / 2) for mass in (1.0, 0.75, 0.5, 0.25))
    group = decided(4, 1, outcomes=drafts, policy=Policy.BLOCK)
    (file,) = Shelf(tmp_path).keep([step(group)])
    first, last = records(file)
    assert (first["reach"], first["accept_ratio"], first["unreached"]) == (1.0, 0.5, [])
    assert [each["reach"] for each in last["unreached"]] == [0.5, 0.25]
    assert last["correction_distribution_id"] == "block_residual"
    assert last["correction_scale"] == 1.0
    group = decided(4, 0, outcomes=drafts, policy=Policy.BLOCK)
    (_, file) = Shelf(tmp_path).keep([step(group)])
    assert records(file)[0]["correction_scale"] == 1.0


@pytest.mark.parametrize(
    ("group", "law"),
    [
        (decided(2, 2), "target"),
        (decided(2, 2, policy=Policy.BLOCK), "target"),
        (decided(2, 0, fallback=True), "target_fallback"),
        (decided(2, 0, fallback=True, policy=Policy.BLOCK), "target_fallback"),
        (decided(2, 0, policy=Policy.GREEDY), "choice"),
        (decided(2, 2, policy=Policy.SHARED_NOISE), "choice"),
        (decided(2, 1, stop=True), None),
        (plainly(), "target"),
        (plainly(policy=Policy.SHARED_NOISE), "choice"),
    ],
)
def test_the_law_of_the_terminal_is_named(tmp_path, group, law):
    (file,) = Shelf(tmp_path).keep([step(group)])
    assert records(file)[-1]["correction_distribution_id"] == law


def test_a_cut_round_ends_at_its_last_kept_draft(tmp_path):
    (file,) = Shelf(tmp_path).keep([step(decided(4, 2, stop=True, verified=4))])
    kept = records(file)
    assert [each["place"] for each in kept] == [1, 2]
    last = kept[-1]
    assert (last["cut"], last["verified"], last["committed_token_count"]) == (True, 4, 2)
    assert (last["terminal_kind"], last["terminal_token"], last["accepted"]) == ("stop", None, True)


def test_a_round_without_drafts_and_one_that_was_given_up(tmp_path):
    stale = replace(
        decided(4, 2), outcome=CommitOutcome.STALE, speculation=None, terminal=None, committed=0
    )
    chunk = plain(committed=0, terminal=None)
    (file,) = Shelf(tmp_path).keep([step(plainly(domain="<b>"), stale, chunk)])
    one, other = records(file)
    assert (one["record"], one["position"], one["k"], one["domain"]) == ("plain", 10, 0, "other")
    assert (other["record"], other["outcome"]) == ("unpublished", "stale")
    assert (other["verified"], other["k"], other["committed_token_count"]) == (2, 4, 0)


def test_what_is_not_a_number_is_null(tmp_path):
    bad = outcome(bound=float("nan"), mass=float("inf"))
    (file,) = Shelf(tmp_path).keep([step(decided(1, 0, outcomes=(bad,), policy=Policy.BLOCK))])
    (record,) = records(file)
    assert (record["accept_ratio"], record["reach"]) == (None, None)


@pytest.mark.parametrize("tokens", [0, 255, 256, 4096])
def test_the_prefix_bucket_is_that_of_the_metrics(tmp_path, board, tokens):
    group = decided(1, 1, position=tokens)
    (file,) = Shelf(tmp_path).keep([step(group)])
    board.sink.step(step(group))
    prefix = records(file)[0]["prefix"]
    assert board.total("fencepost_spec_reached_total", prefix=prefix) == 1


# ---- real rounds ---------------------------------------------------------------------------------


@pytest.fixture(params=["replay", "retained"])
def layout(request):
    return RETAINED if request.param == "retained" else None


def test_laws_ratios_and_uniforms_are_those_of_the_definitions(tmp_path, layout):
    asked = every_rule()
    rig, steps = served(*asked, settings=layout)
    (file,) = Shelf(tmp_path).keep(steps)
    seen = set()
    for (number, _), reached in rounds_of(records(file)).items():
        about = asked[number - 1]
        if reached[0]["policy"] not in RATIO | {"shared_noise"}:
            continue
        text = [*about.prompt, *rig.outputs[number].tokens]
        start, drafts, p, q = reached[0]["position"], [], [], []
        for each in reached:
            prefix = (*text[:start], *drafts)
            p.append(softmax(TARGET(prefix)))
            q.append(softmax(DRAFT(prefix)))
            drafts.append(each["draft_token"])
        assert [each["p_prob"] for each in reached] == pytest.approx(chosen(p, drafts), rel=1e-5)
        assert [each["q_prob"] for each in reached] == pytest.approx(chosen(q, drafts), rel=1e-5)
        seen.add(reached[0]["policy"])
        if reached[0]["policy"] in RATIO:
            check_tests(about, reached, p, q, drafts)
    assert seen == RATIO | {"shared_noise"}


def chosen(laws, tokens):
    return [law[token] for law, token in zip(laws, tokens, strict=True)]


def check_tests(about, reached, p, q, drafts):
    """Bounds by the oracle's definitions; uniforms by their keys."""
    policy, k, start = reached[0]["policy"], reached[0]["k"], reached[0]["position"]
    _, keys, _ = round_keys(about.sampling.seed, about.choice, start, k)
    uniforms = CounterRandomness().uniforms(list(keys)).tolist()
    assert [each["uniform"] for each in reached] == uniforms[: len(reached)]
    whole = len(reached) == k or policy == "token"
    bounds = rules.bounds(policy, p, q, drafts)
    for place, each in enumerate(reached[: None if whole else -1]):
        assert each["accept_ratio"] == pytest.approx(bounds[place], rel=1e-4, abs=1e-6)
    if policy == "block":
        reach = rules.reaches(p, q, drafts)[1:]
        assert [each["reach"] for each in reached] == pytest.approx(reach, rel=1e-4)
        tail = [each["uniform"] for each in reached[-1]["unreached"]]
        assert tail == uniforms[len(reached) :]


def test_the_target_s_choice_is_its_serial_text(tmp_path, layout):
    asked = every_rule()
    _, steps = served(*asked, settings=layout)
    (file,) = Shelf(tmp_path).keep(steps)
    texts = {
        each.request_id: [*each.prompt, *expected(each)]
        for each in asked
        if each.sampling.greedy or each.speculation.verifier is NOISE
    }
    seen = [each for each in records(file) if each["request"] in texts]
    places = [each for each in seen if each["record"] == "position"]
    assert len(places) > 20
    for each in places:
        text = texts[each["request"]]
        assert each["target_token"] == text[each["position"]]
        assert each["accept_ratio"] == (each["draft_token"] == text[each["position"]])
        assert each["uniform"] is None
    assert {each["policy"] for each in places} == {"greedy", "shared_noise"}
    for each in seen:
        if each["terminal_token"] is not None:
            end = each["position"] + (each["record"] == "position" and each["accepted"])
            assert each["terminal_token"] == texts[each["request"]][end]


def test_records_are_as_many_as_the_sink_s_sums(tmp_path, layout):
    board = Board(k_max=8)
    _, steps = served(*every_rule(token_ids=frozenset({3, 11})), settings=layout)
    shelf, seen = Shelf(tmp_path), Sink()
    both = FanOut(board.sink, shelf.log, seen)
    for each in steps:
        both.step(each)
    both.load(LOAD)
    both.finished(ended())
    shelf.log.close()
    assert (seen.steps, seen.loads, len(seen.ended)) == (steps, [LOAD], 1)
    groups = [group for each in steps for group in each.groups]
    reached = sum(g.speculation.reached for g in groups if g.speculation is not None)
    accepted = sum(g.speculation.accepted for g in groups if g.speculation is not None)
    without = sum(g.speculation is None and g.committed > 0 for g in groups)
    kept = records(shelf.path)
    places = [each for each in kept if each["record"] == "position"]
    assert len(places) == reached == board.total("fencepost_spec_reached_total")
    assert sum(each["accepted"] for each in places) == accepted
    assert len(kept) - len(places) == without
    assert shelf.counts == (reached + without, 0, 0, 0)
