"""Calls of fixed shapes, replayed from recordings: what they give, write and leave alone."""

import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.config import PoolConfig
from scheduler.runtime.fixed_forward import FixableTransformers
from scheduler.runtime.fixed_rows import FixedShape, padded_size, shape_of
from scheduler.runtime.forward import TransformersForward
from scheduler.runtime.graphs import GraphedForward
from scheduler.runtime.llama_decoder import FIRST_ROTATIONS
from scheduler.runtime.loading import ModelSource, load_model
from scheduler.runtime.rows import WIDE_ROWS, Segment, pack
from tests.oracles.recorded import Recordings
from tests.scheduler.runtime.conftest import ARCHITECTURES
from tests.scheduler.runtime.packed_world import CPU, Oracle, PackedWorld
from tests.scheduler.runtime.test_packed_equality import LIMIT, mixed_run

CLOSE = 2e-5


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_replayed_rows_equal_the_model_alone(name, source, checkpoints):
    model = load_model(source(name), device=CPU)
    recordings = Recordings()

    def make(model, pool):
        return GraphedForward(FixableTransformers(model, pool), recordings.record)

    world = PackedWorld(
        model, Oracle(checkpoints[name]), [300, *[130] * 7], block_size=4, seed=3, make=make
    )
    mixed_run(world, LIMIT)
    assert recordings.refused == []
    assert recordings.replays > 5


# ---- any rows ----------------------------------------------------------------------------------

BLOCKS = 40


class Twins:
    """One model over two pools of the same rows: recorded calls of fixed shapes, and plain ones."""

    def __init__(self, model, block_size):
        pool = PoolConfig(blocks=BLOCKS, block_size=block_size)
        self.recordings = Recordings()
        self.fixed = GraphedForward(FixableTransformers(model, pool), self.recordings.record)
        self.plain = TransformersForward(model, pool)
        self.block_size = block_size

    def layers(self):
        """Both pools, layer by layer, the spare blocks left out."""
        own = BLOCKS * self.block_size
        fixed = self.fixed.inner.inner.pool.layers
        return [(one[:own], two) for one, two in zip(fixed, self.plain.pool.layers, strict=True)]

    def scatter(self, owned):
        """Random rows in the blocks `owned`; rows of all others are not finite."""
        for layer in self.fixed.inner.inner.pool.layers:
            layer.fill_(torch.nan)
        slots = torch.tensor([block * self.block_size for block in owned])
        slots = (slots[:, None] + torch.arange(self.block_size)).flatten()
        for one, two in self.layers():
            two.fill_(torch.nan)
            two[slots] = torch.randn(len(slots), *two.shape[1:])
            one.copy_(two)


