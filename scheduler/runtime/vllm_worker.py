"""What each of several processes does that hold a pair between them: its share, and whole rounds.

vLLM's executor starts the processes and mounts `RoundWorker` on its own worker in each. Plans come
in and results go out, integers and a few probabilities; logits stay here. Every process has all
logits of a row, gathered, and decides every round as the others do. Who asks it does not know.
"""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed
import vllm.distributed.parallel_state as groups
from vllm.config import VllmConfig, set_current_vllm_config

from scheduler.config import PoolConfig
from scheduler.errors import ModelRefused
from scheduler.plan import RoundPlan, RoundResult
from scheduler.runner import Capabilities, ModelIdentity
from scheduler.runtime.cuda_graphs import GraphRecorder
from scheduler.runtime.graphs import Launch
from scheduler.runtime.kv_cache import KvShape
from scheduler.runtime.loading import ModelSource
from scheduler.runtime.torch_runner import Pair, TorchRunner
from scheduler.runtime.vllm_choice import VllmOptions
from scheduler.runtime.vllm_forward import vllm_forward
from scheduler.runtime.vllm_loading import (
    CausalModule,
    VllmModel,
    configure,
    describe,
    load_module,
    refusing,
)
from scheduler.sampling.rng import CounterRandomness

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one process tells of its part of a model."""

    identity: ModelIdentity
    kv_shape: KvShape
    vocabulary: int
    max_positions: int
    device: torch.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What one process tells once it is ready: the bytes that all takes there, and how its rows
    depend on the rows beside them."""

    memory: int
    numerics: str


class GroupRecorder:
    """A `Record` of calls that processes make together: their all-reduce tells the others where it
    finds what was recorded. All processes record the same calls."""

    def __init__(self, device: torch.device) -> None:
        self._record = GraphRecorder(device)
        self._context = groups.GraphCaptureContext(torch.cuda.Stream(device))

    def __call__(self, launch: Launch) -> Launch:
        """A replay of `launch`. Raises RuntimeError when some process cannot record it: one that
        replays would read what the others never wrote."""
        replay: Launch | None = None
        problem: Exception | None = None
        with groups.get_tp_group().graph_capture(self._context):
            try:
                replay = self._record(launch)
            except Exception as found:  # noqa: BLE001 - whatever some layer does not bear
                problem = found
        recorded = torch.tensor([replay is not None], dtype=torch.int32)
        torch.distributed.all_reduce(
            recorded, torch.distributed.ReduceOp.MIN, groups.get_tp_group().cpu_group
        )
        if replay is None or not bool(recorded):
            raise RuntimeError("some process of the pair could not record it") from problem
        return replay


class _ModelRunner(Protocol):
    """What vLLM's worker keeps the model in that it loaded."""

    def get_model(self) -> CausalModule: ...


class RoundWorker:
    """An extension of vLLM's worker, which sets the attributes declared here. Its methods are
    called by name, in all processes at once. A refusal is returned: vLLM keeps no exception."""

    vllm_config: VllmConfig
    model_runner: _ModelRunner
    device: torch.device
    rank: int

    def round_load(
        self, target: ModelSource, draft: ModelSource | None, options: VllmOptions
    ) -> tuple[Share, Share | None] | str:
        """Take over the target, which vLLM's worker has loaded, and load the draft."""
        if options.executor == "mp":
            # A terminal's Ctrl-C reaches every process; rounds go on until the server has drained.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
        module = self.model_runner.get_model()
        try:
            self._target = describe(target, self.vllm_config, module, self.device)
            self._draft = None if draft is None else self._load_draft(draft, options)
        except ModelRefused as refused:
            return str(refused)
        return _share(self._target), None if self._draft is None else _share(self._draft)

    def round_start(
        self, pool: PoolConfig, capabilities: Capabilities, enforce_eager: bool
    ) -> Started | str:
        """Allocate K/V memory and be ready for rounds."""
        draft = self._draft
        recording = self.device.type == "cuda" and not enforce_eager
        record = GroupRecorder(self.device) if recording else None
        try:
            pair = Pair(
                target=vllm_forward(self._target, record, pool),
                draft=None if draft is None else vllm_forward(draft, record, pool),
                vocabulary=capabilities.vocabulary,
            )
        except ModelRefused as refused:
            return str(refused)
        self._runner = TorchRunner(pair, capabilities, CounterRandomness(), time.perf_counter)
        return Started(memory=self._runner.memory_bytes(), numerics=pair.target.numerics)

    def round_run(self, plan: RoundPlan) -> RoundResult:
        """One whole round. One that breaks leaves this process a sum behind the others, which would
        wait for it or take the next round's for it: only the first process can say so to whoever
        asked, any other one ends, which vLLM's executor sees."""
        try:
            return self._runner.run(plan)
        except Exception:
            logger.exception("a round broke in process %s of the pair", self.rank)
            if self.rank:
                os._exit(1)
            raise

    def _load_draft(self, source: ModelSource, options: VllmOptions) -> VllmModel:
        """The draft under a configuration of its own; whole in each process where one rank is to
        hold it."""
        # First, as one process may refuse what follows while the others wait for it here.
        inside = nullcontext if options.ranks > 1 else _alone()
        backend = {"distributed_executor_backend": options.executor}
        config = configure(source, self.device, options, backend)
        config.parallel_config.rank = self.vllm_config.parallel_config.rank
        with refusing(source, options), set_current_vllm_config(config), inside():
            module = load_module(config)
        return describe(source, config, module, self.device, inside)


def _share(model: VllmModel) -> Share:
    return Share(
        identity=model.identity,
        kv_shape=model.kv_shape,
        vocabulary=model.vocabulary,
        max_positions=model.max_positions,
        device=model.device,
    )


def _alone() -> Callable[[], AbstractContextManager[None]]:
    """A context in which layers see a tensor-parallel group of this process alone. All processes
    have to ask for it at once."""
    world = groups.get_world_group()
    own = groups.init_model_parallel_group(
        [[rank] for rank in range(world.world_size)],
        world.local_rank,
        torch.distributed.get_backend(world.device_group),
        group_name="alone",
    )

    @contextmanager
    def inside() -> Iterator[None]:
        theirs = groups._TP  # noqa: SLF001 - vLLM has no other way to change it
        groups._TP = own  # noqa: SLF001
        try:
            yield
        finally:
            groups._TP = theirs  # noqa: SLF001

    return inside
