"""When the log says why K is what it is, and what it says then."""

import json
import logging

import pytest

from scheduler.stats import Reason
from telemetry.decision_log import HELD_ROUNDS, LINES_A_SECOND, DecisionLog
from tests.telemetry.rounds import decided, drafted, forecast, plain, step


class Book:
    """A log with a clock that stands still, and the lines that it wrote."""

    def __init__(self, caplog):
        self.now = 100.0
        self.log = DecisionLog(lambda: self.now)
        self.rounds = 0
        self._caplog = caplog

    def round(self, *ks, groups=None, seconds=0.25, **chosen):
        """One round of these K."""
        self.rounds += 1
        groups = groups or [
            drafted(k, k, request=n) if k else plain(request=n) for n, k in enumerate(ks, 1)
        ]
        self.log.step(
            step(
                *groups,
                round_id=self.rounds,
                round_seconds=seconds,
                decision=decided(*ks, **chosen),
            )
        )

    def held(self, *ks, **chosen):
        """As many such rounds as it takes to begin a regime; only the first may have a reason."""
        self.round(*ks, **chosen)
        for _ in range(HELD_ROUNDS - 1):
            self.round(*ks, forecast=chosen.get("forecast"))

    @property
    def lines(self):
        """What was logged at INFO since the last look."""
        found = [json.loads(r.getMessage()) for r in self._caplog.records if r.levelname == "INFO"]
        assert {r.name for r in self._caplog.records} <= {"fencepost.controller"}
        self._caplog.clear()
        return found


@pytest.fixture
def book(caplog):
    caplog.set_level(logging.INFO, "fencepost.controller")
    return Book(caplog)


def test_a_regime_is_told_when_it_has_held(book):
    reasons = [Reason.LOAD, Reason.LOAD, Reason.ACCEPTANCE, Reason.KEPT, Reason.KEPT, Reason.KEPT]
    book.round(4, 3, 2, 0, 0, 0, reasons=reasons, forecast=forecast())
    for _ in range(HELD_ROUNDS - 2):
        book.round(2, 2, 2, 2, 2, 2)
        assert book.lines == []
    book.round(2, 2, 2, 2, 2, 2)
    [line] = book.lines
    assert line == {
        "event": "regime",
        "regime": "drafting",
        "round_id": 1,
        "k": {"1": 4, "2": 3, "3": 2, "4": 0, "5": 0, "6": 0},
        "mean_k": 1.5,
        "reasons": {"load": 2, "acceptance": 1, "kept": 3},
        "reason": "load",
        "predicted_gain": 1.5,
        # 5 + 4 + 3 + 3 tokens, each 0.0625 s by plain decoding, in 0.25 s; the other rounds have
        # no forecast.
        "measured_gain": 3.75,
        "rounds": HELD_ROUNDS,
        "running": 0,
        "waiting": 0,
        "before": None,
        "dropped": 0,
    }


def test_each_turn_is_told_once_with_what_the_regime_before_came_to(book):
    book.held(4, reason=Reason.ACCEPTANCE, forecast=forecast())
    book.round(4, forecast=forecast(), seconds=0.75)
    book.held(0, 0, reason=Reason.LOAD)
    drafting, plain_line = book.lines
    assert (drafting["regime"], drafting["reason"]) == ("drafting", "acceptance")
    assert (plain_line["regime"], plain_line["reason"]) == ("plain", "load")
    assert plain_line["round_id"] == HELD_ROUNDS + 2
    rounds = HELD_ROUNDS + 1
    seconds = 0.25 * HELD_ROUNDS + 0.75
    assert plain_line["before"] == {
        "regime": "drafting",
        "rounds": rounds,
        "predicted_gain": 1.5,
        "measured_gain": pytest.approx(rounds * 5 * 0.0625 / seconds, abs=1e-3),
    }
    book.held(1, reason=Reason.LOAD)
    [again] = book.lines
    assert (again["regime"], again["before"]["regime"]) == ("drafting", "plain")
    assert again["before"]["rounds"] == HELD_ROUNDS
    assert again["before"]["measured_gain"] is None


def test_the_first_regime_too_is_one_that_held(book):
    book.round(0, reason=Reason.LOAD)
    book.held(4, reason=Reason.ACCEPTANCE)
    [line] = book.lines
    assert (line["regime"], line["round_id"], line["reason"]) == ("drafting", 2, "acceptance")


