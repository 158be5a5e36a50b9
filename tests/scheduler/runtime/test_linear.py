"""The one linear entry: packed against plain, stacked against separate, padded against bare."""

import pytest
import torch

from scheduler.runtime.linear import (
    HALF_ERROR,
    DenseLinear,
    HalfLinear,
    LinearModule,
    build_linear,
    half_available,
    linear,
    packs_exactly,
)

needs_half = pytest.mark.skipif(not half_available(), reason="no FBGEMM on this processor")


def _weight(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator).bfloat16().float()


@needs_half
@pytest.mark.parametrize("count", [1, 2, 5, 8, 33])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_packed_products_have_float32_accuracy(count, stored):
    weight = torch.randn(70, 96).to(stored).float()
    bias, rows = torch.randn(70), torch.randn(count, 96)
    layer = build_linear([weight], [bias], half=True)
    assert isinstance(layer, HalfLinear)
    exact = rows.double() @ weight.double().t() + bias.double()
    assert (linear(rows, layer).double() - exact).abs().max() < 3e-5
    assert layer.bytes() == 2 * 70 * 96 + 4 * 70


@needs_half
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("biased", [False, True])
def test_large_weights_give_the_same_products_on_all_threads(threads, biased):
    weight, bias = _weight(1024, 1024), torch.randn(1024) if biased else None
    rows = torch.randn(5, 1024)
    parts = [HalfLinear(part, None) for part in weight.split(256)]
    expected = torch.cat([linear(rows, part) for part in parts], dim=1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = linear(rows, HalfLinear(weight, bias))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found, expected + (0.0 if bias is None else bias))


@needs_half
def test_bfloat16_values_below_half_precision_lose_at_most_the_stated_error():
    tiny = torch.logspace(-40, -4, 800, base=2.0).bfloat16().float().view(8, 100)
    assert packs_exactly(tiny)
    found = linear(torch.eye(100), HalfLinear(tiny, None)).t()
    assert (found - tiny).abs().max() <= HALF_ERROR


@needs_half
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda w: w[7, 3].fill_(65536.0), id="too large"),
        pytest.param(lambda w: w[5000, 2].fill_(1.0 + 2.0**-12), id="between two values"),
        pytest.param(lambda w: w[0, 0].fill_(float("nan")), id="not a number"),
        pytest.param(lambda w: w[0, 0].fill_(float("inf")), id="infinite"),
    ],
)
def test_weights_that_half_precision_cannot_hold_stay_float32(spoil):
    weight = _weight(5001, 4)
    assert packs_exactly(weight)
    spoil(weight)
    assert not packs_exactly(weight)
    assert isinstance(build_linear([weight], [None], half=True), DenseLinear)


def test_packing_is_a_choice_and_needs_float32_on_a_cpu():
    weight = _weight(8, 8)
    assert isinstance(build_linear([weight], [None], half=False), DenseLinear)
    assert not packs_exactly(weight.bfloat16())
    assert not packs_exactly(weight.to("meta"))


@pytest.mark.parametrize("half", [False, True])
def test_stacked_weights_give_the_separate_products_side_by_side(half):
    weights = [_weight(24, 32, 1), _weight(8, 32, 2), _weight(8, 32, 3)]
    biases = [torch.randn(24), None, torch.randn(8)]
    rows = torch.randn(5, 32)
    stacked = linear(rows, build_linear(weights, biases, half=half))
    separate = [
        linear(rows, build_linear([weight], [bias], half=half))
        for weight, bias in zip(weights, biases, strict=True)
    ]
    assert torch.allclose(stacked, torch.cat(separate, -1), atol=1e-5)


def test_a_module_in_the_place_of_a_linear_keeps_leading_axes():
    weight, bias = _weight(6, 32), torch.randn(6)
    module = LinearModule(build_linear([weight], [bias], half=True))
    rows = torch.randn(1, 7, 32)
    assert torch.allclose(module(rows), rows @ weight.t() + bias, atol=1e-5)
