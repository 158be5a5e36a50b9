"""Engines that take turns: who runs when, by a clock that is set by hand, and that nothing but
weights is shared. Threads meet by what they wait for, never by time."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from scheduler.runtime.create import PairOptions, create_runner
from scheduler.runtime.loading import ModelSource
from tests.bench.k.studio import twin
from tests.bench.k.turns import Place, Turnstile
from tests.bench.measure import find_pair

PATIENCE = 10.0


class Row:
    """Places at one turnstile, each with a thread of its own as engines have."""

    def __init__(self, count):
        self.now = 0.0
        self.turnstile = Turnstile(1.0, lambda: self.now)
        self.places = [Place(self.turnstile) for _ in range(count)]
        self.threads = ThreadPoolExecutor(count)

    def ask(self, place):
        """Have `place` wait for its turn; returns once it stands in the row, or has the turn."""
        asked = self.threads.submit(place.wait)
        with self.turnstile._changed:
            met = self.turnstile._changed.wait_for(
                lambda: asked.done() or place in self.turnstile._waiting, PATIENCE
            )
        assert met or asked.done()
        return asked


@pytest.fixture
def row():
    made = Row(3)
    for place in made.places:
        place.enter()
    yield made
    for place in made.places:
        place.leave()
    made.threads.shutdown()


def settled(asked):
    asked.result(PATIENCE)
    return True


def test_a_turn_lasts_its_span_in_whole_rounds(row):
    one, two, _ = row.places
    assert settled(row.ask(one))
    other = row.ask(two)
    row.now = 0.9
    assert settled(row.ask(one))
    row.now = 1.3
    assert not other.done()
    again = row.ask(one)
    assert settled(other)
    assert not again.done()


def test_who_is_alone_goes_on(row):
    one, *_ = row.places
    for row.now in (0.0, 1.5, 3.0):
        assert settled(row.ask(one))
    assert one.taken == 3


def test_the_turn_goes_to_who_is_least_far(row):
    one, two, three = row.places
    assert settled(row.ask(one))
    two.progress, three.progress, one.progress = 0.5, 0.25, 0.75
    later, sooner = row.ask(two), row.ask(three)
    row.now = 1.0
    last = row.ask(one)
    assert settled(sooner)
    three.progress = 0.6
    row.now = 2.0
    third = row.ask(three)
    assert settled(later)
    assert not last.done()
    assert not third.done()


def test_of_equals_it_goes_to_who_had_fewer_turns(row):
    one, two, three = row.places
    assert settled(row.ask(one))
    two.taken = 2
    later, sooner = row.ask(two), row.ask(three)
    one.leave()
    assert settled(sooner)
    assert not later.done()


def test_a_clock_stands_still_while_its_place_waits(row):
    one, two, _ = row.places
    row.now = 5.0
    assert settled(row.ask(one))
    other = row.ask(two)
    row.now = 8.0
    one.leave()
    assert settled(other)
    assert (one.clock(), two.clock()) == (8.0, 5.0)


def test_who_leaves_waits_no_more_and_holds_nobody_up(row):
    one, two, three = row.places
    assert settled(row.ask(one))
    gone, next_one = row.ask(two), row.ask(three)
    two.leave()
    assert settled(gone)
    assert not next_one.done()
    one.leave()
    assert settled(next_one)
    two.wait()


def test_a_new_entry_begins_with_all_of_its_work_to_do(row):
    one, *_ = row.places
    one.progress, one.taken = 1.0, 7
    one.enter()
    assert (one.progress, one.taken) == (0.0, 0)


@pytest.fixture(scope="module")
def runner():
    pair = find_pair("embedded", 0)
    options = PairOptions(
        target=ModelSource(path_or_id=pair.target),
        draft=ModelSource(path_or_id=pair.draft),
        max_model_len=64,
        max_requests=2,
    )
    return create_runner(options, time.perf_counter).runner


def test_twins_share_weights_and_no_memory(runner):
    other = twin(runner, time.perf_counter, draft=True)
    assert other.capabilities() == runner.capabilities()
    for role in ("target", "draft"):
        ours, theirs = getattr(other._pair, role), getattr(runner._pair, role)
        assert ours._decoder is theirs._decoder
        for mine, its in zip(ours.pool.layers, theirs.pool.layers, strict=True):
            assert mine.shape == its.shape
            assert mine.data_ptr() != its.data_ptr()


def test_a_twin_without_a_draft_knows_none(runner):
    bare = twin(runner, time.perf_counter, draft=False)
    assert bare.capabilities().draft is None
    assert bare._pair.draft is None
    assert bare._pair.target._decoder is runner._pair.target._decoder