def test_its_gain_is_that_of_all_the_rounds_it_held(book):
    book.round(4, forecast=forecast(), seconds=0.5)
    for _ in range(HELD_ROUNDS - 1):
        book.round(4, forecast=forecast(tokens=2.0), seconds=0.25)
    [line] = book.lines
    seconds = 0.5 + 0.25 * (HELD_ROUNDS - 1)
    assert line["measured_gain"] == pytest.approx(HELD_ROUNDS * 5 * 0.0625 / seconds, abs=1e-3)
    tokens = 6.0 + 2.0 * (HELD_ROUNDS - 1)
    assert line["predicted_gain"] == pytest.approx(tokens * 0.0625 / HELD_ROUNDS / 0.25, abs=1e-3)


def test_rounds_that_differ_for_a_moment_turn_nothing(book):
    book.held(4, reason=Reason.LOAD)
    for _ in range(3):
        for _ in range(HELD_ROUNDS - 1):
            book.round(0)
        book.round(4)
    book.held(0)
    first, last = book.lines
    assert first["regime"] == "drafting"
    assert last["before"]["rounds"] == HELD_ROUNDS * 4


@pytest.mark.parametrize(
    "reason", [Reason.FIXED, Reason.SHARED_SEED, Reason.PROBE, Reason.BASELINE]
)
def test_k_that_was_not_chosen_for_its_own_sake_makes_no_regime(book, reason):
    for _ in range(HELD_ROUNDS * 2):
        book.round(4, reason=reason)
    assert book.lines == []
    book.held(0, reason=Reason.LOAD)
    assert [line["regime"] for line in book.lines] == ["plain"]
    for _ in range(HELD_ROUNDS):
        book.round(4, 0, reasons=[reason, Reason.KEPT])
    assert book.lines == []


def test_rounds_in_which_nobody_emits_are_none(book):
    for _ in range(HELD_ROUNDS):
        book.round(groups=[plain(committed=0, terminal=None, prefilled=8)])
        book.log.step(step(plain()))
    assert book.lines == []


@pytest.mark.parametrize("reason", [Reason.SLO, Reason.MEMORY])
def test_a_floor_and_a_cut_are_told_the_first_time(book, reason):
    book.round(4, 1, reasons=[Reason.FIXED, reason])
    [line] = book.lines
    assert (line["event"], line["reason"], line["k"]) == ("first", reason.value, {"1": 4, "2": 1})
    book.round(4, 1, reasons=[Reason.FIXED, reason])
    assert book.lines == []


def test_both_at_once_are_two_lines(book):
    book.round(1, 1, reasons=[Reason.MEMORY, Reason.SLO])
    assert [line["reason"] for line in book.lines] == ["slo", "memory"]


def test_no_more_than_ten_lines_a_second_and_the_next_one_counts_the_others(book):
    for _ in range(LINES_A_SECOND + 5):
        book.now += 0.05
        book.held(4 if not book.rounds // HELD_ROUNDS % 2 else 0)
    shown = book.lines
    assert len(shown) == LINES_A_SECOND
    assert [line["dropped"] for line in shown] == [0] * LINES_A_SECOND
    book.now = 101.04
    book.held(4 if not book.rounds // HELD_ROUNDS % 2 else 0)
    assert book.lines == []
    book.now = 101.06
    book.held(4 if not book.rounds // HELD_ROUNDS % 2 else 0)
    [line] = book.lines
    assert line["dropped"] == 6
    book.now += 2
    book.held(4 if not book.rounds // HELD_ROUNDS % 2 else 0)
    [line] = book.lines
    assert line["dropped"] == 0


def test_every_round_is_told_to_who_debugs(book, caplog):
    caplog.set_level(logging.DEBUG, "fencepost.controller")
    book.round(4, 0, reasons=[Reason.FIXED, Reason.BASELINE], forecast=forecast())
    [record] = caplog.records
    assert record.levelname == "DEBUG"
    assert json.loads(record.getMessage()) == {
        "event": "round",
        "round_id": 1,
        "k": {"1": 4, "2": 0},
        "mean_k": 2.0,
        "reasons": {"fixed": 1, "baseline": 1},
        "predicted_gain": 1.5,
        "measured_gain": 1.5,
        "running": 0,
        "waiting": 0,
    }


def test_nothing_is_written_below_the_level(book, caplog):
    caplog.set_level(logging.WARNING, "fencepost.controller")
    book.held(4, reason=Reason.SLO)
    assert caplog.records == []


def test_what_is_no_number_is_null(book, caplog):
    caplog.set_level(logging.DEBUG, "fencepost.controller")
    book.round(1, forecast=forecast(tokens=float("nan")))
    assert json.loads(caplog.records[0].getMessage())["predicted_gain"] is None
