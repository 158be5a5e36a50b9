"""Prompt lookup against a naive search."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler.plan import HostDraft
from scheduler.proposal import RequestView
from scheduler.proposers.ngram import NgramProposer


def view(tokens, request=1):
    return RequestView(request=request, tokens=tuple(tokens), draft_rows=0, row_budget=64)


def naive(tokens, k, longest=4, shortest=2):
    """What followed the latest earlier occurrence of the longest suffix that has one."""
    for size in range(longest, shortest - 1, -1):
        suffix = tokens[-size:]
        for end in range(len(tokens) - 1, size - 1, -1):
            if len(tokens) > size and tokens[end - size : end] == suffix:
                return tuple(tokens[end : end + k])
    return None


def drafted(proposer, tokens, k, request=1):
    draft = proposer.propose(view(tokens, request), k)
    assert draft is None or isinstance(draft, HostDraft)
    return None if draft is None else draft.token_ids


@given(
    tokens=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    cuts=st.lists(st.integers(1, 40), max_size=6),
    k=st.integers(1, 8),
)
def test_it_finds_what_a_naive_search_finds(tokens, cuts, k):
    proposer = NgramProposer()
    for length in sorted({*(cut for cut in cuts if cut < len(tokens)), len(tokens)}):
        assert drafted(proposer, tokens[:length], k) == naive(tokens[:length], k)


def test_a_longer_match_beats_a_later_one():
    tokens = [1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3]
    assert drafted(NgramProposer(), tokens, 2) == (7, 9)


def test_among_equal_lengths_the_latest_wins():
    tokens = [2, 3, 7, 0, 2, 3, 8, 0, 0, 2, 3]
    assert drafted(NgramProposer(longest=2), tokens, 1) == (8,)


def test_nothing_seen_before_drafts_nothing():
    assert drafted(NgramProposer(), [1, 2, 3, 4], 3) is None
    assert drafted(NgramProposer(), [1], 3) is None


def test_requests_do_not_share_an_index():
    proposer = NgramProposer()
    drafted(proposer, [1, 2, 3, 1, 2], 2, request=1)
    assert drafted(proposer, [1, 2], 2, request=2) is None


def test_a_released_request_leaves_nothing():
    proposer = NgramProposer()
    drafted(proposer, [1, 2, 3, 1, 2], 2)
    proposer.release(1)
    proposer.release(1)
    assert drafted(proposer, [5, 1, 2], 2) is None
