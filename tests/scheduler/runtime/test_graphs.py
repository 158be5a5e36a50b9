"""When shapes get buffers, are recorded, are replayed and are run as they are."""

import logging
from types import SimpleNamespace

import pytest
import torch

from scheduler.runtime import create
from scheduler.runtime.create import PairOptions
from scheduler.runtime.graphs import GraphedForward
from scheduler.runtime.loading import ModelSource
from server import assembly
from server.settings import load_settings
from tests.oracles.recorded import Gone, Recordings


class Doubling:
    """A `Fixable` whose shapes are row counts below 10; says what it does."""

    vocabulary, max_positions, block_size = 7, 100, 16
    device, numerics = torch.device("cpu"), "plain"

    def __init__(self, launch=None):
        self.done = []
        self.launch = launch or (lambda ids: ids * 2)

    def shape_of(self, rows):
        return rows if rows < 10 else None

    def fixed(self, shape):
        self.done.append(f"buffers {shape}")
        return Doubled(self, shape)

    def hidden(self, token_ids, rows, wanted=None):
        self.done.append(f"eager {rows}")
        return token_ids * 2 if wanted is None else token_ids[wanted] * 2

    def logits(self, hidden):
        return hidden + 1

    def clear_blocks(self, blocks, first=0):
        self.done.append(("clear", blocks, first))

    def memory_bytes(self):
        return 1000


class Doubled:
    def __init__(self, owner, shape):
        self._owner = owner
        self._ids = torch.zeros(shape, dtype=torch.int64)

    def fill(self, token_ids, rows):
        if len(token_ids) != rows:
            raise ValueError("no such call")
        self._ids.copy_(token_ids)

    def launch(self):
        self._owner.done.append(f"launch {len(self._ids)}")
        return self._owner.launch(self._ids)

    def pick(self, states, rows):
        return states.clone()

    def bytes(self):
        return self._ids.nbytes


def called(forward, count, first=0):
    ids = torch.arange(first, first + count)
    return forward.hidden(ids, count).tolist() == (2 * ids).tolist()


def test_a_shape_is_recorded_when_it_is_met_again():
    inner, recordings = Doubling(), Recordings()
    forward = GraphedForward(inner, recordings.record)
    assert called(forward, 3)
    assert inner.done == ["buffers 3", "launch 3"]
    assert (recordings.recorded, forward.recorded) == (0, 0)
    assert called(forward, 3, 5)
    assert inner.done == ["buffers 3", "launch 3", "launch 3", "launch 3"]
    assert (recordings.recorded, forward.recorded) == (1, 1)
    assert called(forward, 3, 7)
    assert called(forward, 3, 9)
    assert len(inner.done) == 4
    assert recordings.replays == 3


def test_rows_without_a_shape_run_as_they_are():
    inner = Doubling()
    forward = GraphedForward(inner, Recordings().record)
    assert all(called(forward, 12) for _ in range(3))
    assert inner.done == ["eager 12"] * 3


def test_only_so_many_shapes_are_kept():
    inner, recordings = Doubling(), Recordings()
    forward = GraphedForward(inner, recordings.record, most=2)
    for count in (1, 2, 3, 3, 1, 2, 3):
        assert called(forward, count)
    assert inner.done.count("eager 3") == 3
    assert recordings.recorded == 2


def test_what_cannot_be_recorded_is_told_once_and_runs_without(caplog):
    inner = Doubling(lambda ids: ids * int(ids.new_full((), 2)))
    recordings = Recordings()
    forward = GraphedForward(inner, recordings.record)
    with caplog.at_level(logging.WARNING):
        for count in (1, 2):
            assert all(called(forward, count, first) for first in range(4))
    (told,) = [record.getMessage() for record in caplog.records]
    assert "cannot be recorded" in told
    assert "gives the host a value" in told
    assert (len(recordings.refused), recordings.replays, forward.recorded) == (2, 0, 0)
    assert not [each for each in inner.done if each.startswith("eager")]


