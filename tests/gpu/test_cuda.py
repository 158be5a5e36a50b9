"""What only a CUDA device can say: where the host waits for it, and how near its sums are."""

import time

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scheduler.config import PoolConfig
from scheduler.runtime import loading
from scheduler.runtime.cuda_graphs import GraphRecorder
from scheduler.runtime.fixed_forward import FixableTransformers
from scheduler.runtime.forward import TransformersForward
from scheduler.runtime.graphs import GraphedForward
from scheduler.runtime.linear import WideLinear, sums_widely
from scheduler.runtime.loading import ModelSource, load_model
from scheduler.runtime.rows import Segment, pack
from scheduler.runtime.torch_runner import Pair, TorchRunner
from scheduler.sampling.moving import flags, floats, integers
from scheduler.sampling.rng import CounterRandomness
from tests.gpu.device_time import busy_seconds
from tests.gpu.waiting import waits
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


def _recorded(model, pool):
    return GraphedForward(FixableTransformers(model, pool), GraphRecorder(CUDA))


@pytest.fixture(params=[TransformersForward, _recorded], ids=["eager", "recorded"])
def make(request):
    return request.param


@pytest.fixture(params=["float32", "bfloat16"])
def rig(folder, request, make):
    settings = config()
    source = ModelSource(path_or_id=str(folder), offline=True)
    model = load_model(source, device=CUDA, dtype=request.param)
    pair = Pair(
        target=make(model, settings.target_pool),
        draft=make(model, settings.draft_pool),
        vocabulary=VOCABULARY,
    )
    runner = TorchRunner(pair, capabilities(), CounterRandomness(), time.perf_counter)
    return Rig(settings, runner=runner)


@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize("names", [*([name] for name in CLIENTS), list(CLIENTS)], ids=" ".join)
def test_the_host_waits_for_the_transfers_of_a_round_alone(rig, names, logprobs):
    for number, name in enumerate(names, 1):
        asked = request(number, [number, 2, 7] * (2 + number), logprobs=logprobs, **CLIENTS[name])
        rig.submit(asked)
    drafted = 0
    while (work := rig.plan()) is not None:
        plan, jobs = work
        for _ in range(2):  # libraries may wait when a shape is new to them, a recording does
            rig.runner.run(plan)
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


# ---- recordings --------------------------------------------------------------------------------


def test_a_replay_runs_on_what_the_buffers_hold_now():
    record, ids = GraphRecorder(CUDA), torch.arange(4, device=CUDA)
    with torch.inference_mode():
        double, square = record(lambda: ids * 2), record(lambda: ids * ids)
        for first in range(3):
            ids.copy_(torch.arange(first, first + 4))
            assert double().tolist() == [2 * n for n in range(first, first + 4)]
            assert square().tolist() == [n * n for n in range(first, first + 4)]


@torch.inference_mode()
def test_a_launch_that_waits_is_refused_and_the_next_is_recorded():
    record, ids = GraphRecorder(CUDA), torch.arange(4, device=CUDA)
    with pytest.raises(RuntimeError, match="synchroniz"):
        record(lambda: ids * int(ids.sum()))
    assert torch.cuda.get_sync_debug_mode() == 0
    assert record(lambda: ids + 1)().tolist() == [1, 2, 3, 4]


def _broken_off(record, ids):
    """Break a recording off as no warm-up shows: the host waits as torch does not watch."""

    def waiting():
        found = ids * 3
        torch.cuda.synchronize()
        return found

    with pytest.raises(RuntimeError):
        record(waiting)


@torch.inference_mode()
def test_a_recording_that_breaks_off_leaves_the_device_as_it_was():
    record, ids = GraphRecorder(CUDA), torch.arange(4, device=CUDA)
    _broken_off(record, ids)
    with pytest.raises(RuntimeError, match="an earlier recording broke off"):
        record(lambda: ids)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    taken = [torch.full((1 << 20,), n, device=CUDA) for n in range(4)]
    assert [int(each.sum()) >> 20 for each in taken] == [0, 1, 2, 3]
    # Some versions leave torch's generators recording, until a recording ends well.
    assert GraphRecorder(CUDA)(lambda: ids + 2)().tolist() == [2, 3, 4, 5]


@pytest.mark.skipif(
    torch.__version__ < (2, 12),
    reason="torch 2.11 replays nothing after a recording that broke off",
)
@torch.inference_mode()
def test_earlier_recordings_are_replayed_after_one_that_broke_off():
    record, ids = GraphRecorder(CUDA), torch.arange(4, device=CUDA)
    kept = record(lambda: ids + 1)
    _broken_off(record, ids)
    assert kept().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_verify_and_draft_steps_of_every_k_are_replayed(folder, dtype):
    source = ModelSource(path_or_id=str(folder), offline=True)
    model = load_model(source, device=CUDA, dtype=dtype)
    forward = _recorded(model, PoolConfig(blocks=64, block_size=16))
    for number, rows in enumerate(range(1, 10), 1):
        segments = [Segment(start=20, rows=rows, blocks=(2 * n, 2 * n + 1)) for n in range(5)]
        packed = pack(segments, 16, CUDA)
        ids = torch.arange(5 * rows, device=CUDA) % VOCABULARY
        found = [forward.hidden(ids, packed) for _ in range(3)]
        assert forward.recorded == number
        wanted = forward.inner.hidden(ids, packed)
        limit = {"float32": 2e-5, "bfloat16": 0.1}[dtype] * float(wanted.abs().max())
        for each in found:
            assert (each - wanted).abs().max() <= limit


# ---- products ----------------------------------------------------------------------------------


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
