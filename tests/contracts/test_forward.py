"""What every forward gives packed rows, against transformers, request by request."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scheduler.config import PoolConfig
from scheduler.runtime.loading import ModelSource
from scheduler.runtime.rows import Segment, pack
from tests.oracles.forwards import kinds, make_forward, need
from tests.oracles.packed_calls import Requests, judge

VOCABULARY = 512
# Lengths of contexts that end at, before and past the borders of blocks, and rows to verify.
PASTS = (1, 5, 17, 33, 64, 100, 131, 250)
ROWS = (1, 5, 3, 8, 1, 2, 6, 64)
LENGTHS = [past + rows for past, rows in zip(PASTS, ROWS, strict=True)]
POOLS = {
    "target": PoolConfig(blocks=40, block_size=32),
    "draft": PoolConfig(blocks=24, block_size=64),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Folders of a target and of a smaller draft with other K/V rows."""
    folders = {}
    for name, layers, hidden, heads in (("target", 4, 256, (8, 2)), ("draft", 2, 128, (4, 4))):
        torch.manual_seed(layers)
        made = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=hidden,
                intermediate_size=2 * hidden,
                num_hidden_layers=layers,
                num_attention_heads=heads[0],
                num_key_value_heads=heads[1],
                head_dim=32,
                max_position_embeddings=512,
                initializer_range=0.08,
            )
        )
        folders[name] = tmp_path_factory.mktemp(name)
        made.save_pretrained(folders[name])
    return folders


@pytest.fixture(scope="module", params=kinds())
def kind(request):
    need(request.param)
    return request.param


@pytest.fixture(scope="module")
def forwards(kind, checkpoints):
    return {name: _forward(kind, checkpoints, name) for name in POOLS}


def _forward(kind, checkpoints, name):
    source = ModelSource(path_or_id=str(checkpoints[name]), offline=True)
    return make_forward(kind, source, POOLS[name])


@pytest.fixture
def judges(kind, checkpoints):
    return {name: judge(kind, checkpoints[name]) for name in POOLS}


def _verified(requests):
    """Logits of the last rows of all requests, after a ragged prefill in two calls."""
    requests.call({number: (0, 1 + past // 2) for number, past in enumerate(PASTS)})
    rest = {n: (1 + past // 2, past) for n, past in enumerate(PASTS) if past > 1 + past // 2}
    requests.call(rest)
    return requests.call({n: (past, past + ROWS[n]) for n, past in enumerate(PASTS)})


@pytest.mark.parametrize("name", POOLS)
def test_ragged_rows_over_scattered_blocks(name, forwards, judges):
    requests = Requests(forwards[name], LENGTHS)
    for number, found in _verified(requests).items():
        judges[name].see(found, requests.tokens[number], PASTS[number])
    judges[name].decide()


@pytest.mark.parametrize("name", POOLS)
def test_rejected_rows_are_overwritten(name, forwards, judges):
    requests = Requests(forwards[name], LENGTHS, seed=1)
    _verified(requests)
    spans = {}
    for number, kept in ((3, 2), (6, 1), (7, 40)):
        first = PASTS[number] + kept
        tokens = requests.tokens[number]
        tokens[first:] = [(token + 7) % VOCABULARY for token in tokens[first:]]
        spans[number] = (first, len(tokens))
    for number, found in requests.call(spans).items():
        judges[name].see(found, requests.tokens[number], spans[number][0])
    judges[name].decide()


@pytest.mark.parametrize("chunk", [1, 7, 32, 33, 200])
def test_a_prompt_in_chunks_beside_others(chunk, forwards, judges):
    requests = Requests(forwards["target"], (200, 90), seed=chunk)
    parts = []
    for first in range(0, 200, chunk):
        spans = {0: (first, min(200, first + chunk))}
        if first < 90:
            spans[1] = (first, min(90, first + chunk))
        parts.append(requests.call(spans)[0])
    judges["target"].see(torch.cat(parts), requests.tokens[0], 0)
    judges["target"].decide()


@pytest.mark.parametrize("name", POOLS)
def test_rows_that_nobody_wants_are_there_for_others_all_the_same(name, forwards, judges):
    requests = Requests(forwards[name], LENGTHS, seed=4)
    requests.write({number: (0, past) for number, past in enumerate(PASTS)})
    spans = {n: (past, past + ROWS[n]) for n, past in enumerate(PASTS)}
    for number, found in requests.last_rows(spans).items():
        judges[name].see(found, requests.tokens[number], spans[number][1] - 1)
    again = {n: (past + ROWS[n] - 1, past + ROWS[n]) for n, past in enumerate(PASTS)}
    for number, found in requests.call(again).items():
        judges[name].see(found, requests.tokens[number], again[number][0])
    judges[name].decide()


def test_the_same_rows_come_from_a_recording_as_well(kind, forwards, judges):
    requests = Requests(forwards["target"], LENGTHS, seed=3)
    for _ in range(3):
        for number, found in _verified(requests).items():
            judges["target"].see(found, requests.tokens[number], PASTS[number])
        requests.call({n: (past, past + 1) for n, past in enumerate(PASTS)})
    judges["target"].decide()
    if kind.calls == "recorded":
        assert forwards["target"].recorded > 0


def test_two_models_with_blocks_of_their_own_take_turns(forwards, judges):
    pair = {name: Requests(forwards[name], (70, 40), seed=5) for name in POOLS}
    assert pair["target"].forward.block_size != pair["draft"].forward.block_size
    for first in range(0, 70, 10):
        for name, requests in pair.items():
            spans = {0: (first, first + 10)} | ({1: (first, first + 10)} if first < 40 else {})
            for number, found in requests.call(spans).items():
                judges[name].see(found, requests.tokens[number][: first + 10], first)
    for each in judges.values():
        each.decide()


def test_rows_that_do_not_fit_are_refused(forwards):
    forward = forwards["target"]
    one = torch.tensor([1], device=forward.device)
    for segment, size, reason in (
        (Segment(start=0, rows=2, blocks=(0,)), 32, "1 tokens for 2 rows"),
        (Segment(start=0, rows=1, blocks=(40,)), 32, "block 40 is outside the pool"),
        (Segment(start=0, rows=1, blocks=(0,)), 64, "packed for blocks of 64"),
        (Segment(start=512, rows=1, blocks=(0,) * 17), 32, "position 512 is past"),
    ):
        with pytest.raises(ValueError, match=reason):
            forward.hidden(one, pack([segment], size, forward.device))


@pytest.mark.parametrize("name", POOLS)
def test_a_cleared_table_leaves_its_neighbours_as_they_were(name, forwards):
    requests = Requests(forwards[name], (90, 90), seed=9)
    requests.call({0: (0, 60), 1: (0, 60)})
    before = requests.call({1: (60, 61)})[1]
    forwards[name].clear_blocks(requests.tables[0], 40)
    after = requests.call({1: (60, 61)})[1]
    assert torch.equal(before, after)
