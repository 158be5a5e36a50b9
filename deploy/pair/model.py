"""Builds the Llama models of the pair and writes them in Hugging Face layout."""

import copy
import json
from pathlib import Path

import torch
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
)

from deploy.pair.tokenizer import SPECIALS, VOCAB_SIZE

__all__ = ["build_model", "export", "non_embedding_parameters", "save_tokenizer"]

_BOS, _EOS, _PAD = (SPECIALS.index(token) for token in ("<s>", "</s>", "<pad>"))
_LOADING_TRACES = frozenset({"is_local", "local_files_only"})


def build_model(layers: int, seed: int) -> LlamaForCausalLM:
    """Make a float32 model of `layers` layers with random weights."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=192,
        intermediate_size=576,
        num_hidden_layers=layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=_BOS,
        eos_token_id=_EOS,
        pad_token_id=_PAD,
    )
    torch.manual_seed(seed)
    model: LlamaForCausalLM = LlamaForCausalLM(config).float()
    return model


def non_embedding_parameters(model: LlamaForCausalLM) -> int:
    """Count the parameters outside the tied embedding matrix."""
    embedding = VOCAB_SIZE * int(model.config.hidden_size or 0)
    return sum(parameter.numel() for parameter in model.parameters()) - embedding


def export(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a bfloat16 copy of `model` with the tokenizer into `folder`."""
    rounded = copy.deepcopy(model).bfloat16()
    rounded.generation_config = GenerationConfig(
        bos_token_id=_BOS, eos_token_id=_EOS, pad_token_id=_PAD
    )
    folder.mkdir(parents=True, exist_ok=True)
    rounded.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    save_tokenizer(tokenizer, folder)


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the tokenizer without the traces of how it was loaded."""
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    kept = {key: value for key, value in config.items() if key not in _LOADING_TRACES}
    path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
