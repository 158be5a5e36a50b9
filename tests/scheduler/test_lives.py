"""Whole lives by enumeration: scheduler, controller, runner and landing give the serial law."""

from dataclasses import replace

import pytest

from scheduler import landing
from scheduler.entry import Retry
from tests.oracles.leaves import client, tables
from tests.oracles.lives import LifeLaw
from tests.oracles.rig import BLOCK, NGRAM, NOISE, TOKEN
from tests.oracles.rounds import REPLAY, RETAINED
from tests.oracles.watchers import Follower, Partner, Stumbling

EXACT = 1e-12
STEPS = {REPLAY: 1, RETAINED: 2}
every_verifier = pytest.mark.parametrize("verifier", [TOKEN, BLOCK, NOISE])
both_layouts = pytest.mark.parametrize("layout", [REPLAY, RETAINED])


def law_of(clients, controller, layout, *, rounds=3, **options):
    logits = tables(2)
    made = [client(logits=logits, **each) for each in clients]
    return LifeLaw(
        made, logits, 2, controller, rounds=rounds * STEPS[layout], layout=layout, **options
    )


@both_layouts
@every_verifier
@pytest.mark.parametrize("at", [1e-10, 1.0 - 1e-10])
def test_a_controller_that_follows_acceptance(verifier, layout, at):
    law = law_of([{"verifier": verifier, "max_tokens": 6}], Follower, layout, at=at)
    assert law.deviation() <= EXACT
    assert law.depths == {0, 1, 2}


@both_layouts
@every_verifier
def test_two_requests_whose_lengths_follow_each_other(verifier, layout):
    pair = [
        {"verifier": verifier, "max_tokens": 3},
        {"verifier": TOKEN, "prompt": (1, 0), "max_tokens": 4},
    ]
    law = law_of(pair, Partner, layout)
    assert law.deviation() <= EXACT
    assert law.lives > 100


@both_layouts
@every_verifier
def test_drafts_of_the_text(verifier, layout):
    one = {"verifier": verifier, "prompt": (0, 1, 0, 1), "proposer": NGRAM, "max_tokens": 5}
    assert law_of([one], Follower, layout).deviation() <= EXACT


class Counted(Stumbling):
    """Counts the breaks of all runners."""

    seen = 0

    def run(self, plan):
        try:
            return super().run(plan)
        except RuntimeError:
            Counted.seen += 1
            raise


@both_layouts
@every_verifier
def test_a_round_that_broke_because_of_its_tokens_is_tried_again_as_it_was(verifier, layout):
    Counted.seen = 0
    one = {"verifier": verifier, "k": 2, "max_tokens": 5}
    law = law_of([one], Follower, layout, rounds=2, runner=Counted)
    assert law.deviation() <= EXACT
    assert Counted.seen


def test_a_retry_at_another_length_is_seen(monkeypatch):
    def shorter(rows, draft):
        """One draft less than the round that broke had."""
        if draft is not None:
            draft = replace(draft, depth=draft.depth - 1) if draft.depth > 1 else None
        return Retry(rows=rows, draft=draft)

    monkeypatch.setattr(landing, "Retry", shorter)
    one = {"verifier": TOKEN, "max_tokens": 3}
    law = law_of([one], Follower, REPLAY, rounds=2, runner=Stumbling)
    assert law.deviation() > 0.01
