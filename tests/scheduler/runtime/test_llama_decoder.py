"""The parts of the lean decoder against their textbook forms, in float64."""

import pytest
import torch
from transformers import LlamaForCausalLM

from scheduler.config import PoolConfig
from scheduler.runtime import llama_decoder
from scheduler.runtime.attention import PackedAttention
from scheduler.runtime.kv_cache import KvPool, KvShape
from scheduler.runtime.linear import half_available
from scheduler.runtime.llama_decoder import (
    FIRST_ROTATIONS,
    LlamaDecoder,
    RmsNorm,
    Rotation,
    grouped_order,
    narrow,
    pair_order,
    rotate_,
)
from scheduler.runtime.rows import Segment, pack

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
def test_the_norm_is_the_root_mean_square_norm(dtype, scale):
    weight, rows = torch.randn(3, 48).to(dtype), (scale * torch.randn(5, 3, 48)).to(dtype)
    mean = rows.double().pow(2).mean(-1, keepdim=True)
    expected = rows.double() / (mean + 1e-6).sqrt() * weight.double()
    found = RmsNorm(weight, 1e-6)(rows)
    assert found.dtype is dtype
    precision = 1e-5 if dtype is torch.float32 else 2.0**-7
    assert torch.allclose(found.double(), expected, rtol=precision, atol=precision)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("start", [0, FIRST_ROTATIONS - 2, 5 * FIRST_ROTATIONS])
def test_heads_turn_by_their_absolute_position(dtype, start):
    frequencies = 1.0 / 10000 ** (torch.arange(0, 8, 2) / 8)
    blocks = tuple(range(start // 16 + 1))
    rows = pack([Segment(start=start, rows=3, blocks=(*blocks, len(blocks)))], 16, CPU)
    heads = torch.randn(3, 5, 8).to(dtype)
    angles = rows.positions.double()[:, None, None] * frequencies.double()
    half = heads.double().view(3, 5, 2, 4)
    first, second = half[:, :, 0], half[:, :, 1]
    turned = (
        1.5 * (first * angles.cos() - second * angles.sin()),
        1.5 * (second * angles.cos() + first * angles.sin()),
    )
    found = heads[:, :, pair_order(8)].contiguous()
    rotation = Rotation(frequencies, 1.5)
    rotation.reach(start + 3)
    rotate_(found, rotation.factors(rows.positions))
    expected = torch.cat(turned, -1)[:, :, pair_order(8)]
    # Float32 angles are exact to 2^-24 of the position.
    precision = 3e-3 if dtype is torch.float32 else 4e-2
    assert (found.double() - expected).abs().max() < precision


def test_grouped_heads_of_one_share_read_consecutive_cache_heads():
    assert grouped_order(6, 2).tolist() == [0, 3, 1, 4, 2, 5]
    assert grouped_order(4, 4).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1.0, 2.0**-130], torch.bfloat16),
        ([1.0, 1.0 + 2.0**-10], torch.float16),
        ([1.0, 1.0 + 2.0**-20], torch.float32),
    ],
)
def test_a_table_shrinks_only_when_nothing_is_lost(values, dtype):
    table = torch.tensor([values])
    found = narrow(table)
    assert found.dtype is dtype
    assert torch.equal(found.float(), table)


@pytest.fixture
def model(checkpoints):
    """A small model in float32 whose weights and biases float16 holds."""
    return LlamaForCausalLM.from_pretrained(checkpoints["llama-bfloat16"], dtype=torch.float32)


def packed_hidden(decoder, wanted=None):
    """Hidden states of 5 tokens in a pool of their own."""
    shape = KvShape(layers=3, kv_heads=2, head_dim=8, dtype=torch.float32)
    pool = KvPool(shape, PoolConfig(blocks=1, block_size=16), CPU)
    rows = pack([Segment(start=0, rows=5, blocks=(0,))], 16, CPU)
    decoder.reach(5)
    with torch.inference_mode():
        attention = PackedAttention(pool, rows, 6)
        return decoder.hidden(torch.arange(5), rows.positions, attention, wanted)


@pytest.mark.parametrize("most", [0, 1 << 22])
@pytest.mark.parametrize("half", [False, True])
def test_gate_and_up_give_the_same_stacked_or_apart(monkeypatch, model, half, most):
    if half and not half_available():
        pytest.skip("this build or processor packs no weights to float16")
    monkeypatch.setattr(llama_decoder, "STACKED_WEIGHTS", most)
    decoder = LlamaDecoder(model, half=half)
    apart = half and not most
    assert [len(layer.gate_up) for layer in decoder._layers] == 3 * [2 if apart else 1]
    with torch.inference_mode():
        expected = model.model(torch.arange(5)[None]).last_hidden_state[0]
    assert torch.allclose(packed_hidden(decoder), expected, rtol=1e-4, atol=1e-5)


def test_the_last_layer_finishes_the_wanted_rows_alone(monkeypatch, model):
    decoder = LlamaDecoder(model, half=False)
    expected = packed_hidden(decoder)
    counts = []
    multiply = llama_decoder.linear
    monkeypatch.setattr(
        llama_decoder,
        "linear",
        lambda rows, layer: counts.append(len(rows)) or multiply(rows, layer),
    )
    found = packed_hidden(decoder, torch.tensor([4, 1]))
    assert torch.allclose(found, expected[[4, 1]], rtol=1e-5, atol=1e-6)
    # Of each layer: q/k/v, output, gate and up, down.
    assert counts == [5, 5, 5, 5, 5, 5, 5, 5, 5, 2, 2, 2]
