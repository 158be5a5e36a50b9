"""A cancel at every moment of every kind of round: it ends its request, and nothing else."""

import pytest

from scheduler.plan import Layout
from tests.oracles.cancels import Cancel, cancel_at, cancel_in_the_queue, moments
from tests.oracles.scenes import KINDS, STYLES

MOMENTS = moments()
NAMES = [f"{each.__name__}-{point.value if point else 'no-fault'}" for each, point in MOMENTS]


@pytest.mark.parametrize("shift", [0, 1, 2])
@pytest.mark.parametrize("place", range(len(MOMENTS)), ids=NAMES)
def test_a_cancel_ends_its_request_and_nothing_else(place, shift):
    moment, point = MOMENTS[place]
    kind = KINDS[(place + 4 * shift) % len(KINDS)]
    style = STYLES[(place + shift) % len(STYLES)]
    assert cancel_at(Cancel(kind=kind, style=style, moment=moment, point=point)) == []


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("layout", Layout)
def test_a_cancel_in_the_queue(layout, in_flight):
    assert cancel_in_the_queue(layout, in_flight) == []