@pytest.mark.parametrize("records", [True, False])
def test_calls_that_meet_or_record_a_shape_are_counted(records, caplog):
    """Each shape's first two, whatever comes of the recording; none of those without a shape."""
    inner = Doubling(None if records else lambda ids: ids * int(ids.new_full((), 2)))
    forward = GraphedForward(inner, Recordings().record, most=2)
    seen = []
    for count in (3, 12, 3, 3, 3, 4, 4, 4, 12, 5, 5):
        assert called(forward, count)
        seen.append(forward.prepared)
    assert seen == [1, 1, 2, 2, 2, 3, 4, 4, 4, 4, 4]


def test_calls_that_do_not_fit_are_refused():
    forward = GraphedForward(Doubling(), Recordings().record)
    for _ in range(3):
        with pytest.raises(ValueError, match="no such call"):
            forward.hidden(torch.arange(2), 3)


def test_the_rest_is_the_forward_s_own():
    inner = Doubling()
    forward = GraphedForward(inner, Recordings().record)
    assert (forward.vocabulary, forward.max_positions, forward.block_size) == (7, 100, 16)
    assert forward.numerics == "plain, padded"
    assert forward.logits(torch.tensor(1)) == 2
    forward.clear_blocks([4], 2)
    assert inner.done == [("clear", [4], 2)]
    assert called(forward, 3)
    assert forward.memory_bytes() == 1000 + 3 * 8


def test_memory_is_counted_while_shapes_are_added(monkeypatch):
    """Metrics are read in another thread than the one that runs calls."""
    forward = GraphedForward(Doubling(), Recordings().record)
    assert called(forward, 3)
    count = Doubled.bytes

    def count_while_called(self):
        assert called(forward, 4)
        return count(self)

    monkeypatch.setattr(Doubled, "bytes", count_while_called)
    assert forward.memory_bytes() == 1000 + 3 * 8
    assert forward.memory_bytes() == 1000 + (3 + 4) * 8


# ---- the recorder of these tests ---------------------------------------------------------------


def test_a_replay_repeats_what_the_host_did_then():
    """As a graph does: what changes on the host meanwhile is not seen."""
    factor = SimpleNamespace(value=2)
    forward = GraphedForward(Doubling(lambda ids: ids * factor.value), Recordings().record)
    assert called(forward, 3)
    assert called(forward, 3)
    factor.value = 5
    assert called(forward, 3)


def test_a_replay_of_memory_that_is_gone_fails():
    held = SimpleNamespace(table=torch.full((9,), 2))
    forward = GraphedForward(Doubling(lambda ids: ids * held.table[0]), Recordings().record)
    assert called(forward, 3)
    assert called(forward, 3)
    held.table = held.table.clone()
    with pytest.raises(Gone):
        called(forward, 3)


# ---- who records -------------------------------------------------------------------------------

CUDA = torch.device("cuda")
SOURCE = ModelSource(path_or_id="nowhere", offline=True)


def test_calls_are_recorded_on_a_gpu_unless_it_is_forbidden(monkeypatch):
    monkeypatch.setattr(create, "GraphRecorder", lambda device: ("records", device))
    options = PairOptions(target=SOURCE, draft=None)
    assert create.recorder(options, CUDA) == ("records", CUDA)
    assert create.recorder(options, torch.device("cpu")) is None
    eager = PairOptions(target=SOURCE, draft=None, enforce_eager=True)
    assert create.recorder(eager, CUDA) is None


@pytest.mark.parametrize("asked", [True, False])
def test_the_setting_reaches_the_loader(asked, monkeypatch):
    seen = []
    monkeypatch.setattr(assembly, "create_runner", lambda options, clock: seen.append(options))
    assembly.build_runner(load_settings({"enforce_eager": asked}))
    assert seen[0].enforce_eager is asked
