"""The runners that the contract suite is run on, each with an independent reference of its law."""

import functools
import time
from dataclasses import dataclass, replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scheduler.config import PoolConfig
from scheduler.plan import Layout
from scheduler.runner import ModelRunner
from scheduler.runtime.forward import TransformersForward
from scheduler.runtime.invariant import invariant_forward
from scheduler.runtime.loading import ModelSource, load_model
from scheduler.runtime.torch_runner import Pair, TorchRunner
from scheduler.sampling.rng import CounterRandomness
from tests.oracles.forwards import Kind, identity_of, kinds, make_forward
from tests.oracles.rig import (
    TARGET,
    VOCABULARY,
    Rig,
    capabilities,
    config,
    identity,
    tabular_runner,
)

CPU = torch.device("cpu")


@dataclass
class Subject:
    """A runner, the settings of its pools, and the raw logits after a prefix, by other means.

    `tolerance` is how far logprobs may be off the reference's, `slack` by how much the reference
    may like another token better than one that was emitted.
    """

    runner: ModelRunner
    settings: object
    reference: object
    tolerance: float
    slack: float = 0.0

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
    """(model, where it was saved) of a random target and of a draft: a noisy copy of it.

    Heads of 32, which is the least that vLLM's kernels for a CPU take.
    """
    made = []
    for name, noise in (("target", 0.0), ("draft", 0.1)):
        torch.manual_seed(1)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=32,
                max_position_embeddings=128,
                initializer_range=0.4,
            )
        ).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(noise * torch.randn_like(weight))
        folder = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        made.append((model, ModelSource(path_or_id=str(folder), offline=True)))
    return made


@pytest.fixture
def invariant(llamas):
    """A target of shape-invariant rows."""
    settings = config()
    target, draft = (load_model(source, device=CPU) for _, source in llamas)
    forwards = (
        invariant_forward(target, settings.target_pool),
        TransformersForward(draft, settings.draft_pool),
    )
    return _over(forwards, llamas, settings, (target.identity, draft.identity))


# Blocks of 32 rows, which vLLM's kernels for a CPU take multiples of.
WIDE_POOLS = {
    "target_pool": PoolConfig(blocks=24, block_size=32),
    "draft_pool": PoolConfig(blocks=24, block_size=64),
}


@pytest.fixture(scope="session")
def forwards_of(llamas):
    """Forwards of the target and the draft by kind, each made once."""
    return functools.cache(lambda kind: _forwards(kind, llamas))


@pytest.fixture
def llama(llamas):
    """A pair that PyTorch runs, over pools that no other test sees."""
    return _served(Kind("torch", "cpu", "float32"), llamas, lambda kind: _forwards(kind, llamas))


def _forwards(kind, llamas):
    settings = config(**pools_for(kind))
    pools = (settings.target_pool, settings.draft_pool)
    return [
        make_forward(kind, source, pool) for (_, source), pool in zip(llamas, pools, strict=True)
    ]


def pools_for(kind):
    """What the pools of a kind differ in from those of `config`."""
    return WIDE_POOLS if kind.runtime == "vllm" else {}


def _served(kind, llamas, forwards_of):
    settings = config(**pools_for(kind))
    forwards = forwards_of(kind)
    found = _over(forwards, llamas, settings, [identity_of(forward) for forward in forwards])
    return found if kind.exact else replace(found, tolerance=0.5, slack=0.5)


def _over(forwards, llamas, settings, identities):
    target, draft = forwards
    runner = TorchRunner(
        Pair(target=target, draft=draft, vocabulary=VOCABULARY),
        capabilities(target=identities[0], draft=identities[1], max_positions=128),
        CounterRandomness(),
        time.perf_counter,
    )
    reference = llamas[0][0]

    @torch.inference_mode()
    def logits(prefix):
        return reference(input_ids=torch.tensor([prefix]), use_cache=False).logits[0, -1].tolist()

    assert identities[0] != identity()
    return Subject(runner, settings, logits, 1e-3)


@pytest.fixture(params=Layout, ids=lambda layout: layout.value)
def layout(request):
    return request.param


@pytest.fixture(params=["tables", "invariant", *kinds()])
def subject(request, layout, llamas, forwards_of):
    if isinstance(request.param, str):
        found = request.getfixturevalue(request.param)
    else:
        found = _served(request.param, llamas, forwards_of)
    return replace(found, settings=replace(found.settings, layout=layout))
