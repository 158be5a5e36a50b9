"""Tiny checkpoints of every supported architecture, made once a session."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.utils import logging as transformers_logging

from scheduler.runtime.loading import ModelSource
from tests.oracles.vocabularies import make_byte_tokenizer

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 320,
}
CONFIGS = {
    "llama": LlamaConfig(
        **SHAPE,
        attention_bias=True,
        mlp_bias=True,
        rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0},
    ),
    "qwen2": Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=11, max_window_layers=1),
    "qwen3": Qwen3Config(**SHAPE, head_dim=16),
    "mistral": MistralConfig(**SHAPE, head_dim=12, sliding_window=7),
    "gemma2": Gemma2Config(**SHAPE, head_dim=16, sliding_window=9, query_pre_attn_scalar=24),
    "gemma3": Gemma3TextConfig(
        **SHAPE, head_dim=16, sliding_window=9, query_pre_attn_scalar=24, sliding_window_pattern=2
    ),
}
ARCHITECTURES = tuple(CONFIGS)


@pytest.fixture(scope="session", autouse=True)
def _one_quiet_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    """Folders by architecture, and by architecture and `-bfloat16` for 16-bit weights."""
    root = tmp_path_factory.mktemp("checkpoints")
    folders = {}
    for name, config in CONFIGS.items():
        torch.manual_seed(len(name))
        model = AutoModelForCausalLM.from_config(config)
        _scatter_weights(model)
        for suffix, dtype in (("", torch.float32), ("-bfloat16", torch.bfloat16)):
            folders[name + suffix] = root / f"{name}{suffix}"
            model.to(dtype).save_pretrained(folders[name + suffix])
    return folders


@pytest.fixture(scope="session")
def source(checkpoints):
    """The source of a tiny checkpoint by name, never asking the network."""

    def _source(name: str) -> ModelSource:
        return ModelSource(path_or_id=str(checkpoints[name]), offline=True)

    return _source


@pytest.fixture
def edited(checkpoints, tmp_path):
    """A copy of a tiny checkpoint with some fields of its configuration changed."""

    def _edit(name: str, **fields) -> Path:
        folder = tmp_path / "edited"
        shutil.copytree(checkpoints[name], folder)
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
        return folder

    return _edit


@pytest.fixture(scope="session")
def byte_tokenizer():
    """Makes a byte-level tokenizer; extra tokens follow the 256 bytes."""

    return make_byte_tokenizer


def _scatter_weights(model) -> None:
    """Weights large enough that attention is far from uniform and every bias matters."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(std=0.2)
            if weight.ndim == 1 and "norm" in name and "Gemma" not in type(model).__name__:
                weight.add_(1)
