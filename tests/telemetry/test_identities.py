"""What must hold between counters after a live engine served a mix of everything.

The identities are those of contract section 10, stated over the metrics page alone where they can
be: whoever holds only the page may rely on them.
"""

import pytest

from scheduler.plan import Layout, TerminalKind
from scheduler.request import FinishReason
from scheduler.stats import CommitOutcome
from telemetry.metrics import PROPOSERS
from telemetry.state_bytes import RowBytes
from tests.oracles.desk import outcomes
from tests.oracles.rig import BLOCK, NGRAM, NOISE, NONE, TOKEN, Letters, request
from tests.scheduler.test_controlled_engine import controlled, roomy
from tests.telemetry.conftest import Board

pytestmark = pytest.mark.anyio

K_MAX = 8
RULES = [(TOKEN, 0.0), (TOKEN, 0.9), (BLOCK, 0.9), (NOISE, 0.9)]
PROPOSED = [
    {"k": 4},
    {"k": None},
    {"k": 8, "token_ids": frozenset({3, 11})},
    {"k": 6, "text": Letters(("ca", "de", "g"))},
    {"k": 3, "proposer": NGRAM},
    {"k": None, "proposer": NGRAM},
    {"k": 0},
    {"k": 2, "proposer": NONE},
]
GIVEN_UP = 5


def mix():
    """Every rule with every way to draft and to stop; prompts of 1 to 12 tokens."""
    return [
        request(
            number,
            (number % 16, 2, 5, 2)[: 1 + number % 4] * (1 + number % 3),
            max_tokens=(1, 17, 26)[number % 3],
            verifier=verifier,
            temperature=temperature,
            **how,
        )
        for number, (verifier, temperature, how) in enumerate(
            ((*rule, how) for rule in RULES for how in PROPOSED), 1
        )
    ]


def given_up():
    """Requests whose clients leave: while they wait, after the first tokens, in a round."""
    return [request(900 + n, (n, 4), max_tokens=200, k=4, temperature=0.9) for n in range(GIVEN_UP)]


async def serve_all(d):
    """Serve the mix, and give up others at several points; the ends of the mix."""
    leaving = d.ask(*given_up())
    d.engine.abort(leaving[0].request_id)
    staying = d.ask(*mix())
    for place, subscription in enumerate(leaving[1:], 1):
        for _ in range(place):
            await anext(subscription)
        d.engine.abort(subscription.request_id)
    return await outcomes(staying)


@pytest.fixture(params=list(Layout), ids=lambda layout: layout.value)
async def served(request):
    """(what the clients got, the desk, metrics that were told the same as the desk's sink)."""
    async with controlled(roomy(layout=request.param)) as d:
        found = await serve_all(d)
    board = Board(k_max=K_MAX)
    board.metrics.state.size(RowBytes(target=100, draft=10, law=1))
    for step in d.sink.steps:
        board.sink.step(step)
    for finished in d.sink.ended:
        board.sink.finished(finished)
    return found, d, board


def by_position(board, family, proposer):
    """Values of one family by draft position, summed over all labels but the proposer."""
    name = f"fencepost_spec_{family}_total"
    return [
        board.total(name, position=str(place), proposer=proposer.value) for place in range(K_MAX)
    ]


def laws(board):
    """(k, accepted, terminal, rounds) of `spec_rounds_total`."""
    return [
        (int(s.labels["k"]), int(s.labels["accepted"]), s.labels["terminal"], s.value)
        for s in board.samples("fencepost_spec_rounds_total")
    ]


async def test_every_kind_of_round_was_there(served):
    """Else the identities say little."""
    found, d, board = served
    assert {terminal for *_, terminal, count in laws(board) if count} == {
        terminal.value for terminal in TerminalKind
    }
    reasons = {finish.reason for _, _, finish in found}
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH}
    assert board.value("requests_total", outcome="abort") == GIVEN_UP
    assert {group.outcome for group in d.stats} == {CommitOutcome.PUBLISHED, CommitOutcome.STALE}
    assert len({choice.k for s in d.sink.steps for choice in s.decision.choices.values()}) > 4


async def test_accepted_reached_verified_proposed_by_position(served):
    _, _, board = served
    for proposer in PROPOSERS:
        families = ("accepted", "reached", "verified", "proposed")
        columns = [by_position(board, family, proposer) for family in families]
        for accepted, reached, verified, proposed in zip(*columns, strict=True):
            assert accepted <= reached <= verified <= proposed
        assert columns[-1][0] > 0
        assert all(column == sorted(column, reverse=True) for column in columns)


