"""What one process of a split pair does where something goes wrong: stand-ins for vLLM's parts."""

import importlib
from contextlib import nullcontext
from signal import SIG_IGN, SIGINT, SIGTERM
from types import SimpleNamespace

import pytest
import torch

from scheduler.errors import ModelRefused
from scheduler.runtime.loading import ModelSource
from tests.oracles.forwards import need_vllm, unwarned


@pytest.fixture
def worker(monkeypatch):
    """(`vllm_worker`, a rank of it, the collectives that it took part in)."""
    need_vllm()
    with unwarned():
        vllm_worker = importlib.import_module("scheduler.runtime.vllm_worker")
    monkeypatch.setattr(vllm_worker.signal, "signal", lambda *_: None)
    collectives = []
    rank = vllm_worker.RoundWorker()
    rank.model_runner = SimpleNamespace(get_model=lambda: None)
    rank.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(rank=1))
    rank.device = None
    monkeypatch.setattr(vllm_worker, "describe", lambda *_: None)
    monkeypatch.setattr(vllm_worker, "set_current_vllm_config", lambda _: nullcontext())
    monkeypatch.setattr(vllm_worker, "configure", lambda *_: rank.vllm_config)
    monkeypatch.setattr(
        vllm_worker, "_alone", lambda: (collectives.append("alone"), nullcontext)[1]
    )
    return vllm_worker, rank, collectives


def load(rank):
    options = SimpleNamespace(executor="mp", ranks=1, quantization=None, kv_cache_dtype="auto")
    return rank.round_load(None, ModelSource(path_or_id="a-draft", offline=True), options)


def test_a_draft_refused_in_one_process_leaves_no_other_waiting(worker, monkeypatch):
    module, rank, collectives = worker

    def refuse(*_):
        raise ModelRefused("a-draft: not here")

    monkeypatch.setattr(module, "configure", refuse)
    assert load(rank) == "a-draft: not here"
    assert collectives == ["alone"]


def test_a_draft_that_vllm_cannot_load_is_refused_by_name(worker, monkeypatch):
    module, rank, _ = worker

    def fail(_):
        raise ValueError("no such weight")

    monkeypatch.setattr(module, "load_module", fail)
    assert load(rank) == "a-draft: vLLM: ValueError: no such weight"


@pytest.mark.parametrize(("executor", "ignored"), [("mp", {SIGINT, SIGTERM}), ("ray", set())])
def test_signals_for_the_whole_terminal_end_no_process_before_the_drain(
    worker, monkeypatch, executor, ignored
):
    module, rank, _ = worker
    told = {}
    monkeypatch.setattr(module.signal, "signal", told.__setitem__)
    monkeypatch.setattr(module, "load_module", lambda _: None)
    monkeypatch.setattr(module, "_share", lambda model: model)
    options = SimpleNamespace(executor=executor, ranks=1, quantization=None, kv_cache_dtype="auto")
    rank.round_load(None, ModelSource(path_or_id="a-draft", offline=True), options)
    assert told == dict.fromkeys(ignored, SIG_IGN)


class Ended(BaseException):
    """In the place of the end of a process."""


@pytest.mark.parametrize(("number", "raised"), [(0, ArithmeticError), (1, Ended)])
def test_a_round_that_breaks_is_told_by_the_first_process_and_ends_any_other(
    worker, monkeypatch, number, raised
):
    module, rank, _ = worker

    def run(plan):
        raise ArithmeticError(plan)

    def leave(status):
        raise Ended(status)

    rank.rank, rank._runner = number, SimpleNamespace(run=run)
    monkeypatch.setattr(module.os, "_exit", leave)
    with pytest.raises(raised):
        rank.round_run("a plan")


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_call_is_replayed_if_every_process_recorded_it(worker, monkeypatch, here, elsewhere):
    module, _, _ = worker

    def record(launch):
        if not here:
            raise MemoryError("out of memory")
        return launch

    def least(flag, operation, group):
        assert (operation, group) == (torch.distributed.ReduceOp.MIN, "processes")
        flag.clamp_(max=int(elsewhere))

    group = SimpleNamespace(graph_capture=lambda _: nullcontext(), cpu_group="processes")
    monkeypatch.setattr(module.groups, "get_tp_group", lambda: group)
    monkeypatch.setattr(module.torch.distributed, "all_reduce", least)
    recorder = object.__new__(module.GroupRecorder)
    recorder._record, recorder._context = record, None
    if here and elsewhere:
        assert recorder(len) is len
        return
    with pytest.raises(RuntimeError, match="some process of the pair could not record it"):
        recorder(len)
