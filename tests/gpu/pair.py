"""Builds a random target and draft straight on a device and stands a runner over them.

Built like the benchmark's synthetic pair: the draft is the target's first layers with the same
embedding, norm and head, and one factor on the later layers' output projections sets how far the
laws lie apart. The runner needs no checkpoint of them. Knows nothing of engines.
"""

import gc
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from scheduler.config import PoolConfig
from scheduler.runner import Capabilities, ModelIdentity
from scheduler.runtime import loading
from scheduler.runtime.fixed_forward import FixableTransformers
from scheduler.runtime.forward import Forward, TransformersForward
from scheduler.runtime.graphs import GraphedForward, Record
from scheduler.runtime.loading import LoadedModel
from scheduler.runtime.torch_runner import Pair, TorchRunner
from scheduler.sampling.rng import CounterRandomness
from tests.bench import synthetic
from tests.bench.synthetic import Shape, llama_config
from tests.gpu.figures import PairFigures

_PROBE = (4, 32)
_WORK = 12 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Both unmodified models, in memory, and what was measured of their laws on random ids."""

    target: PreTrainedModel
    draft: PreTrainedModel
    factor: float
    overlap: float
    entropy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltPair:
    """A pair ready to serve."""

    target: LoadedModel
    draft: LoadedModel
    figures: PairFigures


def device_bytes(shape: Shape) -> int:
    """About what building and serving a pair takes of a CUDA device: its 16-bit weights twice, as
    transformers makes them and as the runtime packs them, then pools and rows of laws."""
    return 2 * 2 * (weights(shape, shape.layers) + weights(shape, shape.draft_layers)) + _WORK


def weights(shape: Shape, layers: int) -> int:
    """Weights of a model's linear layers and of its head, which is also its embedding."""
    dim = shape.hidden // shape.heads
    attention = shape.hidden * (2 * shape.hidden + 2 * shape.kv_heads * dim)
    each = attention + 3 * shape.hidden * shape.intermediate
    return layers * each + shape.vocabulary * shape.hidden


def make_models(shape: Shape, seed: int, device: torch.device) -> Made:
    """Random models in the type that the device computes in: bfloat16, on a CPU float32."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with _seeded(seed, device), torch.no_grad():
        target = _random_model(shape, shape.layers, device, dtype)
        draft = _random_model(shape, shape.draft_layers, device, dtype)
        # Embeddings of length 1 under rows of length sqrt(hidden): this alone sets the spread.
        target.get_parameter("model.norm.weight").fill_(shape.logit_spread)
        whole = target.state_dict()
        shared = {name: whole[name] for name in draft.state_dict()}
        draft.load_state_dict(shared, assign=True)
        draft.tie_weights()
        ids = torch.randint(shape.vocabulary, _PROBE, device=device)
        q = _laws(draft, ids)
        factor = _separate(target, shape, ids, q)
        p = _laws(target, ids)
    return Made(
        target=target,
        draft=draft,
        factor=factor,
        overlap=synthetic._overlap(p, q),
        entropy=synthetic._entropy(p),
    )


def save_models(made: Made, shape: Shape, folder: Path) -> None:
    """Write both as checkpoints, `folder`/target and `folder`/draft, for those that read them."""
    for model, name in ((made.target, "target"), (made.draft, "draft")):
        model.save_pretrained(folder / name)
        synthetic._tokenizer(shape).save_pretrained(folder / name)


def build_pair(made: Made, device: torch.device, started: float) -> BuiltPair:
    """Pack both models as the runtime loads them: their packed logits are checked on the way.

    Raises ModelRefused when those are off the unmodified models'. `started` is a time of
    `time.perf_counter`, from which the seconds count.
    """
    target, draft = (
        _packed(model, name, device)
        for model, name in ((made.target, "target"), (made.draft, "draft"))
    )
    figures = PairFigures(
        target_parameters=target.identity.parameters,
        draft_parameters=draft.identity.parameters,
        dtype=target.identity.dtype,
        factor=made.factor,
        overlap=made.overlap,
        entropy=made.entropy,
        deviation=target.deviation,
        seconds=time.perf_counter() - started,
    )
    return BuiltPair(target=target, draft=draft, figures=figures)


def stand_runner(pair: BuiltPair, pool: PoolConfig, record: Record | None) -> TorchRunner:
    """A runner over the pair that PyTorch runs, each model with a K/V pool of its own. `record`
    records the models' calls; None launches every one from the host."""
    target, draft = (_forward(model, pool, record) for model in (pair.target, pair.draft))
    forwards = Pair(target=target, draft=draft, vocabulary=pair.target.head.vocabulary)
    capabilities = Capabilities(
        target=pair.target.identity,
        draft=pair.draft.identity,
        vocabulary=forwards.vocabulary,
        max_positions=pair.target.max_positions,
        draft_max_positions=pair.draft.max_positions,
        device=str(pair.target.device),
        software=f"torch {torch.__version__}",
        numerics=target.numerics,
    )
    return TorchRunner(forwards, capabilities, CounterRandomness(), time.perf_counter)


def _forward(model: LoadedModel, pool: PoolConfig, record: Record | None) -> Forward:
    if record is None:
        return TransformersForward(model, pool)
    return GraphedForward(FixableTransformers(model, pool), record)


def free_memory() -> None:
    """Give back what nobody refers to any more, the device's cache too."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Draw from `seed` without moving the caller's generators."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _random_model(
    shape: Shape, layers: int, device: torch.device, dtype: torch.dtype
) -> PreTrainedModel:
    with device:  # weights begin their life there
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            llama_config(shape, layers), dtype=dtype, attn_implementation="eager"
        )
    return model.eval().requires_grad_(requires_grad=False)


def _separate(target: PreTrainedModel, shape: Shape, ids: Tensor, q: Tensor) -> float:
    """Scale the later layers' output projections, in place, until the laws overlap as wanted."""
    weights = [
        target.get_parameter(f"model.layers.{number}.{name}.weight")
        for number in range(shape.draft_layers, shape.layers)
        for name in ("self_attn.o_proj", "mlp.down_proj")
    ]
    low, high = synthetic._FACTORS
    now = 1.0
    for _ in range(synthetic._BISECTIONS):
        # Geometric: how far the laws lie apart follows the factor's size, which layers divide.
        factor = math.sqrt(low * high)
        for weight in weights:
            weight.mul_(factor / now)
        now = factor
        if synthetic._overlap(_laws(target, ids), q) > shape.acceptance:
            low = factor
        else:
            high = factor
    return now


def _laws(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Laws [rows, V] at temperature 1 of every position but the first."""
    logits: Tensor = model(input_ids=ids, use_cache=False).logits[:, 1:]
    return torch.softmax(logits.float().flatten(0, 1), dim=-1)


def _packed(model: PreTrainedModel, name: str, device: torch.device) -> LoadedModel:
    chosen = loading._choose(name, model, device, pack=False)
    config = model.config
    return LoadedModel(
        identity=ModelIdentity(
            name=name,
            revision="random",
            architecture="LlamaForCausalLM",
            dtype=chosen.label,
            parameters=sum(weight.numel() for weight in model.parameters()),
        ),
        decoder=chosen.decoder,
        head=chosen.head,
        kv_shape=loading._kv_shape(model),
        heads=config.num_attention_heads,
        max_positions=config.max_position_embeddings,
        device=device,
        deviation=chosen.deviation,
    )
