"""The compiled norms that vLLM's layers take on a CPU, against the operation they stand for."""

import pytest
import torch

from scheduler.runtime.loading import ModelSource
from tests.contracts.test_forward import POOLS, checkpoints
from tests.contracts.test_vllm_fixed import vllm
from tests.oracles.forwards import Kind, make_forward

__all__ = ["checkpoints"]

EPSILON = 1e-5


@pytest.fixture(scope="module")
def norms():
    """vLLM's two norms with the compiled kernels before its own choice."""
    ours = vllm("scheduler.runtime.vllm_norms")
    ours.prefer_compiled_norms()
    ops = vllm("vllm.ir").ops
    return ops.rms_norm, ops.fused_add_rms_norm


def textbook(rows, weight):
    mean = rows.double().pow(2).mean(-1, keepdim=True)
    return rows.double() * (mean + EPSILON).rsqrt() * weight.double()


@pytest.mark.parametrize("shape", [(1, 16), (7, 1024), (3, 4, 32)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_whole_rows_of_float32_go_to_the_kernels(norms, shape, scale):
    norm, sum_norm = norms
    rows, residual = scale * torch.randn(shape), scale * torch.randn(shape)
    weight = torch.randn(shape[-1])
    assert norm.dispatch(rows, weight, EPSILON).provider == "compiled"
    assert sum_norm.dispatch(rows, residual, weight, EPSILON).provider == "compiled"
    found = norm(rows, weight, EPSILON)
    assert torch.allclose(found.double(), textbook(rows, weight), rtol=1e-5, atol=1e-6)
    total = rows + residual
    expected = textbook(total, weight)
    for call in (sum_norm, sum_norm.maybe_inplace):
        normed, kept = call(rows.clone(), residual.clone(), weight, EPSILON)
        assert torch.equal(kept, total)
        assert torch.allclose(normed.double(), expected, rtol=1e-5, atol=1e-6)


def test_what_the_kernels_would_get_wrong_is_left_to_torch(norms):
    norm, sum_norm = norms
    weight = torch.randn(32)
    rows = torch.randn(6, 2, 32)
    others = {
        "apart in memory": (rows[:, 0], weight, EPSILON),
        "no whole vectors": (torch.randn(6, 24), weight[:24], EPSILON),
        "16 bits": (rows.bfloat16(), weight.bfloat16(), EPSILON),
        "weights of another type": (rows, weight.bfloat16(), EPSILON),
        "no weights": (rows, None, EPSILON),
        "a part of each row": (rows, weight, EPSILON, 16),
    }
    for name, arguments in others.items():
        assert norm.dispatch(*arguments).provider == "native", name
        first, *rest = arguments
        assert sum_norm.dispatch(first, first, *rest).provider == "native", name
    whole, parts = rows[:, 0].contiguous(), rows[:, 0]
    assert sum_norm.dispatch(whole, parts, weight, EPSILON).provider == "native"
    found = norm(parts, weight, EPSILON)
    assert torch.allclose(found.double(), textbook(parts, weight), rtol=1e-5, atol=1e-6)


def test_a_model_that_is_loaded_on_a_cpu_takes_them(norms, checkpoints):
    for norm in norms:
        norm.set_default(["native"])
    source = ModelSource(path_or_id=str(checkpoints["draft"]), offline=True)
    make_forward(Kind("vllm", "cpu", "float32"), source, POOLS["draft"])
    assert [norm.get_priority() for norm in norms] == 2 * [["compiled", "native"]]
