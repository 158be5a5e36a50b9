"""Collects every measured figure of an exported pair into one JSON record."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import LlamaForCausalLM

from deploy.pair.evaluate import Pair, agreement, as_windows, load_pair, sampled_windows
from deploy.pair.model import non_embedding_parameters
from deploy.pair.pipeline import Material, Recipes
from deploy.pair.recipe import SEED, Recipe
from deploy.pair.samples import write_samples
from deploy.pair.timing import row_costs

__all__ = ["measure"]

_SAMPLED_ROWS = 32
_PROMPT_TOKENS = 64


def measure(weights: Path, material: Material, recipes: Recipes, work: Path) -> dict[str, Any]:
    """Measure the pair in `weights`; the result is ready to be dumped as JSON."""
    pair = load_pair(weights / "target", weights / "draft")
    heldout = material.streams.heldout
    sampled = sampled_windows(pair.target, heldout, _SAMPLED_ROWS, SEED)
    return {
        "parameters": _parameters(pair),
        "corpus": json.loads((work / "corpus.json").read_text(encoding="utf-8")),
        "recipes": {"target": _recipe(recipes.target), "draft": _recipe(recipes.draft)},
        "heldout": agreement(pair, as_windows(heldout)).to_dict(),
        "sampled": agreement(pair, sampled, skip=_PROMPT_TOKENS).to_dict(),
        "row_cost": row_costs(pair),
        "load_average_1min": round(os.getloadavg()[0], 2),
        "samples": write_samples(pair.target, material.tokenizer, SEED),
    }


def _parameters(pair: Pair) -> dict[str, Any]:
    target, draft = _counts(pair.target), _counts(pair.draft)
    ratio = target["non_embedding"] / draft["non_embedding"]
    return {"target": target, "draft": draft, "non_embedding_ratio": round(ratio, 2)}


def _counts(model: LlamaForCausalLM) -> dict[str, int]:
    inner = non_embedding_parameters(model)
    total = sum(parameter.numel() for parameter in model.parameters())
    return {"total": total, "embedding": total - inner, "non_embedding": inner}


def _recipe(recipe: Recipe) -> dict[str, Any]:
    tokens = sum(count * length for count, length in map(recipe.shape_at, range(recipe.steps)))
    return asdict(recipe) | {"tokens": tokens}