def _segments(sizes, block_size, seed):
    """Segments over scattered blocks, as many as there are."""
    chance = random.Random(seed)
    free = list(range(BLOCKS))
    chance.shuffle(free)
    found = []
    for start, rows in sizes:
        needed = -(-(start + rows) // block_size)
        if needed <= len(free):
            blocks = tuple(free.pop() for _ in range(needed))
            found.append(Segment(start=start, rows=rows, blocks=blocks))
    return found


@pytest.fixture(scope="module", params=["mistral", "gemma2", "qwen3"])
def twins(request, source):
    model = load_model(source(request.param), device=CPU)
    return {size: Twins(model, size) for size in (3, 16)}


SIZES = st.lists(
    st.tuples(st.integers(0, 60), st.one_of(st.integers(1, 4), st.integers(1, 20))),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sizes=SIZES, block_size=st.sampled_from([3, 16]), seed=st.integers(0, 1 << 16))
def test_any_rows_give_and_write_what_a_plain_call_does(twins, sizes, block_size, seed):
    pair = twins[block_size]
    segments = _segments(sizes, block_size, seed)
    rows = pack(segments, block_size, CPU)
    torch.manual_seed(seed)
    pair.scatter([block for segment in segments for block in segment.blocks])
    before = [one.clone() for one, _ in pair.layers()]
    ids = torch.randint(pair.fixed.vocabulary, (len(rows.positions),))
    for _ in range(2):  # as it is, then from a recording
        found, wanted = pair.fixed.hidden(ids, rows), pair.plain.hidden(ids, rows)
        torch.testing.assert_close(found, wanted, rtol=CLOSE, atol=CLOSE)
        for was, (one, two) in zip(before, pair.layers(), strict=True):
            torch.testing.assert_close(one[rows.slots], two[rows.slots], rtol=CLOSE, atol=CLOSE)
            others = torch.ones(len(was), dtype=torch.bool).index_fill_(0, rows.slots, 0)
            assert torch.equal(one[others].nan_to_num(7.0), was[others].nan_to_num(7.0))
    if shape_of(rows) is not None:
        assert pair.recordings.replays > 0
    assert pair.recordings.refused == []


def test_a_replay_leaves_the_states_of_a_call_before_it_alone(twins):
    pair = twins[16]
    pair.scatter(range(BLOCKS))
    segments = [Segment(start=n, rows=3, blocks=(n,)) for n in range(2)]
    rows = pack(segments, 16, CPU)
    for _ in range(2):
        pair.fixed.hidden(torch.arange(6), rows)
    found = pair.fixed.hidden(torch.arange(6), rows)
    kept = found.clone()
    pair.fixed.hidden(torch.arange(6) + 9, rows)
    assert torch.equal(found, kept)


def test_a_recording_outlives_the_longest_context(edited):
    """Tables that grow with positions would leave it behind."""
    folder = edited("qwen3", max_position_embeddings=4 * FIRST_ROTATIONS)
    model = load_model(ModelSource(path_or_id=str(folder), offline=True), device=CPU)
    pair = Twins(model, 64)
    ids = torch.arange(2)
    for start in (3, 5, BLOCKS * 64 - 2, 7):
        blocks = tuple(range(-(-(start + 2) // 64)))
        rows = pack([Segment(start=start, rows=2, blocks=blocks)], 64, CPU)
        found, wanted = pair.fixed.hidden(ids, rows), pair.plain.hidden(ids, rows)
        torch.testing.assert_close(found, wanted, rtol=CLOSE, atol=CLOSE)
    assert pair.recordings.replays == 2


# ---- shapes ------------------------------------------------------------------------------------


@given(count=st.integers(1, 1 << 20))
def test_sizes_are_few_and_near(count):
    size = padded_size(count)
    assert count <= size < 1.5 * count
    assert padded_size(size) == size
    assert size.bit_count() <= 2


def _shape(*sizes, block_size=16):
    segments, first = [], 0
    for start, rows in sizes:
        needed = -(-(start + rows) // block_size)
        blocks = tuple(range(first, first + needed))
        segments.append(Segment(start=start, rows=rows, blocks=blocks))
        first += needed
    return shape_of(pack(segments, block_size, CPU))


def test_steps_of_every_k_have_shapes():
    for k in range(WIDE_ROWS):
        found = _shape(*[(200 + n, k + 1) for n in range(5)])
        assert found == FixedShape(segments=6, width=k + 1, columns=16)
    mixed = _shape((200, 1), (90, 5), (20, 3))
    assert mixed == FixedShape(segments=3, width=5, columns=16)


def test_short_contexts_share_a_shape():
    assert len({_shape((start, 2)) for start in range(126)}) == 1


@pytest.mark.parametrize(
    "sizes",
    [
        [(0, WIDE_ROWS + 1)],
        [(100, 2), (0, 40)],
        [(100, 1)] * 30 + [(100, 9)],
        [(100, 1)] * 30 + [(4000, 1)],
    ],
    ids=["a prompt", "a prompt beside others", "one wide among many", "one long among many"],
)
def test_what_padding_would_slow_has_no_shape(sizes):
    assert _shape(*sizes) is None
