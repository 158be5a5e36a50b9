"""What is remembered of the last rounds: all of it JSON, none of it text."""

import json
import math
from dataclasses import replace

import pytest

from scheduler.plan import RoundTimings
from scheduler.stats import CommitOutcome, LoadStats, PoolStats, Reason
from telemetry.round_log import RoundLog
from tests.oracles.desk import MIXED, desk, outcomes
from tests.telemetry.rounds import decided, drafted, ended, forecast, plain, step

LOAD = LoadStats(
    running=2,
    waiting=3,
    target_pool=PoolStats(used=4, free=5, cached=6),
    draft_pool=PoolStats(used=7, free=8, cached=9),
)


def rounds(log, last=None):
    """The records of the page."""
    return json.loads(log.page(last))["rounds"]


def kept(*stats, size=10):
    """A log that was told these rounds."""
    log = RoundLog(size)
    for each in stats:
        log.step(each)
    return log


TOLD = step(
    drafted(4, 3),
    plain(request=2, position=7, committed=0, terminal=None, prefilled=20),
    round_id=9,
    finished=(ended(),),
    timings=RoundTimings(draft=0.125, verify=0.25, decide=0.0625, forward=0.3125),
    round_seconds=0.5,
    schedule_seconds=0.03125,
    commit_seconds=0.015625,
    target_rows=25,
    draft_rows=4,
    logit_rows=5,
    preemptions=1,
    load=LOAD,
    decision=decided(4, reason=Reason.LOAD, forecast=forecast()),
)
RECORD = {
    "round_id": 9,
    "seconds": {
        "round": 0.5,
        "schedule": 0.03125,
        "draft": 0.125,
        "verify": 0.25,
        "decide": 0.0625,
        "commit": 0.015625,
        "forward": 0.3125,
    },
    "rows": {"target": 25, "draft": 4, "logit": 5},
    "load": {
        "running": 2,
        "waiting": 3,
        "target_blocks": {"used": 4, "free": 5, "cached": 6},
        "draft_blocks": {"used": 7, "free": 8, "cached": 9},
    },
    "preemptions": 1,
    "finished": 1,
    "committed": 4,
    "tokens_per_second": 8.0,
    "forecast": {
        "tokens": 6.0,
        "seconds": 0.25,
        "plain_tokens": 2.0,
        "plain_seconds": 0.125,
        "append_seconds": 0.0,
        "gain": 1.5,
        "measured_gain": None,
    },
    "requests": [
        {
            "id": 1,
            "k": 4,
            "reason": "load",
            "expected_accepted": 2.0,
            "drafted": 4,
            "accepted": 3,
            "committed": 4,
            "prefilled": 0,
            "outcome": "published",
            "terminal": "correction",
            "policy": "token",
            "proposer": "draft_model",
            "position": 10,
        },
        {
            "id": 2,
            "k": None,
            "reason": None,
            "expected_accepted": None,
            "drafted": 0,
            "accepted": 0,
            "committed": 0,
            "prefilled": 20,
            "outcome": "published",
            "terminal": None,
            "policy": "token",
            "proposer": "none",
            "position": 7,
        },
    ],
}


def test_a_round_is_told_whole():
    [record] = rounds(kept(TOLD))
    assert record == RECORD


def test_a_round_that_only_decodes_has_its_gain_measured():
    stats = step(drafted(4, 3), round_seconds=0.125, decision=decided(4, forecast=forecast()))
    [record] = rounds(kept(stats))
    assert record["forecast"]["measured_gain"] == 2.0
    assert record["load"]["draft_blocks"] is None


def test_a_round_without_a_decision_or_a_result():
    broken = plain(outcome=CommitOutcome.REPLAYED, committed=0, terminal=None)
    [record] = rounds(kept(step(broken)))
    assert (record["forecast"], record["tokens_per_second"]) == (None, None)
    [request] = record["requests"]
    assert (request["k"], request["outcome"]) == (None, "replayed")


@pytest.mark.parametrize("strange", [math.inf, -math.inf, math.nan])
def test_what_is_no_number_is_null(strange):
    chosen = decided(1, forecast=forecast(tokens=strange, seconds=strange))
    chosen = replace(chosen, choices={1: replace(chosen.choices[1], accepted=strange)})
    [record] = rounds(kept(step(drafted(1, 1), decision=chosen, round_seconds=0.5)))
    assert record["forecast"]["tokens"] is None
    assert record["requests"][0]["expected_accepted"] is None


@pytest.mark.parametrize(
    ("last", "shown"),
    [(None, [3, 4, 5]), (1, [5]), (2, [4, 5]), (3, [3, 4, 5]), (99, [3, 4, 5])],
)
def test_only_the_newest_are_kept_and_shown_oldest_first(last, shown):
    log = kept(*(step(plain(), round_id=n) for n in range(1, 6)), size=3)
    assert [record["round_id"] for record in rounds(log, last)] == shown
    assert json.loads(log.page(last))["size"] == 3


def test_before_any_round_there_are_none():
    assert json.loads(RoundLog(5).page()) == {"size": 5, "rounds": []}


def keys_of(value):
    """Every key in a page."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


@pytest.mark.anyio
async def test_rounds_of_a_real_engine_add_up_and_show_no_token():
    log = RoundLog(1000)
    async with desk() as served:
        told = await outcomes(served.ask(*MIXED))
    for stats in served.sink.steps:
        log.step(stats)
    records = rounds(log)
    shares = [request for record in records for request in record["requests"]]
    for asked, (tokens, _, _) in zip(MIXED, told, strict=True):
        own = [share for share in shares if share["id"] == asked.request_id]
        assert sum(share["committed"] for share in own) == len(tokens)
    assert sum(record["committed"] for record in records) == sum(len(told[0]) for told in told)
    assert sum(record["finished"] for record in records) == len(MIXED)
    for share in shares:
        assert (share["k"] is None) == (share["terminal"] is None)
        assert share["accepted"] <= share["drafted"] <= (share["k"] or 0)
    for record in records:
        parts = ("schedule", "draft", "verify", "decide", "commit")
        assert sum(record["seconds"][part] for part in parts) <= record["seconds"]["round"] + 1e-5
    assert not {"tokens", "text", "prompt", "outcomes", "seed"} & set(keys_of(records))
