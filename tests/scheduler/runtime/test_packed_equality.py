"""Packed, paged, ragged calls give each request what the model alone gives it."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.runtime import loading
from scheduler.runtime.decoder import ModuleDecoder
from scheduler.runtime.loading import load_model
from tests.scheduler.runtime.conftest import ARCHITECTURES
from tests.scheduler.runtime.packed_world import CPU, Oracle, PackedWorld

LIMIT = 5e-4


def mixed_run(world: PackedWorld, limit: float) -> None:
    """Prefill in chunks beside verification rows of 1 to 9, rejections, catch-up, a long one."""
    draw, requests = world.draw, len(world.requests)
    world.check({0: draw(190), 1: draw(33), 2: draw(5), 3: draw(1)}, {}, limit)
    world.check({4: draw(40), 0: draw(9), 5: draw(17), 1: draw(2)}, {0: 4, 1: 1}, limit)
    for step in range(1, 10):
        shares = {number: draw(1 + (step * 5 + number * 3) % 9) for number in range(requests)}
        kept = {number: 1 + (number + step) % len(rows) for number, rows in shares.items()}
        world.check(shares, kept, limit)
    world.check({number: draw(1) for number in reversed(range(requests))}, {}, limit)
    world.check({6: draw(30), 2: draw(18), 7: draw(1), 0: draw(6)}, {}, limit)
    for number, rows in ((0, 1), (4, 1), (2, 5), (1, 20)):
        world.check({number: draw(rows)}, {}, limit)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_packed_rows_equal_the_model_alone(name, source, checkpoints):
    model = load_model(source(name), device=CPU)
    assert model.identity.dtype == f"float32+{'modules' if 'gemma' in name else 'lean'}"
    world = PackedWorld(model, Oracle(checkpoints[name]), [300, *[130] * 7], block_size=4, seed=3)
    mixed_run(world, LIMIT)
    assert world.checked > 600
    print(f"{name} {model.identity.dtype}: {world.checked} rows, worst {world.worst:.2g}")


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral"])
def test_the_module_path_serves_the_llama_family_too(name, source, checkpoints, monkeypatch):
    monkeypatch.setattr(loading, "LLAMA_FAMILY", frozenset())
    model = load_model(source(name), device=CPU)
    assert isinstance(model.decoder, ModuleDecoder)
    world = PackedWorld(model, Oracle(checkpoints[name]), [300, *[130] * 7], block_size=16, seed=5)
    mixed_run(world, LIMIT)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_sixteen_bit_weights_read_by_float32_sums_stay_exact(name, source, checkpoints):
    model = load_model(source(f"{name}-bfloat16"), device=CPU)
    oracle = Oracle(checkpoints[f"{name}-bfloat16"])
    world = PackedWorld(model, oracle, [90] * 4, block_size=16, seed=7)
    draw = world.draw
    world.check({0: draw(30), 1: draw(4), 2: draw(11), 3: draw(1)}, {}, LIMIT)
    world.check({0: draw(5), 1: draw(5), 2: draw(5), 3: draw(5)}, {1: 2}, LIMIT)
    world.check({3: draw(1), 1: draw(20)}, {}, LIMIT)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_bfloat16_on_a_cpu_stays_near_the_float32_model(name, source, checkpoints):
    model = load_model(source(name), device=CPU, dtype="bfloat16")
    assert model.kv_shape.dtype is torch.bfloat16
    exact = Oracle(checkpoints[name])
    rounded = Oracle(checkpoints[name], dtype=torch.bfloat16)
    world = PackedWorld(model, exact, [60] * 3, block_size=4, seed=9)
    shares = {0: world.draw(30), 1: world.draw(3), 2: world.draw(17)}
    found = world.call(shares)
    expected = torch.cat([exact.logits(tokens) for tokens in shares.values()])
    theirs = torch.cat([rounded.logits(tokens) for tokens in shares.values()])
    assert found.dtype is torch.float32
    assert (found - expected).abs().mean() < 1.5 * (theirs - expected).abs().mean()


@st.composite
def _mixes(draw):
    size = st.tuples(st.integers(0, 60), st.integers(1, 24))
    return draw(st.lists(size, min_size=1, max_size=6)), draw(st.sampled_from([1, 3, 16]))


@pytest.fixture(scope="module")
def windowed(source, checkpoints):
    return load_model(source("mistral"), device=CPU), Oracle(checkpoints["mistral"])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mix=_mixes(), seed=st.integers(0, 1 << 16))
def test_any_mix_of_segments_equals_the_model_alone(windowed, mix, seed):
    sizes, block_size = mix
    world = PackedWorld(
        *windowed, [context + rows for context, rows in sizes], block_size=block_size, seed=seed
    )
    first = {n: world.draw(context) for n, (context, _) in enumerate(sizes) if context}
    if first:
        world.check(first, {}, LIMIT)
    world.check({n: world.draw(rows) for n, (_, rows) in enumerate(sizes)}, {}, LIMIT)
