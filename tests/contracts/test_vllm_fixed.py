"""Calls of fixed shapes over vLLM: which there are, what stands in their buffers, what they give.

What is padded is held against vLLM's own batches.
"""

import importlib
import random
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.config import PoolConfig
from scheduler.runtime.loading import ModelSource
from scheduler.runtime.rows import Segment, pack
from tests.contracts.test_forward import POOLS, checkpoints
from tests.oracles.forwards import Kind, make_forward, need_vllm, unwarned
from tests.oracles.packed_calls import RELATIVE

__all__ = ["checkpoints"]

CPU = torch.device("cpu")
WAYS = ("ragged", "uniform")
POSITIONS = 512


def vllm(name):
    """A module of vLLM, or of ours that imports it."""
    need_vllm()
    with unwarned():
        return importlib.import_module(name)


@pytest.fixture(scope="module")
def forwards(checkpoints):
    """A forward by the way in which its calls are made."""
    need_vllm()
    source = ModelSource(path_or_id=str(checkpoints["draft"]), offline=True)
    return {
        way: make_forward(Kind("vllm", "cpu", "float32", way), source, POOLS["draft"]).inner
        for way in WAYS
    }


def packed(spans, size=64, device=CPU):
    """Rows `start`, `rows` of each of `spans`, over tables of blocks that follow each other."""
    segments, first = [], 0
    for start, rows in spans:
        blocks = -(-(start + rows) // size)
        table = tuple(range(first, first + blocks))
        segments.append(Segment(start=start, rows=rows, blocks=table))
        first += blocks
    return pack(segments, size, device)


def shape(spans, ragged=False, widest=None):
    fixed = vllm("scheduler.runtime.vllm_fixed")
    found = fixed.shape_of(packed(spans), SimpleNamespace(ragged=ragged, widest=widest), POSITIONS)
    return None if found is None else (found.rows, found.requests, found.width, found.uniform)


def test_shapes_of_kernels_that_take_any_mix():
    any_mix = {"ragged": True}
    assert shape([(5, 1)], **any_mix) == (1, 1, 1, True)
    assert shape([(n, 1) for n in range(5)], **any_mix) == (6, 6, 1, True)
    assert shape([(9, 4), (3, 1), (0, 2)], **any_mix) == (8, 8, 8, False)
    assert shape([(0, 60), (9, 1)], **any_mix) == (64, 64, 64, False)
    assert shape([(0, 500), (9, 12)], **any_mix) == (512, 512, 512, False)
    assert shape([(0, 500), (9, 13)], **any_mix) is None


def test_shapes_of_kernels_that_take_one_number_of_rows():
    assert shape([(n, 1) for n in range(5)]) == (6, 6, 1, True)
    assert shape([(9, 4), (3, 1), (0, 2)]) == (12, 3, 4, True)
    assert shape([(9, 5)] * 13) == (80, 16, 5, True)
    # A wide one among others, up to what padding costs nothing.
    assert shape([(0, 16), *[(n, 1) for n in range(3)]]) == (64, 4, 16, True)
    assert shape([(0, 16), *[(n, 1) for n in range(4)]]) is None
    # A prompt alone, of which the next one has another length.
    assert shape([(0, 17)]) is None
    # Rows past the model's end have no positions.
    assert shape([(POSITIONS - 4, 4), (3, 1)]) == (8, 2, 4, True)
    assert shape([(POSITIONS - 3, 3), (3, 4)]) is None


@pytest.mark.parametrize("widest", [0, 1, 3])
def test_wider_rows_than_a_backend_records_have_no_shape(widest):
    for width in (1, 2, 3, 4):
        found = shape([(9, width), (3, 1)], widest=widest)
        assert (found is not None) is (width <= widest)


@pytest.mark.parametrize(("way", "requests", "rows"), [("ragged", 3, 7), ("uniform", 5, 10)])
def test_a_call_is_padded_as_vllm_pads_a_batch(way, requests, rows, forwards):
    batch = vllm("vllm.v1.worker.gpu.input_batch")
    no_slot = vllm("vllm.v1.attention.backends.utils").PAD_SLOT_ID
    forward = forwards[way]
    room = {"ragged": 8, "uniform": 12}[way]
    buffers = batch.InputBuffers(room if way == "ragged" else 6, room, CPU)
    theirs = batch.InputBatch.make_dummy(requests, rows, buffers)
    counts = theirs.num_scheduled_tokens.tolist()
    ours = packed([(0, count) for count in counts])
    dirty(forward)
    call = forward.fixed(forward.shape_of(ours))
    with torch.inference_mode():
        call.fill(torch.arange(rows) + 1, ours)
    made = next(iter(call._metadata.values()))
    assert made.query_start_loc.tolist() == buffers.query_start_loc.tolist()
    assert made.seq_lens.tolist() == buffers.seq_lens.tolist()
    assert made.query_start_loc.dtype is buffers.query_start_loc.dtype
    assert made.seq_lens.dtype is buffers.seq_lens.dtype
    assert made.num_actual_tokens == len(made.slot_mapping) == room
    assert made.slot_mapping.tolist() == ours.slots.tolist() + [no_slot] * (room - rows)
    inputs = call._inputs
    assert inputs.token_ids.tolist() == [*range(1, rows + 1), *[0] * (room - rows)]
    assert inputs.positions.tolist() == ours.positions.tolist() + [0] * (room - rows)
    assert inputs.padding.tolist() == [False] * rows + [True] * (room - rows)
    assert made.max_seq_len == POSITIONS


def test_narrow_requests_are_filled_up_to_the_widest(forwards):
    """Their own rows see what they saw before: the context ends with the surplus rows."""
    forward = forwards["uniform"]
    # The second one's surplus rows lie in a block that it has not.
    ours = packed([(9, 3), (62, 1)])
    dirty(forward)
    call = forward.fixed(forward.shape_of(ours))
    with torch.inference_mode():
        call.fill(torch.tensor([5, 6, 7, 8]), ours)
    made = next(iter(call._metadata.values()))
    assert made.query_start_loc.tolist() == [0, 3, 6]
    assert made.seq_lens.tolist() == [12, 65]
    assert made.block_table[:, :2].tolist() == [[0, 0], [1, 1]]
    assert call._inputs.token_ids.tolist() == [5, 6, 7, 8, 0, 0]
    assert call._inputs.slots.tolist() == [*ours.slots.tolist(), -1, -1]
    states = torch.arange(6.0)[:, None]
    assert call.pick(states, ours).ravel().tolist() == [0, 1, 2, 3]


def dirty(forward):
    """Leave in the buffers what an earlier call may have left."""
    buffers = forward._buffers
    with torch.inference_mode():
        for each in (buffers.token_ids, buffers.positions, buffers.slots, buffers.tables):
            each.fill_(3)
        for each in (buffers.bounds, buffers.lengths):
            each.fill_(5)
        buffers.padding.fill_(True)


def test_buffers_are_counted(forwards):
    forward = forwards["ragged"]
    rows = POOLS["draft"].blocks * POOLS["draft"].block_size
    kept = rows * forward.model.kv_shape.bytes_per_token()
    more = forward.memory_bytes() - forward.model.weight_bytes - kept
    assert more == 512 * (3 * 8 + 1 + 4 + (POSITIONS // 64) * 4) + 513 * 4


def test_a_fill_asks_the_device_for_nothing():
    """Meta tensors have no values: whoever asks for one fails."""
    fixed = vllm("scheduler.runtime.vllm_fixed")
    meta = torch.device("meta")
    seen = []
    kv = SimpleNamespace(ragged=True, widest=None, metadata=seen.append)
    model = SimpleNamespace(max_positions=POSITIONS, inside=nullcontext, device=meta)
    buffers = fixed.VllmBuffers(POSITIONS, 64, meta)
    pool = PoolConfig(blocks=24, block_size=64)
    for spans in ([(9, 4), (3, 1)], [(5, 1), (7, 1)]):
        ours = packed(spans, device=meta)
        call = fixed.VllmCall(model, kv, pool, buffers, fixed.shape_of(ours, kv, POSITIONS))
        with torch.inference_mode():
            call.fill(torch.zeros(len(ours.positions), dtype=torch.int64, device=meta), ours)
    assert len(seen) == 2
    assert seen[0].seq_lens_cpu_upper_bound.tolist() == [13, 4, 0, 0, 0, 0]


LENGTHS = (64, 130, 31, 63, 200, 97)


@pytest.fixture(scope="module")
def tables():
    """Blocks of each request, in no order."""
    chance, blocks = random.Random(4), list(range(24))
    chance.shuffle(blocks)
    return [tuple(blocks.pop() for _ in range(-(-length // 64))) for length in LENGTHS]


@st.composite
def calls(draw):
    """(start, rows) of some of the requests."""
    found = {}
    for number in draw(st.lists(st.integers(0, len(LENGTHS) - 1), min_size=1, unique=True)):
        start = draw(st.integers(0, LENGTHS[number] - 1))
        found[number] = (start, draw(st.integers(1, min(9, LENGTHS[number] - start))))
    return found


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=40, deadline=None)
@given(spans=calls(), seed=st.integers(0, 99))
def test_it_gives_what_an_eager_call_gives_and_writes_the_same(way, forwards, tables, spans, seed):
    """Rows of others and of blocks that nobody has stay as they are."""
    forward = forwards[way]
    segments = [
        Segment(start=start, rows=rows, blocks=tables[number])
        for number, (start, rows) in spans.items()
    ]
    ours = pack(segments, 64, CPU)
    torch.manual_seed(seed)
    ids = torch.randint(forward.vocabulary, (len(ours.positions),))
    caches = [layer.kv_cache for layer in forward.kv.layers.values()]
    with torch.inference_mode():
        before = [cache.normal_().clone() for cache in caches]
        wanted = forward.hidden(ids, ours)
        written = [cache.clone() for cache in caches]
        for cache, values in zip(caches, before, strict=True):
            cache.copy_(values)
        call = forward.fixed(forward.shape_of(ours))
        call.fill(ids, ours)
        for _ in range(2):
            found = call.pick(call.launch(), ours)
            assert (found - wanted).abs().max() <= RELATIVE * wanted.abs().max()
            for cache, values, old in zip(caches, written, before, strict=True):
                changed = values != old
                assert torch.equal(cache != old, changed)
                assert (cache - values).abs().max() <= RELATIVE * values.abs().max()
