"""Measures how well the exported pair predicts, and how far draft and target agree."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from deploy.pair.tokens import Ids
from deploy.pair.train import logits_of

__all__ = ["Agreement", "Pair", "agreement", "as_windows", "load_pair", "sampled_windows"]

_WINDOW = 1024
_PROMPT = 64
_CONTINUATION = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Both models in float32, holding the bfloat16-rounded weights as exported."""

    target: LlamaForCausalLM
    draft: LlamaForCausalLM


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Means over teacher-forced positions.

    Losses are in nats per token; `acceptance` is the mean of the sum over the vocabulary of
    min(target, draft) at temperature 1, the chance that a drafted token is accepted;
    `argmax_agreement` is the share of positions where both have the same likeliest token.
    """

    tokens: int
    target_loss: float
    draft_loss: float
    acceptance: float
    argmax_agreement: float

    def to_dict(self) -> dict[str, float]:
        """Give the figures and the losses' difference, rounded for the record."""
        figures = {name: round(value, 4) for name, value in asdict(self).items()}
        return figures | {"gap": round(self.draft_loss - self.target_loss, 4)}


def load_pair(target: Path, draft: Path) -> Pair:
    """Load two weights folders by transformers alone."""
    return Pair(target=_load(target), draft=_load(draft))


@torch.inference_mode()
def agreement(pair: Pair, windows: Iterable[Tensor], skip: int = 0) -> Agreement:
    """Compare the models on int64 windows of shape (rows, length).

    The first `skip` tokens of each row are context only.
    """
    sums = torch.zeros(5, dtype=torch.float64)
    for ids in windows:
        sums += _window_sums(pair, ids, skip)
    tokens, *totals = sums.tolist()
    target_loss, draft_loss, acceptance, same = (total / tokens for total in totals)
    return Agreement(
        tokens=int(tokens),
        target_loss=target_loss,
        draft_loss=draft_loss,
        acceptance=acceptance,
        argmax_agreement=same,
    )


def as_windows(stream: Ids, length: int = _WINDOW) -> list[Tensor]:
    """Cut the whole uint16 stream (tokens,) into int64 windows of shape (1, length)."""
    count = len(stream) // length
    rows = torch.from_numpy(stream[: count * length].astype(np.int64)).view(count, 1, length)
    return list(rows)


@torch.inference_mode()
def sampled_windows(target: LlamaForCausalLM, stream: Ids, rows: int, seed: int) -> list[Tensor]:
    """Let the target go on from held-out prompts at temperature 1.

    Returns int64 windows of shape (rows, 64 + 256): prompt and sampled continuation. The end
    of a text is not sampled, so that every row has the same length.
    """
    torch.manual_seed(seed)
    starts = np.linspace(0, len(stream) - _PROMPT - 1, rows).astype(int)
    prompts = np.stack([stream[start : start + _PROMPT] for start in starts])
    ids = target.generate(
        torch.from_numpy(prompts.astype(np.int64)),
        attention_mask=torch.ones(prompts.shape, dtype=torch.int64),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_new_tokens=_CONTINUATION,
        max_new_tokens=_CONTINUATION,
    )
    return [ids]


def _load(folder: Path) -> LlamaForCausalLM:
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    return model


def _window_sums(pair: Pair, ids: Tensor, skip: int) -> Tensor:
    """Sum over one window: tokens, both losses, acceptance, agreeing argmaxes."""
    first = max(0, skip - 1)
    target = logits_of(pair.target, ids[:, :-1])[:, first:].log_softmax(-1)
    draft = logits_of(pair.draft, ids[:, :-1])[:, first:].log_softmax(-1)
    following = ids[:, first + 1 :].unsqueeze(-1)
    sums = (
        torch.tensor(following.numel()),
        -target.gather(-1, following).sum(dtype=torch.float64),
        -draft.gather(-1, following).sum(dtype=torch.float64),
        torch.minimum(target, draft).exp().sum(dtype=torch.float64),
        (target.argmax(-1) == draft.argmax(-1)).sum(),
    )
    return torch.stack([value.double() for value in sums])
