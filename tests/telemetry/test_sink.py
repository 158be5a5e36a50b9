"""Rounds worked out by hand give exactly these samples."""

import timeit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.plan import RoundTimings, TerminalKind
from scheduler.request import FinishReason
from scheduler.stats import CommitOutcome, LoadStats, Policy, PoolStats, Reason
from tests.telemetry.conftest import Board, positions
from tests.telemetry.rounds import decided, drafted, ended, forecast, plain, step


def test_rejection_reaches_one_position_past_the_last_accepted_draft(board):
    board.sink.step(step(drafted(4, 2)))
    assert positions(board, "spec_reached") == [1, 1, 1, 0]
    assert positions(board, "spec_accepted") == [1, 1, 0, 0]
    assert positions(board, "spec_proposed") == [1, 1, 1, 1]
    assert positions(board, "spec_verified") == [1, 1, 1, 1]


def test_law_of_accepted_counts_by_k_and_terminal(board):
    board.sink.step(step(drafted(2, 2), drafted(2, 1), drafted(2, 1), plain()))
    assert board.value("spec_rounds_total", k="2", accepted="2", terminal="bonus") == 1
    assert board.value("spec_rounds_total", k="2", accepted="1", terminal="correction") == 2
    assert board.value("spec_rounds_total", k="0", accepted="0", terminal="plain") == 1
    assert board.total("fencepost_spec_rounds_total") == 4
    assert board.value("round_k_bucket", le="0.0") == 1
    assert board.value("round_k_bucket", le="2.0") == 4
    assert board.value("round_k_sum") == 6


def test_costs_of_a_round_add_up_to_its_time(board):
    board.sink.step(
        step(
            timings=RoundTimings(draft=0.125, verify=0.5, decide=0.0625, forward=0.5),
            schedule_seconds=0.03125,
            commit_seconds=0.015625,
            round_seconds=1.0,
            target_rows=9,
            draft_rows=4,
            logit_rows=5,
            host_syncs=1,
            residual_fallbacks=2,
            preemptions=3,
        )
    )
    parts = {
        name: board.value("round_seconds_total", part=name, rows="9-16")
        for name in ("draft", "verify", "decide", "schedule", "commit", "queue")
    }
    assert parts == {
        "draft": 0.125,
        "verify": 0.5,
        "decide": 0.0625,
        "schedule": 0.03125,
        "commit": 0.015625,
        "queue": 0.265625,
    }
    assert board.total("fencepost_round_seconds_total") == 1
    assert board.value("forward_seconds_total") == 0.5
    assert board.value("rounds_total") == 1
    assert board.value("rows_total", kind="target") == 9
    assert board.value("rows_total", kind="draft") == 4
    assert board.value("rows_total", kind="logit") == 5
    assert board.value("host_syncs_total") == 1
    assert board.value("residual_fallbacks_total") == 2
    assert board.value("preemptions_total") == 3


def test_parts_that_overlap_a_little_never_count_backwards(board):
    timings = RoundTimings(draft=0.5, verify=0.5, decide=0.5, forward=0.0)
    board.sink.step(step(timings=timings, round_seconds=1.0))
    assert board.total("fencepost_round_seconds_total", part="queue") == 0


@pytest.mark.parametrize(
    ("rows", "size"),
    [
        *((0, "0-1"), (1, "0-1"), (2, "2-4"), (4, "2-4"), (5, "5-8"), (64, "33-64")),
        *((65, "65-128"), (512, "257-512"), (513, "513+"), (100_000, "513+")),
    ],
)
def test_costs_by_the_size_of_the_packed_call(board, rows, size):
    board.sink.step(step(round_seconds=0.5, target_rows=rows))
    assert board.value("round_seconds_total", part="queue", rows=size) == 0.5
    assert board.total("fencepost_round_seconds_total") == 0.5


def test_rows_of_the_packed_call_by_kind(board):
    chunk = plain(committed=0, terminal=None, prefilled=20)
    last_chunk = plain(prefilled=3)
    board.sink.step(step(drafted(4, 2), chunk, last_chunk))
    assert board.value("round_rows_sum", kind="prefill") == 23
    assert board.value("round_rows_sum", kind="frontier") == 2
    assert board.value("round_rows_sum", kind="draft") == 4
    assert board.value("round_rows_count", kind="draft") == 1
    assert board.value("tokens_prefilled_total") == 23
    assert board.value("round_k_count") == 2


def test_outcomes_other_than_published_count_no_tokens(board):
    stale = plain(outcome=CommitOutcome.STALE, committed=0, terminal=None)
    board.sink.step(step(drafted(4, 2), stale, stale))
    assert board.value("commit_total", outcome="published") == 1
    assert board.value("commit_total", outcome="stale") == 2
    assert board.value("commit_total", outcome="aborted") == 0
    assert board.value("tokens_committed_total", model="pair") == 3


