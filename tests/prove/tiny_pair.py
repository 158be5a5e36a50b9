"""A random target and a draft like it, of a few ids each, saved as checkpoints, and their logits.

Knows transformers, nothing of the engine.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

Tokens = tuple[int, ...]

LETTERS = "abc"
VOCABULARY = len(LETTERS) + 1
END = len(LETTERS)
_END_TEXT = "</s>"
_POSITIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyPair:
    """Folders of both models, and the unmodified target in float64."""

    target: Path
    draft: Path
    reference: LlamaForCausalLM

    def logits(self) -> Callable[[Tokens], list[float]]:
        """A function, which remembers, from a prefix to the raw logits [V] after it."""

        @functools.cache
        @torch.inference_mode()
        def row(prefix: Tokens) -> list[float]:
            ids = torch.tensor([prefix])
            return self.reference(input_ids=ids, use_cache=False).logits[0, -1].tolist()

        return row


def make_pair(folder: Path, *, seed: int = 3, noise: float = 0.1) -> TinyPair:
    """Save a pair under `folder`: the draft's weights are the target's with some noise."""
    transformers_logging.disable_progress_bar()
    target = _model(seed)
    draft = _model(seed)
    chance = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(noise * torch.randn(weight.shape, generator=chance))
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(folder / name)
        _tokenizer().save_pretrained(folder / name)
    return TinyPair(target=folder / "target", draft=folder / "draft", reference=target.double())


def _model(seed: int) -> LlamaForCausalLM:
    """Weights of its own generator, so that the process's randomness stays as it is."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=_POSITIONS,
            bos_token_id=None,
            eos_token_id=END,
        )
    ).eval()
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" not in name:
                weight.copy_(0.45 * torch.randn(weight.shape, generator=chance))
    return model


def _tokenizer() -> PreTrainedTokenizerFast:
    ids = {text: number for number, text in enumerate((*LETTERS, _END_TEXT))}
    core = Tokenizer(models.BPE(vocab=ids, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=_END_TEXT)
