"""The training loop: both models, by any loss, resumable and deterministic by step."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaForCausalLM

from deploy.pair.optim import PairOptimizer
from deploy.pair.recipe import Recipe
from deploy.pair.tokens import Ids, block_batch

__all__ = ["Loss", "Run", "cross_entropy", "logits_of", "train"]

Loss = Callable[[LlamaForCausalLM, Tensor], Tensor]

_LOG = logging.getLogger(__name__)
_LOG_EVERY = 10
_SAVE_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a training run reads and where it keeps its checkpoint."""

    recipe: Recipe
    stream: Ids
    checkpoint: Path
    loss: Loss


def logits_of(model: LlamaForCausalLM, ids: Tensor) -> Tensor:
    """Compute float32 logits (sequences, length, vocabulary) of int64 ids (sequences, length)."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    logits: Tensor = model.lm_head(hidden)
    return logits


def cross_entropy(model: LlamaForCausalLM, ids: Tensor) -> Tensor:
    """Give the mean next-token loss in nats of int64 ids (sequences, length + 1)."""
    logits = logits_of(model, ids[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def train(model: LlamaForCausalLM, run: Run) -> list[float]:
    """Train `model` in place, going on from the checkpoint if there is one.

    Returns the loss in nats per token of every step made by this call.
    """
    model.train()
    optimizer = PairOptimizer(model, run.recipe)
    first = _load(model, optimizer, run.checkpoint)
    losses: list[float] = []
    saved = logged = time.monotonic()
    for step in range(first, run.recipe.steps):
        losses.append(_step(model, optimizer, run, step))
        if (step + 1) % _LOG_EVERY == 0:
            seconds, logged = time.monotonic() - logged, time.monotonic()
            _report(run.recipe, step, losses[-_LOG_EVERY:], seconds)
        if time.monotonic() - saved > _SAVE_SECONDS:
            _save(model, optimizer, step + 1, run.checkpoint)
            saved = time.monotonic()
    _save(model, optimizer, run.recipe.steps, run.checkpoint)
    return losses


def _step(model: LlamaForCausalLM, optimizer: PairOptimizer, run: Run, step: int) -> float:
    ids = block_batch(run.stream, step, run.recipe.shape_at(step), run.recipe.seed)
    loss = run.loss(model, ids)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), run.recipe.clip)
    optimizer.step(run.recipe.rate_factor(step))
    return float(loss.detach())


def _report(recipe: Recipe, step: int, losses: list[float], seconds: float) -> None:
    count, length = recipe.shape_at(step)
    _LOG.info(
        "step %d/%d loss %.4f rate %.3f tokens/s %.0f",
        step + 1,
        recipe.steps,
        sum(losses) / len(losses),
        recipe.rate_factor(step),
        len(losses) * count * length / seconds,
    )


def _save(model: nn.Module, optimizer: PairOptimizer, step: int, path: Path) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def _load(model: nn.Module, optimizer: PairOptimizer, path: Path) -> int:
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    _LOG.info("going on from step %d", state["step"])
    return int(state["step"])
