"""transformers' own generation, assisted and plain, on the same pair.

Each arm has a fixed number of drafts and no early stop, and draws from the whole law.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from tests.bench.prompts import Prompt

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPair:
    """Both models as transformers loads them, in one dtype."""

    dtype: str
    target: PreTrainedModel
    draft: PreTrainedModel


def load_peer(target: str, draft: str, dtype: str, k: int) -> PeerPair:
    """Load both models with `k` drafts a round, on the CPU or the first CUDA device."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    pair = PeerPair(dtype=dtype, target=_load(target, dtype), draft=_load(draft, dtype))
    for model in (pair.target, pair.draft):
        model.generation_config = GenerationConfig(
            num_assistant_tokens=k,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=0.0,
        )
    return pair


def generate(
    pair: PeerPair, prompt: Prompt, *, assisted: bool, tokens: int, temperature: float
) -> float:
    """Committed tokens per second of one `generate` call, prefill included."""
    ids = torch.tensor([prompt], device=pair.target.device)
    law: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        law = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    if assisted:
        law["assistant_model"] = pair.draft
    model: Any = pair.target
    started = time.perf_counter()
    output: torch.Tensor = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, **law
    )
    seconds = time.perf_counter() - started
    return (output.shape[1] - ids.shape[1]) / seconds


def _load(name: str, dtype: str) -> PreTrainedModel:
    loader: Any = AutoModelForCausalLM
    model: PreTrainedModel = loader.from_pretrained(
        name, dtype=DTYPES[dtype], local_files_only=Path(name).is_dir()
    )
    placed: PreTrainedModel = model.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    return placed
