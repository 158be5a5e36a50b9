"""Rounds that are kept back: all told, in order, in time, and before anyone reads."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.main import _Process
from server.settings import load_settings
from telemetry.batches import SECONDS, SIZE, Batches
from telemetry.decision_log import DecisionLog
from telemetry.sink import PrometheusSink
from tests.telemetry.rounds import LOAD, ended, plain, step

BUSY = replace(LOAD, running=1)


class Heard:
    """A sink that remembers what it was told."""

    def __init__(self):
        self.told = []

    def step(self, stats):
        self.told.append(stats)

    load = finished = step


calls = st.one_of(
    st.tuples(st.just("step"), st.sampled_from((0, 1, 2)), st.sampled_from((1e-3, 0.03, 0.09, 1))),
    st.sampled_from([("load",), ("finished",), ("flush",)]),
)


@given(st.lists(calls, max_size=3 * SIZE))
def test_all_is_told_in_order_and_little_is_kept_back(script):
    heard, sent = Heard(), []
    batches = Batches(heard)
    for number, (kind, *details) in enumerate(script):
        _tell(batches, sent, number, kind, *details)
        kept = sent[len(heard.told) :]
        assert heard.told == sent[: len(heard.told)]
        assert len(kept) < SIZE
        assert sum(stats.round_seconds for stats in kept) < SECONDS
        if kind != "step" or not details[0]:
            assert not kept
    batches.flush()
    assert heard.told == sent


def _tell(batches, sent, number, kind, running=0, seconds=0.0):
    if kind == "flush":
        batches.flush()
        return
    if kind == "step":
        load = replace(LOAD, running=running)
        sent.append(replace(step(plain(), round_id=number), load=load, round_seconds=seconds))
    elif kind == "load":
        sent.append(replace(LOAD, waiting=number))
    else:
        sent.append(ended())
    getattr(batches, kind)(sent[-1])


def test_quick_rounds_are_told_together():
    heard = Heard()
    batches = Batches(heard)
    batches.step(replace(step(plain(), round_id=0), load=BUSY, round_seconds=SECONDS))
    for number in range(1, SIZE + 1):
        assert [stats.round_id for stats in heard.told] == [0]
        batches.step(replace(step(plain(), round_id=number), load=BUSY, round_seconds=1e-4))
    assert [stats.round_id for stats in heard.told] == list(range(SIZE + 1))


@pytest.mark.anyio
async def test_who_reads_sees_the_newest_round():
    process = _Process(load_settings({"debug_rounds": "5"}))
    for number in (1, 2):
        process._batches.step(
            replace(step(plain(), round_id=number), load=BUSY, round_seconds=1e-4)
        )
        page, _ = await process._metrics_page("")
        assert f"fencepost_rounds_total {number}.0" in page.decode()
    process._batches.step(replace(step(plain(), round_id=3), load=BUSY, round_seconds=1e-4))
    shown = json.loads(process._rounds_page(process._rounds, 1))
    assert [each["round_id"] for each in shown["rounds"]] == [3]


@pytest.mark.parametrize("broken", [PrometheusSink, DecisionLog])
def test_a_report_that_raises_costs_the_others_no_round(broken, monkeypatch, caplog):
    def raises(*_):
        raise ZeroDivisionError("planted")

    process = _Process(load_settings({"debug_rounds": "5"}))
    monkeypatch.setattr(broken, "step", raises)
    for number in (1, 2, 3):
        process._batches.step(replace(step(plain(), round_id=number), load=BUSY, round_seconds=1))
    shown = json.loads(process._rounds_page(process._rounds, 5))
    assert [each["round_id"] for each in shown["rounds"]] == [1, 2, 3]
    assert [each.exc_info[0] for each in caplog.records] == [ZeroDivisionError]
