"""A pair over two processes: the same texts as one process gives, and integers between them.

Whoever starts the processes, vLLM itself or Ray.
"""

import dataclasses
import enum
import functools
import importlib
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest

from deploy.pair import DRAFT, TARGET
from scheduler.errors import ConfigRefused, ModelRefused
from scheduler.runtime import vllm_choice
from scheduler.runtime.create import PairOptions, create_runner
from scheduler.runtime.loading import ModelSource
from scheduler.runtime.vllm_choice import VllmChoices
from scheduler.tokens import Tokens
from tests.oracles.driver import run_requests
from tests.oracles.forwards import need_vllm, unwarned
from tests.oracles.local_ray import local_ray
from tests.oracles.pair_texts import engine_config, load_reference, make_requests, read

pytestmark = pytest.mark.timeout(600)
RANKS = 2
SEED = 20261130


def load(draft_ranks=1, draft=True, **choices):
    """The embedded pair in as many processes as there are ranks."""
    split = {"tensor_parallel": RANKS, "draft_tensor_parallel": draft_ranks}
    return create(VllmChoices(**split, **choices), draft=draft)


def create(choices, draft=True):
    need_vllm()
    options = PairOptions(
        target=ModelSource(path_or_id=str(TARGET), offline=True),
        draft=ModelSource(path_or_id=str(DRAFT), offline=True) if draft else None,
        runtime="vllm",
        vllm=choices,
        device="cpu",
        max_model_len=256,
        max_requests=32,
    )
    with unwarned():
        return create_runner(options, time.perf_counter)


@pytest.fixture(scope="module")
def ray():
    with local_ray() as joined:
        yield joined


@contextmanager
def serving(request, executor, draft_ranks):
    """A pair in processes that this executor started."""
    if executor == "ray":
        request.getfixturevalue("ray")
    loaded = load(draft_ranks, distributed_executor_backend=executor)
    try:
        yield loaded
    finally:
        loaded.runner.close()


@pytest.fixture(
    scope="module", params=[("mp", 1), ("mp", RANKS), ("ray", RANKS)], ids="{0[0]}-{0[1]}".format
)
def pair(request):
    with serving(request, *request.param) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def whole():
    """The same pair in this process."""
    return create(VllmChoices())


@pytest.fixture(scope="module")
def reference():
    return load_reference()


@pytest.fixture(scope="module")
def alone(whole, reference):
    """What the pair in this process emits, by temperature."""
    return functools.cache(lambda temperature: read(whole, reference, temperature, SEED))


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_two_processes_emit_what_one_does(pair, alone, reference, temperature):
    """The all-reduce rounds otherwise: either side may leave the reference within its deviation."""
    split, one = read(pair, reference, temperature, SEED), alone(temperature)
    print(f"{split.share:.2%}, deviation {split.deviation:.2g}; alone {one.deviation:.2g}")
    assert split.beyond() == one.beyond() == []
    assert 0 < split.deviation < 1e-3
    assert split.accepted > 0
    assert split.texts == one.texts or split.mismatches or one.mismatches


@pytest.mark.slow
def test_it_says_how_it_is_split(pair, whole):
    told, one = pair.runner.capabilities(), whole.runner.capabilities()
    split = told.draft.dtype == "float32+tp2+vllm"
    assert told.target.dtype == "float32+tp2+vllm"
    assert split or told.draft.dtype == "float32+vllm"
    assert told.target.parameters == one.target.parameters
    # A share of the heads in each process; a draft that is not split is there twice.
    assert pair.target_row_bytes * RANKS == whole.target_row_bytes
    assert pair.draft_row_bytes * (RANKS if split else 1) == whole.draft_row_bytes
    assert (pair.runner.memory_bytes() > whole.runner.memory_bytes()) is not split


@pytest.mark.slow
def test_plain_records_cross_and_no_logits(pair, monkeypatch):
    crossed = []
    executor = pair.runner._executor
    real = executor.collective_rpc

    def watch(method, **call):
        reply = real(method, **call)
        crossed.append((method, call["args"], reply))
        return reply

    monkeypatch.setattr(executor, "collective_rpc", watch)
    run_requests(engine_config(pair), pair.runner, make_requests(pair, 0.0, seed=3)[:8])
    assert {method for method, _, _ in crossed} == {"round_run"}
    for _, sent, reply in crossed:
        kinds, size = plain(sent)
        assert kinds <= {int, float, str, bool, type(None)}
        kinds, size = plain(reply)
        assert kinds <= {int, float, str, bool, type(None)}
        assert size < pair.vocabulary


