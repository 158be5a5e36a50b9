"""The order in which a recorder asks CUDA for things, on stand-ins; tests/gpu has the rest."""

import gc
import weakref
from contextlib import contextmanager

import pytest
import torch

from scheduler.runtime.cuda_graphs import GraphRecorder

CUDA = torch.device("cuda")


class Stand:
    """A device that says what it was asked for, in `told`."""

    def __init__(self):
        self.told, self.mode, self.current, self.breaks = [], 0, "default", False
        self.ended, self.graphs = [], []

    def stream(self, name):
        owner = self

        class Stream(str):
            __slots__ = ()

            def wait_stream(self, other):
                owner.told.append(f"{self} waits for {other}")

        return Stream(name)

    @contextmanager
    def inside(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def graph(self):
        found = Graph(self)
        self.graphs.append(weakref.ref(found))
        return found

    def set_mode(self, mode):
        self.mode = mode

    def launch(self):
        self.told.append(f"launch on {self.current}, waiting is {self.mode}")
        return torch.zeros(1)


class Graph:
    def __init__(self, stand):
        self._stand = stand

    def capture_begin(self, *, pool, capture_error_mode):
        self._stand.told.append(f"begin in {pool}, {capture_error_mode}")

    def capture_end(self):
        self._stand.told.append("end")
        if self._stand.breaks:
            raise RuntimeError("invalid capture")

    def replay(self):
        self._stand.told.append("replay")


@pytest.fixture
def stand(monkeypatch):
    found = Stand()
    replaced = {
        "Stream": lambda device: found.stream("own"),
        "graph_pool_handle": lambda: "pool",
        "current_stream": lambda device: found.stream(found.current),
        "default_stream": lambda device: found.stream("default"),
        "stream": found.inside,
        "synchronize": lambda device: found.told.append("wait for the device"),
        "empty_cache": lambda: found.told.append("give cached memory back"),
        "get_sync_debug_mode": lambda: found.mode,
        "set_sync_debug_mode": found.set_mode,
        "current_device": lambda: 3,
        "CUDAGraph": found.graph,
    }
    for name, value in replaced.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(
        torch._C, "_cuda_endAllocateToPool", lambda *given: found.ended.append(given), raising=False
    )
    return found


def test_a_launch_warms_up_then_is_recorded_on_a_stream_of_its_own(stand):
    replay = GraphRecorder(CUDA)(stand.launch)
    assert stand.told == [
        "own waits for default",
        "launch on own, waiting is error",
        "wait for the device",
        "give cached memory back",
        "begin in pool, thread_local",
        "launch on own, waiting is 0",
        "end",
        "default waits for own",
    ]
    stand.told.clear()
    first = replay()
    assert replay() is first
    assert stand.told == ["replay", "replay"]


def test_who_set_a_stream_has_it_recorded_there(stand):
    stand.current = "theirs"
    GraphRecorder(CUDA)(stand.launch)
    launches = [line for line in stand.told if line.startswith("launch")]
    assert {line.partition(",")[0] for line in launches} == {"launch on theirs"}


def test_a_launch_that_breaks_while_it_warms_up_breaks_nothing_else(stand):
    record = GraphRecorder(CUDA)
    with pytest.raises(ZeroDivisionError):
        record(lambda: 1 // 0)
    assert (stand.mode, "end" in stand.told, stand.ended) == (0, False, [])
    assert stand.told[-1] == "default waits for own"
    record(stand.launch)


def test_a_launch_that_fails_while_it_is_recorded_is_waited_for_and_its_graph_stays(stand):
    runs = []

    def launch():
        runs.append(stand.told[-1])
        if len(runs) > 1:
            raise MemoryError("out of memory")

    record = GraphRecorder(CUDA)
    with pytest.raises(MemoryError, match="out of memory"):
        record(launch)
    assert stand.told[-2:] == ["end", "default waits for own"]
    record(stand.launch)
    gc.collect()
    assert [graph() is None for graph in stand.graphs] == [False, False]


def test_after_a_recording_that_broke_off_nothing_is_recorded(stand):
    record = GraphRecorder(CUDA)
    stand.breaks = True
    with pytest.raises(RuntimeError, match="invalid capture"):
        record(stand.launch)
    assert stand.ended == [(3, "pool")]
    stand.breaks = False
    with pytest.raises(RuntimeError, match="an earlier recording broke off"):
        record(stand.launch)
