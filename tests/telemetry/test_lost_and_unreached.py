"""Drafts by position: by label, of rounds that were lost, and past what was reached."""

import pytest

from scheduler.request import ProposerKind
from scheduler.stats import CommitOutcome, Evidence, Policy, SpeculationStats
from tests.telemetry.conftest import positions
from tests.telemetry.rounds import drafted, step


@pytest.mark.parametrize("outcome", [CommitOutcome.STALE, CommitOutcome.ABORTED])
def test_drafts_of_a_round_that_was_not_published_were_proposed_in_vain(board, outcome):
    lost = {"outcome": outcome, "speculation": None, "terminal": None, "committed": 0}
    evidence = Evidence(
        generation=1, verified=2, outcomes=(None,) * 3, terminal_token=None, fallback=False
    )
    board.sink.step(step(drafted(2, 1), drafted(3, 2, evidence=evidence, **lost)))
    board.sink.step(step(drafted(4, 2, **lost)))
    assert positions(board, "spec_proposed") == [2, 2, 1, 0]
    assert positions(board, "spec_verified") == [1, 1, 0, 0]
    assert positions(board, "spec_reached") == [1, 1, 0, 0]
    assert board.alias("spec_decode_num_draft_tokens_total") == 2


def test_full_acceptance_reaches_no_position_past_k(board):
    board.sink.step(step(drafted(2, 2)))
    assert positions(board, "spec_reached") == [1, 1, 0, 0]
    assert positions(board, "spec_accepted") == [1, 1, 0, 0]
    assert positions(board, "spec_proposed") == [1, 1, 0, 0]


def test_stop_inside_the_drafts_censors_what_follows_it(board):
    board.sink.step(step(drafted(4, 1, stop=True)))
    assert positions(board, "spec_reached") == [1, 0, 0, 0]
    assert positions(board, "spec_accepted") == [1, 0, 0, 0]
    assert positions(board, "spec_proposed") == [1, 1, 1, 1]
    assert board.value("spec_rounds_total", k="4", accepted="1", terminal="stop") == 1


def test_reach_is_labelled_by_proposer_policy_domain_and_prefix(board):
    board.sink.step(
        step(
            drafted(
                1,
                1,
                proposer=ProposerKind.NGRAM,
                policy=Policy.SHARED_NOISE,
                domain="code",
                position=1024,
            )
        )
    )
    labels = {"proposer": "ngram", "policy": "shared_noise", "domain": "code"}
    assert (
        board.value("spec_accepted_total", position="0", prefix="1024-4095", **labels)
        == board.total("fencepost_spec_accepted_total")
        == 1
    )


@pytest.mark.parametrize(
    ("tokens", "prefix"),
    [(1, "0-255"), (255, "0-255"), (256, "256-1023"), (4095, "1024-4095"), (4096, "4096+")],
)
def test_prefix_bucket_bounds(board, tokens, prefix):
    board.sink.step(step(drafted(1, 0, position=tokens)))
    assert board.total("fencepost_spec_reached_total", prefix=prefix) == 1


def test_domain_outside_the_allow_list_counts_as_other(board):
    board.sink.step(step(drafted(1, 1, domain="<script>"), drafted(1, 1, domain="chat")))
    assert board.total("fencepost_spec_accepted_total", domain="other") == 1
    assert board.total("fencepost_spec_accepted_total", domain="chat") == 1
    assert board.select("fencepost_spec_accepted_total", domain="<script>") == []


def test_acceptance_mass_and_base_add_up_by_position(board):
    board.sink.step(step(drafted(3, 1, mass=0.25, base=0.5), drafted(3, 0, mass=0.125)))
    assert positions(board, "spec_acceptance_mass") == [0.375, 0.25, 0, 0]
    assert positions(board, "spec_acceptance_base") == [1.5, 0.5, 0, 0]


def test_acceptance_mass_counts_unreached_positions_where_the_stats_have_them(board):
    """As those of block verification do."""
    whole = SpeculationStats(k=3, accepted=0, reached=1, mass=(0.5,) * 3, base=(1.0, 0.5, 0.5))
    board.sink.step(step(drafted(3, 0, policy=Policy.BLOCK, speculation=whole)))
    assert positions(board, "spec_acceptance_mass") == [0.5, 0.5, 0.5, 0]
    assert positions(board, "spec_acceptance_base") == [1, 0.5, 0.5, 0]
    assert positions(board, "spec_reached") == [1, 0, 0, 0]