def plain(record):
    """(types of the leaves, number of leaves) of nested records."""
    if dataclasses.is_dataclass(record):
        record = [getattr(record, each.name) for each in dataclasses.fields(record)]
    if isinstance(record, enum.Enum):
        record = record.value
    if isinstance(record, Tokens):
        record = tuple(record)
    if isinstance(record, Mapping):
        record = [*record, *record.values()]
    if isinstance(record, (Sequence, Set)) and not isinstance(record, str):
        parts = [plain(each) for each in record]
        kinds = set().union(*(kinds for kinds, _ in parts)) if parts else set()
        return kinds, sum(size for _, size in parts)
    return {type(record)}, 1


def a_plan(pair):
    """One plan of some lives, all of which have been run."""
    plans = []
    run = pair.runner.run
    runner = SimpleNamespace(
        capabilities=pair.runner.capabilities,
        run=lambda plan: (plans.append(plan), run(plan))[1],
        failure=lambda: None,
    )
    run_requests(engine_config(pair), runner, make_requests(pair, 0.0, seed=3)[:2])
    return plans[0]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["mp", "ray"])
def test_a_process_that_is_gone_breaks_the_round(executor, request):
    with serving(request, executor, draft_ranks=1) as pair:
        plan = a_plan(pair)
        pair.runner.run(plan)
        assert pair.runner.failure() is None
        processes = pair.runner._executor
        if executor == "ray":
            request.getfixturevalue("ray").kill(processes.ray_worker_handles[1].actor)
        else:
            processes.workers[1].proc.kill()
        with pytest.raises(RuntimeError, match="the pair's processes: "):
            pair.runner.run(plan)
        assert "the pair's processes: " in pair.runner.failure()


@pytest.mark.slow
@pytest.mark.parametrize("rank", range(RANKS))
def test_a_round_that_breaks_in_one_process_is_the_last(rank, request):
    """After its last sum, so that no other process waits for it."""

    def plant(worker):
        real = worker._runner.run

        def broken(plan):
            real(plan)
            raise ArithmeticError("planted")

        if worker.rank == rank:
            worker._runner.run = broken

    with serving(request, "mp", draft_ranks=1) as pair:
        plan = a_plan(pair)
        pair.runner._executor.collective_rpc(plant)
        if rank:  # the round itself may still be told
            with suppress(RuntimeError):
                pair.runner.run(plan)
        with pytest.raises(RuntimeError, match="the pair's processes: "):
            pair.runner.run(plan)
        said = pair.runner.failure()
        assert ("planted" in said) is (rank == 0)
        with pytest.raises(RuntimeError, match="the pair's processes: "):
            pair.runner.run(plan)
        assert pair.runner.failure() == said


def test_a_split_that_vllm_has_not_is_refused_by_name():
    said = "draft_tensor_parallel=3, tensor_parallel=2: a draft is split over 1 or all"
    with pytest.raises(ConfigRefused, match=said):
        load(draft_ranks=3)


@pytest.mark.slow
def test_vllm_asks_ray_for_no_device_that_it_has_no_name_for(monkeypatch):
    need_vllm()
    monkeypatch.setattr(vllm_choice, "_version", lambda *packages: "0.32.0")
    platform = importlib.import_module("vllm.platforms.cpu").CpuPlatform
    monkeypatch.setattr(platform, "ray_device_key", "")
    said = "device=cpu, distributed_executor_backend=ray: vLLM knows no name that Ray has for it"
    with pytest.raises(ConfigRefused, match=said):
        load(distributed_executor_backend="ray")


def test_an_executor_that_answers_for_no_single_rank_is_refused_by_name(monkeypatch):
    need_vllm()
    platform = importlib.import_module("vllm.platforms.cpu").CpuPlatform
    monkeypatch.setattr(platform, "ray_device_key", "CPU", raising=False)
    monkeypatch.setenv("VLLM_USE_RAY_V2_EXECUTOR_BACKEND", "0")
    with pytest.raises(ConfigRefused, match="unset VLLM_USE_RAY_V2_EXECUTOR_BACKEND"):
        load(distributed_executor_backend="ray")


@pytest.mark.slow
def test_a_model_that_cannot_be_split_is_refused_by_name(monkeypatch):
    """The embedded target has 6 heads."""
    monkeypatch.setattr("tests.contracts.test_vllm_parallel.RANKS", 4)
    with pytest.raises(ModelRefused, match=r"target: vLLM: .*[Hh]eads"):
        load(draft=False)
