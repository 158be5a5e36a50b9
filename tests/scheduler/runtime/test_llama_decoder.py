"""The parts of the lean decoder against their textbook forms, in float64."""

import pytest
import torch

from scheduler.runtime.llama_decoder import (
    FIRST_ROTATIONS,
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
