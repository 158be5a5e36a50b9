"""The runners that the contract suite is run on, each with an independent reference of its law."""

import time
from dataclasses import dataclass, replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scheduler.plan import Layout
from scheduler.runner import ModelRunner
from scheduler.runtime.forward import TransformersForward
from scheduler.runtime.invariant import invariant_forward
from scheduler.runtime.loading import ModelSource, load_model
from scheduler.runtime.torch_runner import Pair, TorchRunner
from scheduler.sampling.rng import CounterRandomness
from tests.oracles.rig import (
    TARGET,
    VOCABULARY,
    Rig,
    capabilities,
    config,
    identity,
    tabular_runner,
)


@dataclass
class Subject:
    """A runner, the settings of its pools, and the raw logits after a prefix, by other means."""

    runner: ModelRunner
    settings: object
    reference: object
    tolerance: float

    def rig(self):
        return Rig(self.settings, runner=self.runner)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tables():
    settings = config()
    return Subject(tabular_runner(settings)[0], settings, TARGET, 1e-5)


@pytest.fixture(scope="session")
def llamas(tmp_path_factory):
    """A random target and a draft that is a noisy copy of it, saved, loaded, checked as served."""
    loaded = []
    for name, noise in (("target", 0.0), ("draft", 0.1)):
        torch.manual_seed(1)
        made = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=128,
                initializer_range=0.4,
            )
        ).eval()
        with torch.no_grad():
            for weight in made.parameters():
                weight.add_(noise * torch.randn_like(weight))
        folder = tmp_path_factory.mktemp(name)
        made.save_pretrained(folder)
        source = ModelSource(path_or_id=str(folder), offline=True)
        loaded.append((made, load_model(source, device=torch.device("cpu"))))
    return loaded


@pytest.fixture
def llama(llamas):
    return _subject(llamas, TransformersForward)


@pytest.fixture
def invariant(llamas):
    return _subject(llamas, invariant_forward)


def _subject(llamas, make):
    """`make` builds the target's forward from a model and a pool."""
    (reference, target), (_, draft) = llamas
    settings = config()
    pair = Pair(
        target=make(target, settings.target_pool),
        draft=TransformersForward(draft, settings.draft_pool),
        vocabulary=VOCABULARY,
    )
    runner = TorchRunner(
        pair,
        capabilities(target=target.identity, draft=draft.identity, max_positions=128),
        CounterRandomness(),
        time.perf_counter,
    )

    @torch.inference_mode()
    def logits(prefix):
        return reference(input_ids=torch.tensor([prefix]), use_cache=False).logits[0, -1].tolist()

    assert target.identity != identity()
    return Subject(runner, settings, logits, 1e-3)


@pytest.fixture(params=Layout, ids=lambda layout: layout.value)
def layout(request):
    return request.param


@pytest.fixture(params=["tables", "llama", "invariant"])
def subject(request, layout):
    found = request.getfixturevalue(request.param)
    return replace(found, settings=replace(found.settings, layout=layout))
