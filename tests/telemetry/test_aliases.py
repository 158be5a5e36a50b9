"""The `vllm:` names, types and labels stand here as other tools expect them, written out again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.request import FinishReason, ProposerKind
from scheduler.stats import LoadStats, Policy, PoolStats
from tests.telemetry.conftest import Board
from tests.telemetry.rounds import drafted, ended, plain, step

TYPES = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "kv_cache_usage_perc": "gauge",
    "num_preemptions": "counter",
    "generation_tokens": "counter",
    "prompt_tokens": "counter",
    "prefix_cache_queries": "counter",
    "prefix_cache_hits": "counter",
    "request_success": "counter",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "time_per_output_token_seconds": "histogram",
    "request_time_per_output_token_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    "spec_decode_num_drafts": "counter",
    "spec_decode_num_draft_tokens": "counter",
    "spec_decode_num_accepted_tokens": "counter",
    "spec_decode_num_accepted_tokens_per_pos": "counter",
}
MORE_LABELS = {
    "request_success": {"finished_reason"},
    "spec_decode_num_accepted_tokens_per_pos": {"position"},
}


def families(board):
    return {
        family.name.removeprefix("vllm:"): family
        for family in board.registry.collect()
        if family.name.startswith("vllm:")
    }


def test_names_types_and_labels(board):
    found = families(board)
    assert {name: family.type for name, family in found.items()} == TYPES
    for name, family in found.items():
        expected = {"model_name", "engine"} | MORE_LABELS.get(name, set())
        assert {frozenset(sample.labels) - {"le"} for sample in family.samples} == {
            frozenset(expected)
        }


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("time_to_first_token_seconds", "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75"),
        ("time_to_first_token_seconds", "1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 160.0 640.0 2560.0"),
        ("inter_token_latency_seconds", "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1.0"),
        ("inter_token_latency_seconds", "2.5 5.0 7.5 10.0 20.0 40.0 80.0 +Inf"),
        ("e2e_request_latency_seconds", "0.3 0.5 0.8 1.0 1.5 2.0 2.5 5.0 10.0 15.0 20.0 30.0 40.0"),
        ("e2e_request_latency_seconds", "50.0 60.0 120.0 240.0 480.0 960.0 1920.0 7680.0"),
    ],
)
def test_histograms_have_the_bounds_that_dashboards_name(board, name, bounds):
    for bound in bounds.split():
        assert board.alias(f"{name}_bucket", le=bound) == 0


def test_speculation_counts(board):
    board.sink.step(
        step(
            drafted(4, 2),
            drafted(3, 3, policy=Policy.GREEDY, proposer=ProposerKind.NGRAM, domain="code"),
            drafted(4, 1, stop=True, position=5000),
            plain(),
        )
    )
    assert board.alias("spec_decode_num_drafts_total") == 3
    assert board.alias("spec_decode_num_draft_tokens_total") == 11
    assert board.alias("spec_decode_num_accepted_tokens_total") == 6
    by_position = [
        board.alias("spec_decode_num_accepted_tokens_per_pos_total", position=str(position))
        for position in range(4)
    ]
    assert by_position == [3, 2, 1, 0]
    assert board.alias("generation_tokens_total") == 3 + 4 + 1 + 1


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.booleans()), max_size=8))
def test_accepted_by_position_sums_and_never_rises(draws):
    board = Board()
    groups = [
        drafted(k, min(accepted, k), stop=stop and min(accepted, k) > 0) if k else plain()
        for k, accepted, stop in draws
    ]
    board.sink.step(step(*groups))
    by_position = [
        s.value for s in families(board)["spec_decode_num_accepted_tokens_per_pos"].samples
    ]
    accepted = board.alias("spec_decode_num_accepted_tokens_total")
    drafts = board.alias("spec_decode_num_drafts_total")
    assert sum(by_position) == accepted
    assert by_position == sorted(by_position, reverse=True)
    assert accepted <= board.alias("spec_decode_num_draft_tokens_total") <= 4 * drafts
    assert drafts == sum(k > 0 for k, _, _ in draws)


def test_load_and_ends(board):
    board.sink.step(
        step(
            preemptions=2,
            load=LoadStats(
                running=3,
                waiting=4,
                target_pool=PoolStats(used=1, free=3, cached=0),
                draft_pool=None,
            ),
            finished=(
                ended(),
                ended(FinishReason.LENGTH, cached_tokens=5),
                ended(FinishReason.STOP, admitted=None),
            ),
        )
    )
    assert board.alias("num_requests_running") == 3
    assert board.alias("num_requests_waiting") == 4
    assert board.alias("kv_cache_usage_perc") == 0.25
    assert board.alias("num_preemptions_total") == 2
    assert board.alias("prompt_tokens_total") == 21
    assert board.alias("prefix_cache_queries_total") == 14
    assert board.alias("prefix_cache_hits_total") == 5
    ends = {
        reason: board.alias("request_success_total", finished_reason=reason)
        for reason in ("stop", "length", "abort", "error")
    }
    assert ends == {"stop": 2, "length": 1, "abort": 0, "error": 0}


def test_latencies_add_up_over_our_labels(board):
    board.sink.finished(ended(speculated=True))
    board.sink.finished(ended(speculated=False, first_token=101.0))
    board.sink.step(step(itl_seconds=((0.01, 3), (0.02, 1))))
    assert board.alias("time_to_first_token_seconds_sum") == 3
    assert board.alias("time_to_first_token_seconds_count") == 2
    assert board.alias("time_to_first_token_seconds_bucket", le="1.0") == 1
    assert board.alias("e2e_request_latency_seconds_sum") == 12
    assert board.alias("request_queue_time_seconds_sum") == 1
    assert board.alias("inter_token_latency_seconds_count") == 4
    assert board.alias("time_per_output_token_seconds_count") == 4
    assert board.alias("request_time_per_output_token_seconds_count") == 2
