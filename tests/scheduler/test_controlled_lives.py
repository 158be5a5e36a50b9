"""The law with the goodput controller in the loop, and what two requests with one seed share."""

import pytest

from scheduler import book
from scheduler.controller import FixedController, fixed
from scheduler.stats import Reason
from tests.oracles.rig import BLOCK, NOISE, TOKEN, Rig, request
from tests.oracles.rounds import REPLAY, RETAINED
from tests.prove.controllers import _settings, choices, play, twins
from tests.prove.proof import Scope

EXACT = 1e-12
BIAS = 1e-3


class Copycat(FixedController):
    """Each request of a pair drafts what its neighbour had accepted, whatever the seeds are."""

    def __init__(self):
        self._accepted = {}

    def decide(self, view):
        """The request's own K, else what the neighbour's last round accepted."""
        lengths = {}
        for each in view.requests:
            other = self._accepted.get(each.request ^ 1, 0)
            lengths[each.request] = min(other if each.asked is None else each.asked, each.room)
        return fixed(lengths)

    def learn(self, stats):
        """Take in every round that drafted."""
        for group in stats.groups:
            if group.speculation is not None:
                self._accepted[group.request] = group.speculation.accepted


@pytest.mark.parametrize("layout", [REPLAY, RETAINED])
@pytest.mark.parametrize("verifier", [TOKEN, BLOCK, NOISE])
def test_a_probing_controller_keeps_the_law(verifier, layout):
    (setting,) = (s for s in _settings(verifier, Scope.FAST, layout) if s.name == "probing")
    law, minds = play(setting, layout, 1e-10)
    assert law.deviation() <= EXACT
    assert any(len(ks) > 1 for ks in choices(minds).values())
    reasons = {each.reason for _, found in minds.decided() for each in found.choices.values()}
    assert Reason.PROBE in reasons


@pytest.mark.parametrize("rule", [TOKEN, BLOCK])
def test_the_law_of_each_of_two_requests_with_one_seed(rule):
    assert max(twins(rule, REPLAY, 0.5).deviations()) <= EXACT


@pytest.mark.parametrize("rule", [TOKEN, BLOCK])
def test_a_controller_that_follows_a_twin_is_biased(rule):
    first, second = twins(rule, REPLAY, 0.5, Copycat).deviations()
    assert first <= EXACT
    assert second > BIAS


def test_a_twin_that_is_let_go_when_the_other_ends_is_biased(monkeypatch):
    """When one ends follows from draws that the other has ahead."""
    leave = book.Book._leave_twins

    def forgetful(self, entry):
        leave(self, entry)
        for each in self.entries.values():
            each.shares_draws = False

    monkeypatch.setattr(book.Book, "_leave_twins", forgetful)
    assert max(twins(TOKEN, REPLAY, 0.5).deviations()) > 10 * BIAS


# --- who shares draws ----------------------------------------------------------------------------


def drawing(number, **changes):
    """A request whose draws decide what is accepted."""
    return request(number, temperature=0.9, verifier=TOKEN, **changes)


def shared(rig):
    """Requests whose draws a live request had or has too."""
    return {number for number, entry in rig.book.entries.items() if entry.shares_draws}


def test_requests_share_draws_by_seed_and_choice():
    rig = Rig()
    rig.submit(
        drawing(1, seed=7), drawing(2, seed=8), drawing(3, seed=7, choice=1), drawing(4, seed=9)
    )
    assert shared(rig) == set()
    rig.submit(drawing(5, seed=7))
    assert shared(rig) == {1, 5}
    rig.submit(drawing(6, seed=8), drawing(7, seed=7))
    assert shared(rig) == {1, 2, 5, 6, 7}


def test_only_where_a_draw_decides():
    """At temperature 0 and with shared noise any K is exact, whoever has the same seed."""
    rig = Rig()
    rig.submit(
        drawing(1, seed=7),
        request(2, seed=7),
        request(3, seed=7, temperature=0.9, verifier=NOISE),
        request(4, seed=7, temperature=0.9, verifier=BLOCK, choice=1),
    )
    assert shared(rig) == set()
    rig.submit(request(5, seed=7, temperature=0.9, verifier=BLOCK))
    assert shared(rig) == {1, 5}


@pytest.mark.parametrize("end", ["cancel", "serve"])
def test_a_request_that_had_a_twin_keeps_the_mark(end):
    rig = Rig()
    rig.submit(drawing(1, seed=7, max_tokens=30), drawing(2, seed=7, max_tokens=2))
    rig.step()
    if end == "cancel":
        rig.cancel(2)
    while 2 in rig.book.entries:
        rig.step()
    assert shared(rig) == {1}


def test_a_request_that_comes_after_its_twin_has_ended_shares_nothing():
    rig = Rig()
    rig.serve(drawing(1, seed=7))
    rig.submit(drawing(2, seed=7))
    assert shared(rig) == set()
    rig.cancel(2)
    rig.plan()
    rig.submit(drawing(3, seed=7))
    assert shared(rig) == set()
    assert len(rig.book._by_draws) == 1


def test_a_preemption_changes_no_mark():
    rig = Rig()
    rig.submit(drawing(1, seed=7), drawing(2, seed=7), drawing(3, seed=3))
    rig.step()
    rig.book.preempt(rig.book.entries[1])
    assert shared(rig) == {1, 2}
    rig.drain()
    assert not rig.book._by_draws
