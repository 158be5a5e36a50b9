"""Which operations run on one thread, by what torch is told around them."""

import pytest
import torch

from scheduler.config import PoolConfig
from scheduler.runtime import attention
from scheduler.runtime.attention import LayerAttention, PackedAttention
from scheduler.runtime.kv_cache import KvPool, KvShape
from scheduler.runtime.rows import Segment, pack
from scheduler.runtime.threads import one_thread

CPU = torch.device("cpu")


@pytest.fixture
def threads():
    """What torch is told from here on, on two threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_afterwards_there_are_as_many_threads_as_before(threads):
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with pytest.raises(ZeroDivisionError), one_thread():
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("context", "found"), [(40, 1), (400, 2)])
def test_attention_over_little_runs_on_one_thread(monkeypatch, threads, context, found):
    # A token takes 512 bytes in a layer of this pool: 64 KiB hold 128.
    monkeypatch.setattr(attention, "LITTLE_BYTES", 1 << 16)
    used = []
    real = attention.scaled_dot_product_attention

    def watched(*given, **named):
        used.append(torch.get_num_threads())
        return real(*given, **named)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", watched)
    shape = KvShape(layers=3, kv_heads=2, head_dim=32, dtype=torch.float32)
    pool = KvPool(shape, PoolConfig(blocks=64, block_size=16), CPU)
    segments = [
        Segment(start=context, rows=1, blocks=tuple(range(n * 30, n * 30 + 30))) for n in (0, 1)
    ]
    attend = PackedAttention(pool, pack(segments, 16, CPU), 4).attend
    attend(LayerAttention(layer=1, scale=1.0), torch.randn(2, 4, 32), torch.randn(2, 4, 32))
    assert (used, torch.get_num_threads()) == ([found], 2)