def test_inter_token_histogram_counts_tokens_not_steps(board):
    board.sink.step(step(itl_seconds=((0.01, 3), (0.0625, 1))))
    assert board.value("inter_token_seconds_count") == 4
    assert board.value("inter_token_seconds_sum") == pytest.approx(0.0925)
    assert board.value("inter_token_seconds_bucket", le="0.005") == 0
    assert board.value("inter_token_seconds_bucket", le="0.01") == 3
    assert board.value("inter_token_seconds_bucket", le="0.075") == 4


def test_load_shows_blocks_of_both_pools(board):
    board.sink.load(
        LoadStats(
            running=3,
            waiting=5,
            target_pool=PoolStats(used=6, free=1, cached=1),
            draft_pool=PoolStats(used=2, free=4, cached=0),
        )
    )
    assert board.value("requests_running") == 3
    assert board.value("requests_waiting") == 5
    assert board.value("kv_cache_usage_ratio") == 0.75
    blocks = {
        (pool, state): board.value("kv_blocks", pool=pool, state=state)
        for pool in ("target", "draft")
        for state in ("used", "free", "cached")
    }
    assert list(blocks.values()) == [6, 1, 1, 2, 4, 0]


def test_step_shows_its_load(board):
    load = LoadStats(
        running=2, waiting=0, target_pool=PoolStats(used=1, free=1, cached=0), draft_pool=None
    )
    board.sink.step(step(load=load))
    assert board.value("requests_running") == 2
    assert board.value("kv_cache_usage_ratio") == 0.5


def test_usage_of_a_pool_without_blocks_is_zero(board):
    empty = PoolStats(used=0, free=0, cached=0)
    board.sink.load(LoadStats(running=0, waiting=0, target_pool=empty, draft_pool=None))
    assert board.value("kv_cache_usage_ratio") == 0


def test_finished_request_gives_its_times(board):
    board.sink.step(step(finished=(ended(),)))
    assert board.value("requests_total", outcome="stop") == 1
    assert board.value("prompt_tokens_total") == 7
    assert board.value("request_ttft_seconds_sum", speculation="on") == 2
    assert board.value("request_tpot_seconds_sum", speculation="on") == 1
    assert board.value("request_tpot_seconds_count", speculation="off") == 0
    assert board.value("request_seconds_sum") == 6
    assert board.value("queue_seconds_sum") == 0.5


def test_what_cached_rows_spared_is_counted_for_what_ran(board):
    """A request that left the queue without running asked for nothing."""
    board.sink.finished(ended(prompt_tokens=40, cached_tokens=32))
    board.sink.finished(ended(FinishReason.ABORT, prompt_tokens=9, admitted=None, first_token=None))
    assert board.value("prefix_cache_queries_total") == 40
    assert board.value("prefix_cache_hits_total") == 32


def test_abort_gives_no_time_to_the_end(board):
    board.sink.finished(ended(FinishReason.ABORT, speculated=False))
    assert board.value("requests_total", outcome="abort") == 1
    assert board.value("request_ttft_seconds_count", speculation="off") == 1
    assert board.value("request_seconds_count") == 0
    assert board.value("request_tpot_seconds_count", speculation="off") == 0


def test_request_that_was_never_admitted_gives_no_times(board):
    board.sink.finished(
        ended(FinishReason.ABORT, admitted=None, first_token=None, completion_tokens=0)
    )
    assert board.value("queue_seconds_count") == 0
    assert board.total("fencepost_request_ttft_seconds_count") == 0


def test_one_token_has_no_time_a_token(board):
    board.sink.finished(ended(FinishReason.LENGTH, completion_tokens=1))
    assert board.value("request_seconds_count") == 1
    assert board.total("fencepost_request_tpot_seconds_count") == 0


@st.composite
def published(draw):
    """A round of one request as the engine may publish it."""
    k = draw(st.integers(0, 4))
    if k == 0:
        return plain()
    accepted = draw(st.integers(0, k))
    stop = accepted > 0 and draw(st.booleans())
    return drafted(k, accepted, stop=stop, policy=draw(st.sampled_from(Policy)))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(published(), max_size=5), max_size=6))