async def test_who_is_reached_was_accepted_and_neither_stopped_nor_at_the_end_of_k(served):
    _, _, board = served
    reached, accepted = (
        [sum(places) for places in zip(*(by_position(board, f, p) for p in PROPOSERS), strict=True)]
        for f in ("reached", "accepted")
    )
    assert reached[0] == sum(
        count for k, a, terminal, count in laws(board) if k and not (a == 0 and terminal == "stop")
    )
    for place in range(K_MAX - 1):
        through = place + 1
        stopped = sum(n for _, a, end, n in laws(board) if a == through and end == "stop")
        whole = sum(n for k, a, end, n in laws(board) if k == a == through and end != "stop")
        assert reached[place + 1] == accepted[place] - stopped - whole


async def test_committed_tokens_are_prefill_emissions_and_the_g_of_rounds(served):
    found, d, board = served
    committed = board.value("tokens_committed_total", model="pair")
    groups = [group for group in d.stats if group.terminal is not None]
    first = {}
    for group in groups:
        first.setdefault(group.request, group)
    emissions = sum(group.committed for group in first.values())
    gains = sum(group.committed for group in groups if group is not first[group.request])
    assert committed == emissions + gains
    assert committed == sum(n * (a + (end != "stop")) for _, a, end, n in laws(board))
    cancelled = sum(each.request_stats.completion_tokens for each in d.sink.ended)
    assert committed == sum(len(tokens) for tokens, _, _ in found) + cancelled


async def test_tokens_but_the_first_have_a_latency(served):
    _, d, board = served
    ends = [*d.sink.ended, *(each for step in d.sink.steps for each in step.finished)]
    lengths = [each.request_stats.completion_tokens for each in ends]
    gaps = sum(length - 1 for length in lengths if length)
    assert board.value("inter_token_seconds_count") == gaps
    assert board.alias("inter_token_latency_seconds_count") == gaps
    own = [e.request_stats for e in ends if e.reason is not FinishReason.ABORT]
    spans = sum(one.finished - one.first_token for one in own)
    assert board.value("inter_token_seconds_sum") >= spans - 1e-6


async def test_requests_numbers_add_up_to_the_counters(served):
    found, d, board = served
    stats = [finish.stats for _, _, finish in found]
    stats += [each.request_stats for each in d.sink.ended]
    assert sum(one.drafted for one in stats) == board.total("fencepost_spec_verified_total")
    assert sum(one.accepted for one in stats) == board.total("fencepost_spec_accepted_total")
    drafting = [(a, n) for k, a, _, n in laws(board) if k]
    assert sum(one.steps for one in stats) == sum(n for _, n in drafting)
    for length in range(K_MAX + 1):
        rounds = sum(n for a, n in drafting if a == length)
        assert sum(one.histogram[length] for one in stats) == rounds
    published = board.value("commit_total", outcome="published")
    assert sum(one.rounds for one in stats) == published


async def test_outcomes_of_wishes_add_up_to_the_ends(served):
    found, _, board = served
    assert board.total("fencepost_request_slo_total") == len(found)
    assert board.value("request_slo_total", outcome="met") == len(found)
    good = board.value("tokens_goodput_total", model="pair")
    assert good == sum(len(tokens) for tokens, _, _ in found)


async def test_committed_bytes_are_the_rows_of_what_came_out(served):
    """A request ends with the rows of all its tokens but the last: nothing was preempted."""
    _, d, board = served
    lengths = {each.request_id: len(each.prompt) for each in (*mix(), *given_up())}
    ends = [each for step in d.sink.steps for each in step.finished]
    rows = sum(lengths[e.request] + e.request_stats.completion_tokens - 1 for e in ends)
    kept = sum(group.kept_rows for group in d.stats if group.request < 900)
    assert kept == rows
    assert board.value("kv_committed_bytes_total") == 100 * sum(g.kept_rows for g in d.stats)
    proposed = board.total("fencepost_spec_verified_total")
    drafts = proposed + board.value("draft_stale_total")
    assert board.value("kv_temporary_bytes_total") == (
        100 * drafts + 10 * board.value("rows_total", kind="draft")
    )
    stale = [group for group in d.stats if group.outcome is CommitOutcome.STALE]
    assert board.value("draft_stale_total") == sum(group.branch_rows for group in stale)
