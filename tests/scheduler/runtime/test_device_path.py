"""Rounds as a device runs them that the host does not wait for, tried without one.

Tensors on the meta device have shapes and no values: whoever asks for one, mixes devices or takes
a size from the data fails. The plans are those of whole lives over tables; every round must come
as far as its one transfer.
"""

import sys
import time

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scheduler.plan import DeviceDraft, HostDraft, Layout
from scheduler.runtime import loading
from scheduler.runtime.fixed_forward import FixableTransformers
from scheduler.runtime.forward import TransformersForward
from scheduler.runtime.graphs import GraphedForward
from scheduler.runtime.head import OutputHead
from scheduler.runtime.llama_decoder import LlamaDecoder
from scheduler.runtime.loading import LoadedModel
from scheduler.runtime.torch_runner import Pair, TorchRunner
from scheduler.sampling.rng import CounterRandomness
from tests.oracles.rig import (
    BLOCK,
    NGRAM,
    NOISE,
    NONE,
    TOKEN,
    VOCABULARY,
    Rig,
    capabilities,
    config,
    identity,
    request,
)

META = torch.device("meta")
WARM = {"temperature": 0.9, "max_tokens": 9}
KINDS = {
    "greedy": {"temperature": 0.0},
    "token": {**WARM, "verifier": TOKEN},
    "block": {**WARM, "verifier": BLOCK},
    "noise": {**WARM, "verifier": NOISE},
    "lookup": {**WARM, "verifier": TOKEN, "proposer": NGRAM},
    "plain": {**WARM, "proposer": NONE},
    "filters": {**WARM, "verifier": TOKEN, "top_k": 5, "top_p": 0.9, "min_p": 0.01},
    "penalties": {**WARM, "presence_penalty": 0.5, "repetition_penalty": 1.2},
    "bias": {**WARM, "logit_bias": {3: 1.0, 4: -2.0}},
    "guard": {**WARM, "token_ids": frozenset({1, 2}), "min_tokens": 6},
}


class HostWaits(Exception):
    """The host asked for values; the message is the function that did."""


def _model(dtype):
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    with META:
        made = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY, num_attention_heads=4, num_key_value_heads=2, **shape
            )
        ).to(dtype)
    return LoadedModel(
        identity=identity(),
        decoder=LlamaDecoder(made, half=False),
        head=OutputHead(made, half=False),
        kv_shape=loading._kv_shape(made),
        heads=4,
        max_positions=128,
        device=META,
        deviation=0.0,
    )


def _eager(model, pool):
    return TransformersForward(model, pool)


def _fixed(model, pool):
    """Calls of fixed shapes, filled and launched as a recorder has it."""
    return GraphedForward(FixableTransformers(model, pool), lambda launch: launch)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request):
    return request.param


@pytest.fixture(params=[_eager, _fixed], ids=["eager", "fixed"])
def runner(request, dtype):
    settings, make = config(), request.param
    pair = Pair(
        target=make(_model(dtype), settings.target_pool),
        draft=make(_model(dtype), settings.draft_pool),
        vocabulary=VOCABULARY,
    )
    return TorchRunner(pair, capabilities(), CounterRandomness(), time.perf_counter)


def _plans(settings, kinds):
    """The plans of a life of one request of every kind, and one whose prompt comes in chunks."""
    rig = Rig(settings)
    for number, kind in enumerate(kinds, 1):
        rig.submit(request(number, [number, 2, 7] * (2 + number % 3), **kind))
    rig.submit(request(99, [5, 6] * 40, max_tokens=2))
    while (work := rig.plan()) is not None:
        plan, jobs = work
        yield plan
        result, staged = rig.execute(plan, jobs)
        rig.land(jobs, staged, result)


@pytest.mark.parametrize("layout", Layout, ids=lambda layout: layout.value)
@pytest.mark.parametrize("kinds", [*([name] for name in KINDS), list(KINDS)], ids=" ".join)
def test_a_round_waits_for_nothing_before_its_transfer(runner, kinds, layout, monkeypatch):
    plans = list(_plans(config(layout=layout), [KINDS[name] for name in kinds]))
    host = torch.Tensor.tolist

    def tolist(tensor):
        if tensor.is_meta:
            raise HostWaits(sys._getframe(1).f_code.co_name)
        return host(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", tolist)
    drafted = set()
    for plan in plans:
        drafted |= {type(group.draft) for group in plan.groups}
        emits = any(group.emits for group in plan.groups)
        with pytest.raises(HostWaits, match="^_transfer$" if emits else "^_run$"):
            runner.run(plan)
    assert len(plans) > 2
    if kinds == list(KINDS):
        assert {DeviceDraft, HostDraft, type(None)} <= drafted
