"""The output head gives float32 logits, whatever type its weights are kept in.

The kernel that sums 16-bit products in float32 exists on CUDA only; elsewhere a stand-in takes its
place, so that what surrounds it is tried.
"""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scheduler.runtime.device import prepare_device
from scheduler.runtime.head import OutputHead
from scheduler.runtime.linear import WideLinear, sums_widely

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def _model(dtype, **changes):
    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, **changes)).to(dtype).requires_grad_(False)


def widely(rows, weight, *, out_dtype):
    return rows.to(out_dtype) @ weight.to(out_dtype)


def rounded(rows, weight, *, out_dtype):
    return (rows @ weight).to(out_dtype)


def missing(rows, weight, *, out_dtype):
    raise NotImplementedError("no kernel of that name")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logits_have_float32_accuracy(dtype):
    model = _model(dtype)
    hidden = torch.randn(5, 48).to(dtype)
    logits = OutputHead(model, half=False).logits(hidden)
    exact = hidden.double() @ model.lm_head.weight.double().t()
    assert logits.dtype is torch.float32
    assert (logits.double() - exact).abs().max() < 1e-5 * exact.abs().max()


@pytest.mark.parametrize("tied", [True, False])
def test_sixteen_bit_weights_stay_as_they_are_where_sums_are_wide(tied, monkeypatch):
    monkeypatch.setattr(torch, "mm", widely)
    model = _model(torch.bfloat16, tie_word_embeddings=tied)
    head, hidden = OutputHead(model, half=False), torch.randn(3, 48).bfloat16()
    assert isinstance(head._layer, WideLinear)
    assert head.vocabulary == 97
    assert head.bytes() == (0 if tied else 2 * 97 * 48)
    exact = hidden.float() @ model.lm_head.weight.float().t()
    assert torch.allclose(head.logits(hidden), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernel", [rounded, missing])
def test_a_kernel_that_rounds_or_is_missing_is_not_used(kernel, monkeypatch):
    monkeypatch.setattr(torch, "mm", kernel)
    model = _model(torch.bfloat16, tie_word_embeddings=True)
    assert not sums_widely(model.lm_head.weight)
    head = OutputHead(model, half=False)
    assert head.bytes() == 4 * 97 * 48
    assert head.logits(torch.randn(2, 48).bfloat16()).dtype is torch.float32


def test_wide_weights_have_no_need_of_it(monkeypatch):
    monkeypatch.setattr(torch, "mm", widely)
    assert not sums_widely(torch.randn(8, 8))
    assert sums_widely(torch.randn(8, 8).half())
    assert not sums_widely(torch.empty(8, 8, dtype=torch.bfloat16, device="meta"))


def test_attention_on_cuda_never_waits_for_a_plan_of_its_shape():
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(enabled=True)
        prepare_device(torch.device("cpu"))
        assert torch.backends.cuda.cudnn_sdp_enabled()
        prepare_device(torch.device("cuda"))
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled=before)
