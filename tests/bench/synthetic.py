"""Builds a random target and draft with a wanted acceptance, in a cache folder outside the repo.

The draft is the target's first layers with the same embeddings, final norm and head. Later layers
of the target add to the same residual stream, and one factor on their output projections, found
by bisection, sets how far the two laws lie apart. Knows nothing of the engine.
"""

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from tests.bench.processes import in_new_process

FORMAT = 1

_BISECTIONS = 8
_FACTORS = (0.01, 2.0)
_PROBE_ROWS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A synthetic pair.

    `logit_spread` is the standard deviation of a row's logits: 3 gives laws of some nats over
    16384 ids. `depth_gain` makes the first layers' outputs outweigh the embedding that they are
    added to; the tied head would otherwise repeat the last token for ever. `acceptance` is the
    wanted mean of sum min(p, q) at temperature 1 on random ids.
    """

    hidden: int = 1024
    layers: int = 24
    draft_layers: int = 2
    intermediate: int = 2816
    heads: int = 16
    kv_heads: int = 4
    vocabulary: int = 16384
    positions: int = 4096
    logit_spread: float = 3.0
    acceptance: float = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """Folders of a pair, and what was measured of its laws on random ids while building."""

    target: Path
    draft: Path
    factor: float
    overlap: float
    entropy: float


def cached_pair(shape: Shape, seed: int) -> Built:
    """The pair of `shape` and `seed`, built now unless an earlier run left it."""
    key = json.dumps([FORMAT, torch.__version__, seed, asdict(shape)], sort_keys=True)
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / "fencepost-bench" / f"synthetic-{name}"
    if not folder.exists():
        _build_aside(folder, shape, seed)
    measured = json.loads((folder / "built.json").read_text("utf-8"))
    return Built(target=folder / "target", draft=folder / "draft", **measured)


def _build_aside(folder: Path, shape: Shape, seed: int) -> None:
    """Build beside `folder`, in a process of its own, and move the whole pair into place."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix="building-", dir=folder.parent))
    try:
        in_new_process(build_pair, unfinished, shape, seed)
        unfinished.rename(folder)
    except OSError:
        # Of two pairs that are built at once, the first stays.
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def build_pair(folder: Path, shape: Shape, seed: int) -> Built:
    """Write `folder`/target and `folder`/draft in bfloat16, with a tokenizer of bare words."""
    transformers_logging.disable_progress_bar()
    with _seeded(seed), torch.no_grad():
        target = _random_model(shape, shape.layers)
        draft = _random_model(shape, shape.draft_layers)
        # Embeddings of length 1 under rows of length sqrt(hidden): this alone sets the spread.
        target.model.norm.weight.fill_(shape.logit_spread)
        target.bfloat16().float()
        whole = target.state_dict()
        draft.load_state_dict({name: whole[name] for name in draft.state_dict()})
        ids = torch.randint(shape.vocabulary, (4, _PROBE_ROWS))
        q = _laws(draft, ids)
        factor = _bisect(target, shape, ids, q)
        p = _laws(target, ids)
    for model, name in ((target, "target"), (draft, "draft")):
        model.bfloat16().save_pretrained(folder / name)
        _tokenizer(shape).save_pretrained(folder / name)
    measured = {"factor": factor, "overlap": _overlap(p, q), "entropy": _entropy(p)}
    (folder / "built.json").write_text(json.dumps(measured), "utf-8")
    return Built(target=folder / "target", draft=folder / "draft", **measured)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw from `seed` without moving the caller's generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def llama_config(shape: Shape, layers: int) -> LlamaConfig:
    """The configuration of a pair's model with so many layers."""
    return LlamaConfig(
        hidden_size=shape.hidden,
        num_hidden_layers=layers,
        intermediate_size=shape.intermediate,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        vocab_size=shape.vocabulary,
        max_position_embeddings=shape.positions,
        initializer_range=shape.hidden**-0.5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        architectures=["LlamaForCausalLM"],
    )


def _random_model(shape: Shape, layers: int) -> LlamaForCausalLM:
    model: LlamaForCausalLM = LlamaForCausalLM(llama_config(shape, layers)).eval()
    return model


def _output_projections(model: LlamaForCausalLM, first: int, last: int) -> list[Tensor]:
    return [
        weight
        for layer in model.model.layers[first:last]
        for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight)
    ]


def _bisect(target: LlamaForCausalLM, shape: Shape, ids: Tensor, q: Tensor) -> float:
    """Scale the later layers' output projections, in place, and give their factor."""
    weights = _output_projections(target, shape.draft_layers, shape.layers)
    original = [weight.clone() for weight in weights]
    low, high = _FACTORS
    factor = high
    for _ in range(_BISECTIONS):
        # Geometric: how far the laws lie apart follows the factor's size, which layers divide.
        factor = math.sqrt(low * high)
        for weight, first in zip(weights, original, strict=True):
            weight.copy_((first * factor).bfloat16())
        if _overlap(_laws(target, ids), q) > shape.acceptance:
            low = factor
        else:
            high = factor
    return factor


def _laws(model: LlamaForCausalLM, ids: Tensor) -> Tensor:
    """Laws [rows, V] at temperature 1 of every position but the first."""
    logits = model(input_ids=ids).logits[:, 1:].float()
    return torch.softmax(logits.flatten(0, 1), dim=-1)


def _overlap(p: Tensor, q: Tensor) -> float:
    """Mean over rows of sum_x min(p, q): the acceptance of the maximal coupling."""
    return float(torch.minimum(p, q).sum(dim=-1).mean())


def _entropy(p: Tensor) -> float:
    return float(torch.special.entr(p).sum(dim=-1).mean())


def _tokenizer(shape: Shape) -> PreTrainedTokenizerFast:
    words = {f"w{number}": number for number in range(shape.vocabulary)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")))
