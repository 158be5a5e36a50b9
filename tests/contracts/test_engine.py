"""The whole engine over every runtime: the embedded pair's texts against the serial reference.

Temperature 0 and shared noise (contract 11.3 b and c): every emitted token is the choice of the
unmodified model read one request at a time, or lies within the measured deviation of its logits.
"""

import time

import pytest
import torch
from transformers import AutoModelForCausalLM

from deploy.pair import DRAFT, TARGET
from scheduler.runtime.create import PairOptions, create_runner
from scheduler.runtime.loading import ModelSource
from tests.identity.test_embedded_pair import TOKENS, engine_config, make_requests
from tests.oracles.driver import run_requests
from tests.oracles.forwards import kinds, need, unwarned
from tests.oracles.teacher import divergences, logits_of, shared_noise

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
    )
    with unwarned():
        return kind, create_runner(options, time.perf_counter)


@pytest.fixture(scope="module")
def reference():
    return AutoModelForCausalLM.from_pretrained(
        TARGET, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def test_the_runner_says_who_runs_the_models(loaded):
    kind, pair = loaded
    told = pair.runner.capabilities()
    by_vllm = kind.runtime == "vllm"
    assert told.target.dtype.startswith(kind.dtype)
    assert told.target.dtype.endswith("+vllm") is told.draft.dtype.endswith("+vllm") is by_vllm
    assert ("vllm 0.32" in told.software) is by_vllm
    size = 32 if by_vllm and kind.device == "cpu" else 16
    assert pair.target_pool.block_size == pair.draft_pool.block_size == size


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_emitted_tokens_are_the_references_choices(loaded, reference, temperature):
    kind, pair = loaded
    requests = make_requests(pair, temperature, seed=20261130)
    outputs, sink = run_requests(engine_config(pair), pair.runner, requests)
    assert sum(g.speculation.accepted for s in sink.steps for g in s.groups if g.speculation) > 0
    mismatches, deviation = [], 0.0
    for request, output in zip(requests, outputs, strict=True):
        assert len(output.ids) == TOKENS
        whole, first = [*request.prompt, *output.ids], len(request.prompt)
        noise = None
        if temperature:
            noise = {
                at: shared_noise(request.sampling.seed, 0, at, pair.vocabulary)
                for at in range(first, len(whole))
            }
        logits = logits_of(reference, whole)[:, : pair.vocabulary]
        mismatches += divergences(logits, whole, first, temperature, noise)
        raw = logits[first - 1 : -1].log_softmax(-1)
        own = raw.gather(1, torch.tensor(output.ids)[:, None])[:, 0]
        deviation = max(deviation, float((own - torch.tensor(output.logprobs)).abs().max()))
    most, share = LIMITS[kind.dtype]
    print(f"{kind}: {len(mismatches)} of {TOKENS * len(requests)}, deviation {deviation:.2g}")
    assert 0 < deviation < most
    assert [each for each in mismatches if each.margin >= 4 * deviation] == []
    assert len(mismatches) <= share * TOKENS * len(requests)