def test_reach_identity_and_sums(rounds):
    board = Board()
    for groups in rounds:
        board.sink.step(step(*groups))
    reached, accepted = positions(board, "spec_reached"), positions(board, "spec_accepted")
    everyone = [group for groups in rounds for group in groups if group.speculation is not None]
    for position in range(3):
        # contract section 10: what was accepted goes on, unless it stopped there or K ended there
        left = sum(
            group.speculation.accepted == position + 1
            and (group.terminal is TerminalKind.STOP or group.speculation.k == position + 1)
            for group in everyone
        )
        assert reached[position + 1] == accepted[position] - left
        assert reached[position + 1] <= accepted[position] <= reached[position]
    assert sum(accepted) == sum(group.speculation.accepted for group in everyone)
    assert reached[0] == len(everyone)
    committed = sum(group.committed for groups in rounds for group in groups)
    assert board.value("tokens_committed_total", model="pair") == committed
    assert board.total("fencepost_spec_rounds_total") == sum(len(groups) for groups in rounds)


def gains(board):
    """The six sums that stand for the same rounds."""
    names = ("predicted_tokens", "predicted_seconds", "predicted_plain_seconds")
    names += ("committed_tokens", "round_seconds", "plain_seconds")
    return [board.value(f"controller_{name}_total") for name in names]


def test_choices_count_by_reason_and_by_k(board):
    reasons = (Reason.LOAD, Reason.LOAD, Reason.PROBE)
    board.sink.step(
        step(drafted(4, 2), plain(), plain(), decision=decided(4, 0, 2, reasons=reasons))
    )
    board.sink.step(step(plain(), decision=decided(0)))
    assert board.value("controller_decisions_total", reason="load") == 2
    assert board.value("controller_decisions_total", reason="probe") == 1
    assert board.value("controller_decisions_total", reason="kept") == 1
    assert board.total("fencepost_controller_decisions_total") == 4
    assert [board.value("controller_k_bucket", le=f"{k}.0") for k in range(5)] == [2, 2, 3, 3, 4]
    assert board.value("controller_k_sum") == 6


def test_gain_is_worked_out_from_the_forecast_and_the_clock(board):
    groups = (drafted(4, 3), plain())
    stats = step(*groups, round_seconds=0.5, decision=decided(4, 0, forecast=forecast()))
    board.sink.step(stats)
    # Plain decoding: 0.0625 s a token by the forecast, for 6 expected and 5 published tokens.
    assert gains(board) == [6, 0.25, 0.375, 5, 0.5, 0.3125]
    assert board.value("controller_goodput_predicted") == 24
    board.sink.step(stats)
    assert gains(board) == [12, 0.5, 0.75, 10, 1, 0.625]


@pytest.mark.parametrize(
    "groups",
    [
        (plain(prefilled=3),),
        (drafted(4, 2), plain(committed=0, terminal=None, prefilled=20)),
        (drafted(4, 2), plain(outcome=CommitOutcome.ABORTED, committed=0, terminal=None)),
        (plain(outcome=CommitOutcome.REPLAYED, committed=0, terminal=None),),
    ],
)
def test_rounds_that_say_nothing_of_the_gain_count_as_choices_only(board, groups):
    chosen = decided(*[2] * len(groups), forecast=forecast())
    board.sink.step(step(*groups, round_seconds=0.5, decision=chosen))
    assert gains(board) == [0] * 6
    assert board.total("fencepost_controller_decisions_total") == len(groups)
    assert board.value("controller_goodput_predicted") == 24


@pytest.mark.parametrize("empty", [forecast(seconds=0.0), forecast(plain_tokens=0.0), None])
def test_a_forecast_of_nothing_divides_by_nothing(board, empty):
    board.sink.step(step(plain(), round_seconds=0.5, decision=decided(0, forecast=empty)))
    assert gains(board) == [0] * 6


def test_a_round_without_a_decision_is_none(board):
    board.sink.step(step(plain(), round_seconds=0.5))
    assert board.total("fencepost_controller_decisions_total") == 0
    assert board.value("controller_k_count") == 0


def test_the_last_forecast_is_shown_until_there_is_another(board):
    board.sink.step(step(plain(), decision=decided(0, forecast=forecast(tokens=2.0))))
    board.sink.step(step(plain(), decision=decided(0)))
    assert board.value("controller_goodput_predicted") == 8


def test_counting_a_round_of_eight_requests_is_cheap(board, record_property):
    """Prints the cost; a limit on time would fail on a busy machine, and no count may grow."""
    groups = [drafted(4, n % 5, policy=policy) for n, policy in enumerate([*Policy, *Policy])]
    chosen = decided(*[4] * 8, forecast=forecast())
    stats = step(*groups, itl_seconds=((0.01, 3),) * 8, decision=chosen)
    before = len(list(board.registry.collect()))
    seconds = min(timeit.repeat(lambda: board.sink.step(stats), number=200, repeat=5)) / 200
    record_property("microseconds_a_round", round(seconds * 1e6, 1))
    print(f"{seconds * 1e6:.1f} us a round of 8 requests")
    assert len(list(board.registry.collect())) == before
    assert board.value("rounds_total") == 1000
