"""The two tables, held against facts that are written out here, not read from the tables."""

from itertools import pairwise, product

import pytest

from scheduler.errors import IllegalTransition
from scheduler.lifecycle import PHASES, TRANSITIONS, Event, Phase, Status, advance, after

MOVES = {
    ("WAITING", "ADMIT", "RUNNING"),
    ("WAITING", "FINISH", "FINISHED"),
    ("RUNNING", "PREEMPT", "WAITING"),
    ("RUNNING", "FINISH", "FINISHED"),
}
CHAIN = ["READY", "VERIFIED", "DECIDED", "STAGED", "PUBLISHED"]


@pytest.mark.parametrize(("status", "event"), list(product(Status, Event)))
def test_a_request_moves_along_the_arrows_only(status, event):
    allowed = {to for start, by, to in MOVES if (start, by) == (status.name, event.name)}
    if not allowed:
        with pytest.raises(IllegalTransition, match=f"{status.name} request cannot {event.name}"):
            after(status, event)
    else:
        assert {after(status, event).name} == allowed


@pytest.mark.parametrize(("phase", "to"), list(product(Phase, Phase)))
def test_a_round_goes_forward_one_phase_or_is_aborted(phase, to):
    forward = (phase.name, to.name) in set(pairwise(CHAIN))
    aborted = to is Phase.ABORTED and phase not in {Phase.PUBLISHED, Phase.ABORTED}
    if forward or aborted:
        assert advance(phase, to) is to
    else:
        with pytest.raises(IllegalTransition, match=f"from {phase.name} to {to.name}"):
            advance(phase, to)


def test_nothing_leaves_an_end():
    assert all(status is not Status.FINISHED for status, _ in TRANSITIONS)
    assert PHASES[Phase.PUBLISHED] == PHASES[Phase.ABORTED] == frozenset()


def test_every_status_can_be_reached():
    reached = {Status.WAITING}
    for _ in Status:
        reached |= {to for (start, _), to in TRANSITIONS.items() if start in reached}
    assert reached == set(Status)
