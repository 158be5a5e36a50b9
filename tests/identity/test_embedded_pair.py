"""Token identity on the embedded pair (contract 11.3 b): temperature 0 and shared noise.

Many requests at once, K from 0 to 8, every proposer: each emitted token must be the choice of the
unmodified model read one request at a time, or lie within four times the measured deviation of
its logits.
"""

import time

import pytest
import torch
from transformers import AutoModelForCausalLM

from deploy.pair import DRAFT, TARGET
from scheduler.config import EngineConfig
from scheduler.request import (
    ProposerKind,
    Request,
    SamplingParams,
    Speculation,
    StopRules,
    Verifier,
)
from scheduler.runtime.create import LoadedPair, PairOptions, create_runner
from scheduler.runtime.loading import ModelSource
from tests.oracles.driver import PlainText, run_requests
from tests.oracles.teacher import divergences, logits_of, shared_noise

PROMPTS = (
    "def add(a, b):\n",
    "The sky is",
    "import os\n\nclass Path",
    "red blue red blue red blue red",
    "Return the",
    "x = [1, 2, 3]\ny = [1, 2,",
)
TOKENS = 40
DEPTHS = (0, 1, 2, 4, 8)


@pytest.fixture(scope="module")
def pair() -> LoadedPair:
    torch.set_num_threads(1)
    options = PairOptions(
        target=ModelSource(path_or_id=str(TARGET), offline=True),
        draft=ModelSource(path_or_id=str(DRAFT), offline=True),
        max_model_len=256,
        max_requests=32,
    )
    return create_runner(options, time.perf_counter)


@pytest.fixture(scope="module")
def reference() -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(
        TARGET, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def make_requests(pair: LoadedPair, temperature: float, seed: int) -> list[Request]:
    """Every prompt at every K; the n-gram proposer for one request in four."""
    requests = []
    for number in range(len(PROMPTS) * len(DEPTHS)):
        prompt = PROMPTS[number % len(PROMPTS)]
        ngram = number % 4 == 3
        requests.append(
            Request(
                request_id=number + 1,
                prompt=tuple(pair.tokenizer(prompt)["input_ids"]),
                sampling=SamplingParams(temperature=temperature, seed=seed + number, logprobs=0),
                speculation=Speculation(
                    k=DEPTHS[number // len(PROMPTS)],
                    verifier=Verifier.SHARED_NOISE,
                    proposer=ProposerKind.NGRAM if ngram else ProposerKind.DRAFT_MODEL,
                ),
                stop=StopRules(token_ids=frozenset(), max_tokens=TOKENS),
                text=PlainText(),
                arrival=float(number),
            )
        )
    return requests


def engine_config(pair: LoadedPair) -> EngineConfig:
    return EngineConfig(
        max_model_len=pair.max_model_len,
        draft_max_len=pair.draft_max_len,
        max_requests=8,
        max_batched_tokens=64,
        target_pool=pair.target_pool,
        draft_pool=pair.draft_pool,
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_emitted_tokens_are_the_references_choices(
    pair: LoadedPair, reference: torch.nn.Module, temperature: float
) -> None:
    requests = make_requests(pair, temperature, seed=20261129)
    outputs, sink = run_requests(engine_config(pair), pair.runner, requests)
    accepted = sum(g.speculation.accepted for s in sink.steps for g in s.groups if g.speculation)
    assert accepted > 0
    mismatches, deviation = [], 0.0
    for request, output in zip(requests, outputs, strict=True):
        assert len(output.ids) == TOKENS == output.finish.stats.completion_tokens
        whole = [*request.prompt, *output.ids]
        first = len(request.prompt)
        noise = None
        if temperature:
            noise = {
                position: shared_noise(request.sampling.seed, 0, position, pair.vocabulary)
                for position in range(first, len(whole))
            }
        logits = logits_of(reference, whole)[:, : pair.vocabulary]
        mismatches += divergences(logits, whole, first, temperature, noise)
        raw = logits[first - 1 : -1].log_softmax(-1)
        own = raw.gather(1, torch.tensor(output.ids)[:, None])[:, 0]
        deviation = max(deviation, float((own - torch.tensor(output.logprobs)).abs().max()))
    assert 0 < deviation < 1e-3  # float32 packed calls: rounding, and nothing but rounding
    assert [each for each in mismatches if each.margin >= 4 * deviation] == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_text_does_not_depend_on_k_draft_or_batch(pair: LoadedPair, temperature: float) -> None:
    """The same seeds and prompts, alone and without drafts: equal but for ties within rounding."""
    requests = [r for r in make_requests(pair, temperature, seed=7) if r.speculation.k in (4, 8)]
    together, _ = run_requests(engine_config(pair), pair.runner, requests)
    plain = Speculation(k=0, verifier=Verifier.SHARED_NOISE, proposer=ProposerKind.NONE)
    equal = 0
    for request, output in zip(requests, together, strict=True):
        alone = Request(
            request_id=1,
            prompt=request.prompt,
            sampling=request.sampling,
            speculation=plain,
            stop=request.stop,
            text=PlainText(),
            arrival=0.0,
        )
        (serial,), _ = run_requests(engine_config(pair), pair.runner, [alone])
        equal += serial.ids == output.ids
    assert equal >= len(requests) - 1
