"""Serves the embedded pair's requests and has the serial reference read what came out.

Contract 11.3 (b) and (c): temperature 0 and shared noise; the reference is the unmodified model,
float32, one request at a time.
"""

from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM

from deploy.pair import TARGET
from scheduler.config import EngineConfig
from scheduler.request import (
    ProposerKind,
    Request,
    SamplingParams,
    Speculation,
    StopRules,
    Verifier,
)
from scheduler.runtime.create import LoadedPair
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


@dataclass(frozen=True)
class Reading:
    """`texts` emitted, where the reference would have chosen another token, how far logprobs are
    off its own, and how many drafts were accepted."""

    texts: tuple[tuple[int, ...], ...]
    mismatches: tuple
    deviation: float
    accepted: int

    @property
    def share(self):
        """The share of tokens that are not the reference's choice."""
        return len(self.mismatches) / sum(map(len, self.texts))

    def beyond(self):
        """The mismatches that rounding does not explain: four times the measured deviation."""
        return [each for each in self.mismatches if each.margin >= 4 * self.deviation]


def load_reference():
    """The unmodified target."""
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


def read(pair, reference, temperature, seed):
    """Serve requests at every K through the engine, and read their texts."""
    requests = make_requests(pair, temperature, seed=seed)
    outputs, sink = run_requests(engine_config(pair), pair.runner, requests)
    mismatches, deviation = [], 0.0
    for request, output in zip(requests, outputs, strict=True):
        assert len(output.ids) == TOKENS == output.finish.stats.completion_tokens
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
    return Reading(
        texts=tuple(tuple(output.ids) for output in outputs),
        mismatches=tuple(mismatches),
        deviation=deviation,
        accepted=sum(g.speculation.accepted for s in sink.steps for g in s.groups if g.speculation),
    )
