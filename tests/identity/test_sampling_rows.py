"""The sampling path row by row: bits of a row depend neither on how many rows share a call nor on
their settings. Shape-invariant mode needs that as much as it needs the forward."""

import pytest
import torch

from scheduler.sampling.draw import race
from scheduler.sampling.processors import RowSettings, filtered, law, penalise, row_settings
from scheduler.sampling.rng import CounterRandomness, noise_key

CPU = torch.device("cpu")
# (temperature, top_k, top_p, min_p) by row, in turn.
ROWS = (
    (1.0, None, 1.0, 0.0),
    (0.7, 20, 1.0, 0.0),
    (0.0, None, 1.0, 0.0),
    (1.3, None, 0.9, 0.0),
    (0.9, 50, 0.95, 0.02),
    (1.0, 3, 0.5, 0.0),
    (1.1, None, 1.0, 0.05),
)
COUNT = 40
CUTS = ((0, 1), (1, 2), (3, 4), (4, 5), (0, 7), (5, 13), (2, 33), (12, 40))


def _settings(first: int, last: int, vocabulary: int) -> RowSettings:
    columns = zip(*(ROWS[row % len(ROWS)] for row in range(first, last)), strict=True)
    temperature, top_k, top_p, min_p = map(list, columns)
    return row_settings(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        vocabulary=vocabulary,
        device=CPU,
    )


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("vocabulary", [97, 4096])
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(vocabulary, threads):
    logits = 3 * torch.randn(COUNT, vocabulary, generator=torch.Generator().manual_seed(1))
    keys = [noise_key(row, 0, 50 + row) for row in range(COUNT)]

    def run(first, last):
        """Everything that a row goes through between the head and its token."""
        raw = logits[first:last]
        kept = filtered(raw, _settings(first, last, vocabulary))
        noise = CounterRandomness().gumbel(keys[first:last], vocabulary, CPU)
        return kept, noise, race(kept, noise), law(kept), torch.log_softmax(raw, dim=-1)

    whole = run(0, COUNT)
    for first, last in CUTS:
        for found, expected in zip(run(first, last), whole, strict=True):
            assert torch.equal(found, expected[first:last])


def test_penalties_keep_a_rows_bits_too(threads):
    generator = torch.Generator().manual_seed(2)
    logits = 3 * torch.randn(COUNT, 97, generator=generator)
    counts = torch.randint(0, 3, (COUNT, 97), generator=generator).float()
    strength = torch.rand(COUNT, generator=generator, dtype=torch.float64) + 0.5

    def run(first, last):
        own, force = counts[first:last], strength[first:last]
        return penalise(logits[first:last], own > 1, own, force, force, force)

    whole = run(0, COUNT)
    for first, last in CUTS:
        assert torch.equal(run(first, last), whole[first:last])
