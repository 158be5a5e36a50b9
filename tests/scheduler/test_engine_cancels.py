"""Clients that give up while the worker runs, stages and breaks: the others notice nothing."""

import pytest

from scheduler.plan import Layout
from tests.oracles.meddling import meddle


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("layout", Layout)
def test_cancels_during_rounds_leave_the_others_alone(layout, seed):
    cancelled, wrong = meddle(seed, layout)
    assert wrong == []
    assert cancelled
