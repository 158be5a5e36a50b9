"""Wishes are judged jointly, by hand and against a rule written out again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.request import FinishReason
from telemetry.slo import SloOutcome, WishKind, judge
from tests.telemetry.conftest import Board
from tests.telemetry.rounds import ended, step

# `ended` gives its first token after 2 s and 4 more, a second apart.
WISHES = [
    (None, None, "met"),
    (2.0, 1.0, "met"),
    (1.99, None, "ttft_miss"),
    (None, 0.99, "tpot_miss"),
    (1.99, 1.0, "ttft_miss"),
    (2.0, 0.99, "tpot_miss"),
    (1.99, 0.99, "both"),
]


@pytest.mark.parametrize(("ttft", "tpot", "outcome"), WISHES)
@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_both_times_are_held_against_their_wishes(board, reason, ttft, tpot, outcome):
    board.sink.step(step(finished=(ended(reason, ttft=ttft, tpot=tpot),)))
    for each in SloOutcome:
        counted = board.value("request_slo_total", outcome=each.value)
        assert counted == (each.value == outcome)
    good = board.value("tokens_goodput_total", model="pair")
    assert good == (5 if outcome == "met" else 0)


@pytest.mark.parametrize("tpot", [None, 0.1])
def test_a_cancel_counts_nowhere_and_an_error_as_one(board, tpot):
    board.sink.finished(ended(FinishReason.ABORT, tpot=tpot))
    assert board.total("fencepost_request_slo_total") == 0
    board.sink.finished(ended(FinishReason.ERROR, tpot=tpot))
    assert board.value("request_slo_total", outcome="error") == 1
    assert board.total("fencepost_request_slo_total") == 1
    assert board.total("fencepost_tokens_goodput_total") == 0


@pytest.mark.parametrize("tokens", [0, 1])
def test_a_time_that_there_is_not_misses_nothing(tokens):
    short = ended(ttft=5.0, tpot=1e-9, completion_tokens=tokens)
    assert judge(short) is SloOutcome.MET
    silent = ended(ttft=1e-9, tpot=1e-9, completion_tokens=0, first_token=None)
    assert judge(silent) is SloOutcome.MET


@given(
    ttft=st.none() | st.floats(0.1, 4.0),
    tpot=st.none() | st.floats(0.1, 4.0),
    first=st.floats(100.0, 106.0),
    tokens=st.integers(2, 9),
    reason=st.sampled_from(FinishReason),
)
def test_goodput_is_what_met_requests_gave(ttft, tpot, first, tokens, reason):
    board = Board()
    times = {"first_token": first, "completion_tokens": tokens}
    board.sink.finished(ended(reason, ttft=ttft, tpot=tpot, **times))
    by_itself = reason in {FinishReason.STOP, FinishReason.LENGTH}
    quick = ttft is None or first - 100.0 <= ttft
    steady = tpot is None or (106.0 - first) / (tokens - 1) <= tpot
    good = by_itself and quick and steady
    assert board.total("fencepost_tokens_goodput_total") == (tokens if good else 0)
    assert board.total("fencepost_request_slo_total") == (reason is not FinishReason.ABORT)
    missed = {"ttft_miss": (False, True), "tpot_miss": (True, False), "both": (False, False)}
    for outcome, kept in missed.items():
        counted = board.value("request_slo_total", outcome=outcome)
        assert counted == (by_itself and (quick, steady) == kept)


def test_only_wishes_that_the_server_has_are_shown(board):
    assert board.samples("fencepost_slo_seconds") == []
    board.metrics.slo.wish(WishKind.TPOT, 0.05)
    assert board.value("slo_seconds", kind="tpot") == 0.05
    assert board.value("slo_seconds", kind="ttft") is None
