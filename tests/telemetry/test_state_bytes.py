"""Bytes follow from rows and their sizes, worked out by hand."""

import pytest

from scheduler.request import ProposerKind
from scheduler.stats import CommitOutcome, Policy
from telemetry.state_bytes import RowBytes
from tests.telemetry.rounds import drafted, plain, step

SIZE = RowBytes(target=100, draft=10, law=8)


def bytes_of(board):
    names = ("kv_temporary_bytes_total", "kv_committed_bytes_total", "row_buffer_bytes")
    return [board.value(name) for name in names]


@pytest.fixture
def sized(board):
    board.metrics.state.size(SIZE)
    return board


def test_branch_and_committed_rows(sized):
    groups = (
        drafted(4, 2, branch_rows=4, kept_rows=3),
        plain(prefilled=7, kept_rows=8),
    )
    sized.sink.step(step(*groups, target_rows=13, draft_rows=6, logit_rows=6))
    assert bytes_of(sized) == [4 * 100 + 6 * 10, 11 * 100, (6 + 4) * 8]


def test_sums_grow_and_the_row_buffers_are_those_of_the_last_round(sized):
    group = drafted(3, 1, branch_rows=3, kept_rows=2)
    for logit_rows in (4, 9):
        sized.sink.step(step(group, draft_rows=3, logit_rows=logit_rows))
    assert bytes_of(sized) == [2 * 330, 2 * 200, 12 * 8]
    sized.sink.step(step())
    assert bytes_of(sized) == [2 * 330, 2 * 200, 0]


def test_greedy_rounds_keep_no_row_of_the_draft(sized):
    greedy = drafted(4, 2, policy=Policy.GREEDY, branch_rows=4)
    sized.sink.step(step(greedy, logit_rows=5))
    assert bytes_of(sized)[2] == 5 * 8
    mixed = drafted(2, 2, proposer=ProposerKind.NGRAM, branch_rows=2)
    sized.sink.step(step(greedy, mixed, logit_rows=8))
    assert bytes_of(sized)[2] == (8 + 6) * 8


def test_rows_of_a_round_that_was_not_published_are_temporary_all_the_same(sized):
    lost = {"committed": 0, "terminal": None, "speculation": None}
    stale = drafted(4, 2, outcome=CommitOutcome.STALE, branch_rows=4, **lost)
    aborted = drafted(2, 2, outcome=CommitOutcome.ABORTED, branch_rows=2, **lost)
    sized.sink.step(step(stale, aborted, drafted(1, 1, branch_rows=1)))
    assert bytes_of(sized)[:2] == [700, 0]
    assert sized.value("draft_stale_total") == 4


def test_without_sizes_there_are_no_bytes(board):
    board.sink.step(step(drafted(4, 2, branch_rows=4, kept_rows=3), draft_rows=4, logit_rows=5))
    assert bytes_of(board) == [0, 0, 0]
