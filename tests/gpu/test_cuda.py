"""What only a CUDA device can say: where the host waits for it, and how near its sums are."""

import time
import warnings

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scheduler.runtime import loading
from scheduler.runtime.forward import TransformersForward
from scheduler.runtime.linear import WideLinear, sums_widely
from scheduler.runtime.loading import ModelSource, load_model
from scheduler.runtime.torch_runner import Pair, TorchRunner
from scheduler.sampling.moving import flags, floats, integers
from scheduler.sampling.rng import CounterRandomness
from tests.gpu.device_time import busy_seconds
from tests.oracles.rig import (
    BLOCK,
    NGRAM,
    NOISE,
    TOKEN,
    VOCABULARY,
    Rig,
    capabilities,
    config,
    request,
)

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
WARM = {"temperature": 0.9, "max_tokens": 12}
CLIENTS = {
    "greedy": {"temperature": 0.0, "max_tokens": 12},
    "token": {**WARM, "verifier": TOKEN, "top_k": 5, "top_p": 0.9, "min_p": 0.01},
    "block": {**WARM, "verifier": BLOCK, "presence_penalty": 0.5, "repetition_penalty": 1.2},
    "noise": {**WARM, "verifier": NOISE, "logit_bias": {3: 1.0}},
    "lookup": {**WARM, "verifier": TOKEN, "proposer": NGRAM},
    "guard": {**WARM, "token_ids": frozenset({1}), "min_tokens": 9},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(1)
    made = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            initializer_range=0.2,
        )
    )
    path = tmp_path_factory.mktemp("model")
    made.save_pretrained(path)
    return path


@pytest.fixture(params=["float32", "bfloat16"])
def rig(folder, request):
    settings = config()
    source = ModelSource(path_or_id=str(folder), offline=True)
    model = load_model(source, device=CUDA, dtype=request.param)
    pair = Pair(
        target=TransformersForward(model, settings.target_pool),
        draft=TransformersForward(model, settings.draft_pool),
        vocabulary=VOCABULARY,
    )
    runner = TorchRunner(pair, capabilities(), CounterRandomness(), time.perf_counter)
    return Rig(settings, runner=runner)


def waits(work):
    """What `work` gives, and how often the host waited for the device meanwhile."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            result = work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return result, [each for each in caught if "synchronizing" in str(each.message)]


@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize("names", [*([name] for name in CLIENTS), list(CLIENTS)], ids=" ".join)
def test_the_host_waits_for_the_transfers_of_a_round_alone(rig, names, logprobs):
    for number, name in enumerate(names, 1):
        asked = request(number, [number, 2, 7] * (2 + number), logprobs=logprobs, **CLIENTS[name])
        rig.submit(asked)
    drafted = 0
    while (work := rig.plan()) is not None:
        plan, jobs = work
        rig.runner.run(plan)  # libraries may wait when a shape is new to them
        result, seen = waits(lambda plan=plan: rig.runner.run(plan))
        assert len(seen) == result.host_syncs, [str(each.filename) for each in seen]
        drafted += result.draft_rows
        staged = rig.stage(plan, jobs, result)
        rig.land(jobs, staged, result)
    assert drafted > 0 or names == ["lookup"]


def test_host_values_arrive_without_a_wait():
    found, seen = waits(lambda: [integers(range(99), CUDA), floats([0.5], CUDA), flags([], CUDA)])
    assert seen == []
    assert [each.tolist() for each in found] == [list(range(99)), [0.5], []]


@pytest.mark.parametrize("count", [1, 5, 640])
def test_sixteen_bit_products_are_summed_and_given_in_float32(count):
    weight = torch.randn(3000, 512, device=CUDA).bfloat16()
    assert sums_widely(weight)
    rows = torch.randn(count, 512, device=CUDA).bfloat16()
    exact = rows.double() @ weight.double().t()
    found = WideLinear(weight).product(rows)
    assert found.dtype is torch.float32
    assert (found.double() - exact).abs().max() < 2e-5 * exact.abs().max()


def test_a_loaded_model_keeps_sixteen_bits_in_its_head(folder):
    source = ModelSource(path_or_id=str(folder), offline=True)
    model = load_model(source, device=CUDA, dtype="bfloat16")
    assert isinstance(model.head._layer, WideLinear)
    assert model.deviation < loading.TOLERANCE[torch.bfloat16] * 10


def test_the_profiler_sees_how_long_the_device_is_busy():
    big = torch.randn(4096, 4096, device=CUDA)
    once = busy_seconds(lambda: torch.mm(big, big), 5, CUDA)
    twice = busy_seconds(lambda: (torch.mm(big, big), torch.mm(big, big)), 5, CUDA)
    assert once is not None
    assert 1.2 * once < twice < 4 * once
