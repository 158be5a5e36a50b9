"""The pool's size, its refusals and block copies; and what a forward refuses."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from scheduler.config import PoolConfig
from scheduler.runtime.forward import TransformersForward
from scheduler.runtime.kv_cache import KvPool, KvShape
from scheduler.runtime.loading import ModelSource, load_model
from scheduler.runtime.rows import Segment, pack

CPU = torch.device("cpu")
SHAPE = KvShape(layers=3, kv_heads=2, head_dim=8, dtype=torch.bfloat16)


def _rows(block_size=4, block=0, start=0):
    blocks = (*range(10, 10 + start // block_size), block)
    return pack([Segment(start=start, rows=1, blocks=blocks)], block_size, CPU)


def test_bytes_are_those_of_keys_and_values_of_every_layer():
    pool = KvPool(SHAPE, PoolConfig(blocks=5, block_size=4), CPU)
    assert SHAPE.bytes_per_token() == 2 * 3 * 2 * 8 * 2
    assert pool.bytes() == 5 * 4 * SHAPE.bytes_per_token()


def test_every_block_is_usable_and_starts_as_zeros():
    pool = KvPool(SHAPE, PoolConfig(blocks=5, block_size=4), CPU)
    pool.check(_rows(block=0))
    pool.check(_rows(block=4))
    assert all(bool((layer == 0).all()) for layer in pool.layers)


def test_rows_of_another_pool_are_refused():
    pool = KvPool(SHAPE, PoolConfig(blocks=5, block_size=4), CPU)
    with pytest.raises(ValueError, match="block 5 is outside the pool of 5 blocks"):
        pool.check(_rows(block=5))
    with pytest.raises(ValueError, match="packed for blocks of 8, the pool has 4"):
        pool.check(_rows(block_size=8))


def test_copied_blocks_hold_the_same_rows_and_leave_the_others():
    pool = KvPool(SHAPE, PoolConfig(blocks=5, block_size=4), CPU)
    for layer in pool.layers:
        layer.normal_()
    before = [layer.clone() for layer in pool.layers]
    pool.copy_blocks(torch.tensor([3, 0]), torch.tensor([1, 4]))
    for layer, old in zip(pool.layers, before, strict=True):
        assert torch.equal(layer.view(5, -1), old.view(5, -1)[[0, 3, 2, 3, 0]])


def test_a_forward_refuses_rows_that_do_not_fit_it(source):
    forward = TransformersForward(
        load_model(source("llama"), device=CPU), PoolConfig(blocks=100, block_size=4)
    )
    with pytest.raises(ValueError, match="2 tokens for 1 rows"):
        forward.hidden(torch.tensor([1, 2]), _rows())
    with pytest.raises(ValueError, match="position 320 is past the model's 320"):
        forward.hidden(torch.tensor([1]), _rows(start=320))
    with pytest.raises(ValueError, match="block 100 is outside"):
        forward.hidden(torch.tensor([1]), _rows(block=100))


def test_a_forward_counts_weights_head_and_pool(source):
    model = load_model(source("qwen3"), device=CPU)
    small = TransformersForward(model, PoolConfig(blocks=1, block_size=4))
    large = TransformersForward(model, PoolConfig(blocks=11, block_size=4))
    each = model.kv_shape.bytes_per_token()
    assert large.memory_bytes() - small.memory_bytes() == 40 * each
    rotation = 1024 * 8 * 8
    assert small.memory_bytes() >= 4 * model.identity.parameters + 4 * each + rotation


def test_a_tied_head_is_counted_once(edited):
    folder = edited("llama", tie_word_embeddings=True)
    path = folder / "model.safetensors"
    weights = load_file(path)
    del weights["lm_head.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    tied = load_model(ModelSource(path_or_id=str(folder), offline=True), device=CPU, pack=False)
    assert tied.head.bytes() == 0
