"""Shape-invariant mode: a row has the same bits in any company, and they are the right ones."""

import itertools
import random
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy.pair import DRAFT
from scheduler.config import PoolConfig
from scheduler.errors import ConfigRefused
from scheduler.runtime.attention import LayerAttention
from scheduler.runtime.create import PairOptions, create_runner
from scheduler.runtime.forward import TransformersForward
from scheduler.runtime.invariant import InvariantForward, invariant_forward
from scheduler.runtime.kv_cache import KvPool, KvShape
from scheduler.runtime.loading import ModelSource, load_model
from scheduler.runtime.rows import Segment, pack
from scheduler.runtime.split_attention import SPLIT_KEYS, SplitAttention
from tests.scheduler.runtime.conftest import ARCHITECTURES
from tests.scheduler.runtime.packed_world import CPU, Oracle, PackedWorld

POOL = PoolConfig(blocks=90, block_size=8)
# One row more than a split; the others stay inside the first.
LENGTHS = (SPLIT_KEYS + 5, 31, 9)


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Chunk:
    """Rows `start..start + len(tokens)` of request `owner`."""

    owner: int
    start: int
    tokens: tuple[int, ...]


class Bits:
    """Some texts over one pool of scattered blocks; every row's logits, whoever shared its call."""

    def __init__(self, forward, lengths, seed):
        draw = random.Random(seed)
        self._forward = forward
        self.texts = [tuple(draw.randrange(97) for _ in range(length)) for length in lengths]
        free = list(range(POOL.blocks))
        draw.shuffle(free)
        needs = [-(-(length + 8) // POOL.block_size) for length in lengths]
        self._blocks = [tuple(free.pop() for _ in range(need)) for need in needs]

    def call(self, chunks):
        """Logits [n, V] of each chunk of one packed call."""
        segments = [
            Segment(start=c.start, rows=len(c.tokens), blocks=self._blocks[c.owner]) for c in chunks
        ]
        tokens = torch.tensor([token for chunk in chunks for token in chunk.tokens])
        hidden = self._forward.hidden(tokens, pack(segments, POOL.block_size, CPU))
        return self._forward.logits(hidden).split([len(chunk.tokens) for chunk in chunks])

    def alone(self, owner):
        """All rows of one text [T, V] with nobody beside them: the last 30 one a call."""
        text = self.texts[owner]
        early = max(0, len(text) - 30)
        cuts = [*range(0, early, 7), *range(early, len(text) + 1)]
        chunks = [Chunk(owner, at, text[at:end]) for at, end in itertools.pairwise(cuts)]
        return torch.cat([self.call([chunk])[0] for chunk in chunks])

    def together(self, seed):
        """All rows of all texts, in calls of any mix: chunks of any length in any order, some with
        rejected rows at their end, which a later chunk overwrites."""
        draw = random.Random(seed)
        found = [[] for _ in self.texts]
        done = [0] * len(self.texts)
        while left := [n for n, text in enumerate(self.texts) if done[n] < len(text)]:
            chunks, kept = [], []
            for owner in draw.sample(left, draw.randint(1, len(left))):
                at = done[owner]
                own = self.texts[owner][at : at + draw.choice((1, 2, 5, 9, 30))]
                wrong = tuple(draw.randrange(97) for _ in range(draw.choice((0, 0, 1, 4))))
                chunks.append(Chunk(owner, at, own + wrong))
                kept.append(len(own))
                done[owner] += len(own)
            for chunk, count, rows in zip(chunks, kept, self.call(chunks), strict=True):
                found[chunk.owner].append(rows[:count])
        return [torch.cat(rows) for rows in found]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_rows_bits_do_not_depend_on_its_company(name, dtype, threads, source):
    forward = invariant_forward(load_model(source(name), device=CPU, dtype=dtype), POOL)
    world = Bits(forward, LENGTHS, seed=threads)
    alone = [world.alone(owner) for owner in range(len(LENGTHS))]
    for seed in range(2):
        for found, expected in zip(world.together(seed), alone, strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sixteen_bit_weights_keep_the_bits_too(dtype, threads, source):
    model = load_model(source("llama-bfloat16"), device=CPU, dtype=dtype)
    world = Bits(invariant_forward(model, POOL), (20, 11), seed=5)
    alone = [world.alone(owner) for owner in range(2)]
    assert all(map(torch.equal, world.together(9), alone))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_row_gives_the_same_bits_at_every_place_of_a_call(name, source):
    forward = invariant_forward(load_model(source(name), device=CPU), POOL)
    world = Bits(forward, (6, 40), seed=3)
    world.call([Chunk(1, 0, world.texts[1])])
    (expected,) = world.call([Chunk(0, 0, world.texts[0][:1])])
    for before in range(2 * forward.rows):
        chunks = [Chunk(1, 0, world.texts[1][:before])] if before else []
        *_, found = world.call([*chunks, Chunk(0, 0, world.texts[0][:1])])
        assert torch.equal(found, expected)


@pytest.fixture(scope="module")
def windowed(source):
    forward = invariant_forward(load_model(source("mistral"), device=CPU), POOL)
    return forward, Bits(forward, (40, 25, 9), seed=11)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 32))
def test_any_schedule_gives_the_bits_of_any_other(windowed, seed):
    _, world = windowed
    assert all(map(torch.equal, world.together(seed), world.together(0)))


# ---- right, and not only equal ---------------------------------------------------------------


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_packed_rows_equal_the_model_alone(name, source, checkpoints):
    model = load_model(source(name), device=CPU)
    world = PackedWorld(
        model,
        Oracle(checkpoints[name]),
        [300, *[60] * 3],
        block_size=3,
        seed=3,
        make=invariant_forward,
    )
    draw = world.draw
    world.check({0: draw(190), 1: draw(33), 2: draw(5), 3: draw(1)}, {}, 5e-4)
    world.check({1: draw(5), 0: draw(9), 3: draw(5), 2: draw(2)}, {0: 4, 1: 1, 2: 1}, 5e-4)
    world.check({0: draw(90), 3: draw(1), 1: draw(1)}, {}, 5e-4)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_bfloat16_stays_as_near_the_exact_model_as_the_plain_path(name, source, checkpoints):
    model = load_model(source(name), device=CPU, dtype="bfloat16")
    exact = Oracle(checkpoints[name])
    errors = []
    for make in (TransformersForward, invariant_forward):
        world = PackedWorld(model, exact, [150, 60], block_size=4, seed=9, make=make)
        shares = {0: world.draw(140), 1: world.draw(17)}
        expected = torch.cat([exact.logits(tokens) for tokens in shares.values()])
        errors.append((world.call(shares) - expected).abs().mean())
    assert errors[1] < 1.2 * errors[0]


@pytest.mark.parametrize(
    ("window", "softcap"), [(None, None), (5, None), (140, None), (None, 2.0), (200, 3.0)]
)
@pytest.mark.parametrize("block_size", [1, 3, 16, 200])
@pytest.mark.parametrize(
    "ends", [(1, 7, SPLIT_KEYS, SPLIT_KEYS + 1, 2 * SPLIT_KEYS + 9), (SPLIT_KEYS + 1,), (270,)]
)
def test_split_attention_is_attention(ends, window, softcap, block_size):
    """Against float64 softmax over each row's own visible keys, gathered by hand."""
    torch.manual_seed(block_size)
    kv_heads, share, dim = 2, 3, 10
    needs = [-(-end // block_size) for end in ends]
    pool = KvPool(
        KvShape(layers=2, kv_heads=kv_heads, head_dim=dim, dtype=torch.float32),
        PoolConfig(blocks=sum(needs), block_size=block_size),
        CPU,
    )
    pool.layers[1].normal_()
    free = torch.randperm(sum(needs)).tolist()
    tables = [tuple(free.pop() for _ in range(need)) for need in needs]
    rows = pack(
        [Segment(start=end - 1, rows=1, blocks=t) for end, t in zip(ends, tables, strict=True)],
        block_size,
        CPU,
    )
    query = torch.randn(len(ends), share * kv_heads, dim)
    new = torch.randn(len(ends), 2 * kv_heads, dim)
    spec = LayerAttention(layer=1, scale=0.4, window=window, softcap=softcap)
    found = SplitAttention(pool, rows, share * kv_heads).attend(spec, query, new)
    for row, (end, table) in enumerate(zip(ends, tables, strict=True)):
        first = 0 if window is None else max(0, end - window)
        slots = [table[at // block_size] * block_size + at % block_size for at in range(first, end)]
        seen = pool.layers[1][slots].double()
        assert torch.equal(seen[-1], new[row].double())
        for head in range(share * kv_heads):
            scores = seen[:, head % kv_heads] @ query[row, head].double() * 0.4
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            expected = scores.softmax(0) @ seen[:, kv_heads + head % kv_heads]
            output = found[row].view(-1, dim)[head].double()
            torch.testing.assert_close(output, expected, atol=2e-6, rtol=1e-5)


# ---- what is refused -------------------------------------------------------------------------


class Crooked:
    """A decoder whose last bits depend on what they must not: on `spoil(states)`."""

    def __init__(self, decoder, spoil):
        self._decoder = decoder
        self._spoil = spoil

    def reach(self, positions):
        self._decoder.reach(positions)

    def hidden(self, token_ids, positions, attention, wanted=None):
        return self._spoil(self._decoder.hidden(token_ids, positions, attention, wanted))

    def weight_bytes(self):
        return self._decoder.weight_bytes()


class CrookedHead(Crooked):
    """The same for a head."""

    vocabulary = 97

    def logits(self, hidden):
        return self._spoil(self._decoder.logits(hidden))


def _one_bit(row):
    """Moves one number of row `row` to its neighbour."""

    def spoil(states):
        states = states.clone()
        states[row, 3] = torch.nextafter(states[row, 3], torch.tensor(torch.inf))
        return states

    return spoil


def _neighbours(states):
    return states + 1e-6 * states.mean()


@pytest.mark.parametrize("spoil", [_one_bit(0), _one_bit(7), _neighbours])
@pytest.mark.parametrize("part", ["decoder", "head"])
def test_a_model_whose_bits_depend_on_place_or_neighbours_is_refused(part, spoil, source):
    model = load_model(source("llama"), device=CPU)
    crooked = Crooked(model.decoder, spoil) if part == "decoder" else CrookedHead(model.head, spoil)
    with pytest.raises(ConfigRefused, match=r"batch_invariant=true: with threads=1 and dtype=fl"):
        invariant_forward(replace(model, **{part: crooked}), POOL)
    assert invariant_forward(model, POOL).numerics == f"rows of 8, keys in splits of {SPLIT_KEYS}"


def test_sixteen_rows_are_tried_where_eight_do_not_keep_the_bits(source):
    model = load_model(source("llama"), device=CPU)

    def spoil(states):
        return _one_bit(2)(states) if len(states) == 8 else states

    forward = invariant_forward(replace(model, decoder=Crooked(model.decoder, spoil)), POOL)
    assert forward.rows == 16
    assert forward.numerics == f"rows of 16, keys in splits of {SPLIT_KEYS}"


def test_every_call_has_the_same_number_of_rows(source):
    model = load_model(source("llama"), device=CPU)
    calls = []

    def spoil(states):
        calls.append(len(states))
        return states

    crooked = replace(
        model, decoder=Crooked(model.decoder, spoil), head=CrookedHead(model.head, spoil)
    )
    world = Bits(invariant_forward(crooked, POOL), (50, 3), seed=1)
    calls.clear()
    for count, _ in itertools.product((1, 7, 8, 9, 17), range(2)):
        world.call([Chunk(0, 0, world.texts[0][:count]), Chunk(1, 0, world.texts[1][:1])])
    assert set(calls) == {8}


def test_rows_outside_the_pool_and_missing_tokens_are_refused(source):
    model = load_model(source("llama"), device=CPU)
    forward = InvariantForward(model, POOL, 8)
    assert forward.logits(torch.zeros(0, 48)).shape == (0, 97)
    beyond = pack([Segment(start=0, rows=1, blocks=(POOL.blocks,))], POOL.block_size, CPU)
    with pytest.raises(ValueError, match="block 90 is outside the pool of 90 blocks"):
        forward.hidden(torch.tensor([1]), beyond)
    within = pack([Segment(start=0, rows=2, blocks=(0,))], POOL.block_size, CPU)
    with pytest.raises(ValueError, match="1 tokens for 2 rows"):
        forward.hidden(torch.tensor([1]), within)
    late = pack([Segment(start=320, rows=1, blocks=tuple(range(41)))], POOL.block_size, CPU)
    with pytest.raises(ValueError, match="position 320"):
        forward.hidden(torch.tensor([1]), late)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_gpu_is_refused_by_name(device, source, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    asked = PairOptions(target=source("llama"), draft=None, device=device, batch_invariant=True)
    with pytest.raises(ConfigRefused, match=f"batch_invariant=true, device={device}: .*cpu"):
        create_runner(asked, float)


@pytest.mark.parametrize("asked", [False, True])
def test_the_runner_says_what_its_bits_depend_on(asked):
    source = ModelSource(path_or_id=str(DRAFT), offline=True)
    options = PairOptions(target=source, draft=None, kv_bytes=1 << 20, batch_invariant=asked)
    numerics = create_runner(options, float).runner.capabilities().numerics
    assert numerics == (f"rows of 8, keys in splits of {SPLIT_KEYS}" if asked else "plain")
