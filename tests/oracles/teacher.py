"""The serial reference over a real checkpoint: plain transformers, one request, nothing of ours.

Teacher-forced (contract 11.3 b): the reference reads the text that the engine emitted and says at
every position which token it would have chosen, and by what margin.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """A position where the engine's token is not the reference's choice."""

    position: int
    emitted: int
    chosen: int
    margin: float


def reference_logits(folder: Path, token_ids: list[int]) -> torch.Tensor:
    """Float32 logits [n, V] of the unmodified model: row i scores token i + 1."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    return logits_of(model, token_ids)


def logits_of(model: torch.nn.Module, token_ids: list[int]) -> torch.Tensor:
    """The same for a model that is loaded already."""
    with torch.inference_mode():
        rows: torch.Tensor = model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]
    return rows.float()


def divergences(
    logits: torch.Tensor,
    token_ids: list[int],
    start: int,
    temperature: float,
    noise: dict[int, torch.Tensor] | None = None,
) -> list[Divergence]:
    """Positions from `start` on where the choice differs. `noise[p]` is the Gumbel noise [V] of
    the token at position p; without it the choice is the argmax. Margins are in logits."""
    found = []
    for position in range(start, len(token_ids)):
        row = logits[position - 1].double()
        if noise is not None:
            row = row / temperature + noise[position]
        chosen = int(row.argmax())
        emitted = token_ids[position]
        if chosen != emitted:
            gap = float(row[chosen] - row[emitted]) * (temperature if noise is not None else 1.0)
            found.append(Divergence(position=position, emitted=emitted, chosen=chosen, margin=gap))
    return found


def shared_noise(seed: int, choice: int, position: int, vocabulary: int) -> torch.Tensor:
    """Gumbel noise [V] float64 from the published key, by Python integers only."""
    state = 0
    for field in (seed, choice, 4, position, 0):
        state = _mix(((state ^ (field & _MASK)) + _GOLDEN) & _MASK)
    bits = [_mix((state + (token + 1) * _GOLDEN) & _MASK) >> 12 for token in range(vocabulary)]
    uniforms = (torch.tensor(bits, dtype=torch.float64) + 0.5) * 2.0**-52
    return -torch.log(-torch.log(uniforms))


def _mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)
