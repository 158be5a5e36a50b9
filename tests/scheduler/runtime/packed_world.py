"""Requests run in packed calls, each row checked against a plain, unpacked, uncached forward.

The oracle is the unmodified transformers model, loaded separately, with eager attention, run on
one request's whole sequence: it shares no code and no cache with what it judges.
"""

import random
from dataclasses import dataclass, field

import torch
from transformers import AutoModelForCausalLM

from scheduler.config import PoolConfig
from scheduler.runtime.forward import TransformersForward
from scheduler.runtime.loading import LoadedModel
from scheduler.runtime.rows import Segment, pack

CPU = torch.device("cpu")


class Oracle:
    """Next-token logits of every position of one sequence."""

    def __init__(self, folder, dtype=torch.float32) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager"
        ).eval()
        self.vocabulary = self._model.config.vocab_size

    def logits(self, tokens: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            output = self._model(input_ids=torch.tensor([tokens]), use_cache=False)
            return output.logits[0].float()


@dataclass
class Request:
    """`tokens` are those whose K/V rows are kept; rows past them hold rejected ones."""

    blocks: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)


class PackedWorld:
    """Several requests over one pool of scattered blocks."""

    def __init__(
        self,
        model: LoadedModel,
        oracle: Oracle,
        capacities,
        *,
        block_size,
        seed,
        make=TransformersForward,
    ):
        self._random = random.Random(seed)
        needs = [-(-capacity // block_size) for capacity in capacities]
        self.forward = make(model, PoolConfig(blocks=sum(needs) + 3, block_size=block_size))
        self._oracle = oracle
        free = list(range(sum(needs) + 3))
        self._random.shuffle(free)
        self.requests = [Request(blocks=tuple(free.pop() for _ in range(need))) for need in needs]
        self.worst = 0.0
        self.checked = 0

    def draw(self, count: int) -> list[int]:
        return [self._random.randrange(self._oracle.vocabulary) for _ in range(count)]

    def call(self, shares: dict[int, list[int]]) -> torch.Tensor:
        """One packed call: new tokens by request. Returns logits [N, V] in the given order."""
        segments = [
            Segment(
                start=len(self.requests[number].tokens),
                rows=len(tokens),
                blocks=self.requests[number].blocks,
            )
            for number, tokens in shares.items()
        ]
        rows = pack(segments, self.forward.block_size, CPU)
        ids = torch.tensor([token for tokens in shares.values() for token in tokens])
        return self.forward.logits(self.forward.hidden(ids, rows))

    def check(self, shares: dict[int, list[int]], kept: dict[int, int], limit: float) -> None:
        """A packed call whose every row is compared; then each request keeps `kept` of its new
        rows (all when not named), so that the next call overwrites the others."""
        logits = self.call(shares)
        offset = 0
        for number, tokens in shares.items():
            request = self.requests[number]
            expected = self._oracle.logits(request.tokens + tokens)[len(request.tokens) :]
            found = logits[offset : offset + len(tokens)]
            offset += len(tokens)
            difference = (found - expected).abs().max().item()
            self.worst = max(self.worst, difference)
            assert difference < limit
            assert torch.equal(found.argmax(-1), expected.argmax(-1))
            request.tokens += tokens[: kept.get(number, len(tokens))]
            self.checked += len(tokens)
