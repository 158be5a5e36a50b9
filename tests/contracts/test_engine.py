"""The whole engine over every runtime: the embedded pair's texts against the serial reference.

Every emitted token is the choice of the unmodified model read one request at a time, or lies within
the measured deviation of its logits.
"""

import time

import pytest
import torch

from deploy.pair import DRAFT, TARGET
from scheduler.runtime import create
from scheduler.runtime.create import PairOptions, create_runner
from scheduler.runtime.loading import ModelSource
from tests.oracles.forwards import as_if_recordable, kinds, need, recorder_of, unwarned
from tests.oracles.pair_texts import load_reference, read

# What rounding may do to a logprob, and what share of tokens may differ at all.
LIMITS = {"float32": (1e-3, 0.001), "bfloat16": (1.0, 0.05)}


@pytest.fixture(scope="module", params=kinds())
def loaded(request):
    """(kind, pair) as the server loads them."""
    kind = request.param
    need(kind)
    torch.set_num_threads(1)
    options = PairOptions(
        target=ModelSource(path_or_id=str(TARGET), offline=True),
        draft=ModelSource(path_or_id=str(DRAFT), offline=True),
        runtime=kind.runtime,
        device=kind.device,
        dtype=kind.dtype,
        max_model_len=256,
        max_requests=32,
        enforce_eager=kind.calls == "eager",
    )
    with unwarned(), as_if_recordable(kind), pytest.MonkeyPatch.context() as patch:
        if kind.device == "cpu":
            patch.setattr(create, "recorder", lambda options, device: recorder_of(kind))
        return kind, create_runner(options, time.perf_counter)


@pytest.fixture(scope="module")
def reference():
    return load_reference()


def test_the_runner_says_who_runs_the_models(loaded, reference):
    kind, pair = loaded
    told = pair.runner.capabilities()
    by_vllm = kind.runtime == "vllm"
    assert told.numerics == ("plain" if kind.calls == "eager" else "plain, padded")
    assert told.target.dtype.startswith(kind.dtype)
    assert told.target.dtype.endswith("+vllm") is told.draft.dtype.endswith("+vllm") is by_vllm
    assert ("vllm 0.32" in told.software) is by_vllm
    assert told.target.parameters == reference.num_parameters()
    size = 32 if by_vllm and kind.device == "cpu" else 16
    assert pair.target_pool.block_size == pair.draft_pool.block_size == size


def forwards_of(pair):
    """Target and draft of a runner."""
    return (pair.runner._pair.target, pair.runner._pair.draft)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_emitted_tokens_are_the_references_choices(loaded, reference, temperature):
    kind, pair = loaded
    found = read(pair, reference, temperature, seed=20261130)
    most, share = LIMITS[kind.dtype]
    print(f"{kind}: {found.share:.2%}, deviation {found.deviation:.2g}")
    assert found.accepted > 0
    if kind.calls != "eager":
        assert min(forward.recorded for forward in forwards_of(pair)) > 3
    assert 0 < found.deviation < most
    assert found.beyond() == []
    assert found.share <= share
