"""Token identity on the embedded pair (contract 11.3 b): temperature 0 and shared noise.

Many requests at once, K from 0 to 8, every proposer: each emitted token must be the choice of the
unmodified model read one request at a time, or lie within four times the measured deviation of
its logits.
"""

import time

import pytest
import torch

from deploy.pair import DRAFT, TARGET
from scheduler.request import ProposerKind, Request, Speculation, Verifier
from scheduler.runtime.create import LoadedPair, PairOptions, create_runner
from scheduler.runtime.loading import ModelSource
from tests.oracles.driver import PlainText, run_requests
from tests.oracles.pair_texts import engine_config, load_reference, make_requests, read


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
    return load_reference()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_emitted_tokens_are_the_references_choices(
    pair: LoadedPair, reference: torch.nn.Module, temperature: float
) -> None:
    reading = read(pair, reference, temperature, seed=20261129)
    assert reading.accepted > 0
    assert 0 < reading.deviation < 1e-3  # float32 packed calls: rounding, and nothing but rounding
    assert reading.beyond() == []


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
