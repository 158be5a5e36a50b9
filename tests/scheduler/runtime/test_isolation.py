"""Nothing of a neighbour, and nothing in a masked slot, reaches a row: not in one bit."""

import pytest
import torch

from scheduler.config import PoolConfig
from scheduler.runtime.forward import TransformersForward
from scheduler.runtime.loading import load_model
from scheduler.runtime.rows import Segment, pack
from tests.scheduler.runtime.conftest import ARCHITECTURES
from tests.scheduler.runtime.packed_world import CPU

BLOCK = 4
POOL = PoolConfig(blocks=120, block_size=BLOCK)
# Contexts before the call and rows in it: one row, verification rows, a chunk, a long context.
SIZES = ((6, 1), (13, 5), (3, 5), (9, 24), (170, 3))
NUMBERS = torch.randperm(POOL.blocks, generator=torch.Generator().manual_seed(1)).tolist()


def _segments() -> tuple[list[Segment], list[Segment]]:
    before, now, free = [], [], list(NUMBERS)
    for context, rows in SIZES:
        blocks = tuple(free.pop() for _ in range(-(-(context + rows) // BLOCK)))
        before.append(Segment(start=0, rows=context, blocks=blocks))
        now.append(Segment(start=context, rows=rows, blocks=blocks))
    return before, now


def _run(model, *, changed: int | None, garbage: float) -> list[torch.Tensor]:
    """Logits by request; `changed` draws that request's tokens anew, `garbage` fills the pool."""
    forward = TransformersForward(model, POOL)
    for number, layer in enumerate(forward.pool.layers):
        layer.normal_(generator=torch.Generator().manual_seed(number)).mul_(garbage)
    for segments in _segments():
        tokens = []
        for number, segment in enumerate(segments):
            seed = 1000 * segment.start + number + (77 if number == changed else 0)
            generator = torch.Generator().manual_seed(seed)
            tokens.append(torch.randint(97, (segment.rows,), generator=generator))
        hidden = forward.hidden(torch.cat(tokens), pack(segments, BLOCK, CPU))
    return list(forward.logits(hidden).split([rows for _, rows in SIZES]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_bit_depends_on_neighbours_or_on_stale_slots(name, dtype, source):
    model = load_model(source(name), device=CPU, dtype=dtype)
    expected = _run(model, changed=None, garbage=0.0)
    stale = _run(model, changed=None, garbage=1e4)
    for found, wanted in zip(stale, expected, strict=True):
        assert torch.equal(found, wanted)
    for changed in range(len(SIZES)):
        found = _run(model, changed=changed, garbage=3.0)
        for number, wanted in enumerate(expected):
            assert torch.equal(found[number], wanted) == (number != changed)
