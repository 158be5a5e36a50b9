"""A pair that several processes hold between them, behind one runner, by vLLM's own executor.

It starts the processes, or has Ray start them, has them load, and sends plans. What they do with a
plan is `vllm_worker`'s business; it knows no layers and no rows.
"""

import atexit
import os
from dataclasses import replace
from typing import Any

import torch
import vllm.envs
from vllm.platforms import current_platform
from vllm.v1.executor import Executor

from scheduler.config import PoolConfig
from scheduler.errors import ConfigRefused, ModelRefused
from scheduler.plan import RoundPlan, RoundResult
from scheduler.runner import Capabilities
from scheduler.runtime.loading import ModelSource
from scheduler.runtime.vllm_choice import VllmOptions
from scheduler.runtime.vllm_loading import check_device, configure, refusing
from scheduler.runtime.vllm_worker import Share, Started

_EXTENSION = "scheduler.runtime.vllm_worker.RoundWorker"
_BINDING = "VLLM_CPU_OMP_THREADS_BIND"
# vLLM's worker sizes its own K/V memory by what is free. It is never allocated here.
_ITS_KV_BYTES = 1 << 20


class ParallelRunner:
    """A `ModelRunner` whose rounds run in all processes of an executor at once.

    A round that breaks is the last one: its processes are out of step with one another.
    """

    def __init__(self, executor: Executor, capabilities: Capabilities, memory: int) -> None:
        self._executor = executor
        self._capabilities = capabilities
        self._memory = memory
        self._broken: str | None = None

    def capabilities(self) -> Capabilities:
        """What was loaded."""
        return self._capabilities

    def run(self, plan: RoundPlan) -> RoundResult:
        """Execute one round. Raises RuntimeError when a process failed, is gone or does not answer
        in vLLM's own time, and from then on."""
        if self._broken is not None:
            raise RuntimeError(self._broken)
        try:
            result: RoundResult = self._executor.collective_rpc(
                "round_run",
                timeout=vllm.envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS,
                args=(plan,),
                unique_reply_rank=0,
            )
        except Exception as problem:
            self._broken = f"the pair's processes: {problem!r}"
            self._executor.shutdown()
            raise RuntimeError(self._broken) from problem
        return result

    def failure(self) -> str | None:
        """What broke a round, or that a process died, once vLLM's executor has seen it. It ends the
        others."""
        if self._broken is None and self._executor.is_failed:
            return "one of the pair's processes died"
        return self._broken

    def memory_bytes(self) -> int:
        """Weights and K/V pools of all processes."""
        return self._memory

    def close(self) -> None:
        """End the processes. They end with this one in any case. A place that Ray set aside for one
        stays so until this process ends."""
        self._executor.shutdown()


class ParallelPair:
    """Loads a pair into as many processes as the target has ranks, and starts its runner."""

    def __init__(
        self,
        device: torch.device,
        target: VllmOptions,
        draft: VllmOptions,
        software: str,
        enforce_eager: bool,
    ) -> None:
        """With `enforce_eager` nothing is recorded and replayed, on a GPU either.

        Raises ConfigRefused when the vLLM that is installed cannot run on `device`, or not by the
        executor that was asked for.
        """
        check_device(device)
        if target.executor == "ray":
            _check_ray(device)
        self.block_size = target.block_size
        self.software = software
        self._device = device
        self._target_options, self._draft_options = target, draft
        self._enforce_eager = enforce_eager

    def load(self, target: ModelSource, draft: ModelSource | None) -> tuple[Share, Share | None]:
        """Start the processes and load. Raises ModelRefused."""
        config = configure(
            target,
            self._device,
            self._target_options,
            {
                "distributed_executor_backend": self._target_options.executor,
                "worker_extension_cls": _EXTENSION,
                "kv_cache_memory_bytes": _ITS_KV_BYTES,
            },
        )
        if self._device.type == "cpu":
            _share_cores(self._target_options.ranks)
        with refusing(target, self._target_options):
            self._executor = Executor.get_class(config)(config)
        # Before its queues are torn down under it.
        atexit.register(self._executor.shutdown)
        shares: list[tuple[Share, Share | None]] = self._ask(
            "round_load", target, draft, self._draft_options
        )
        return shares[0]

    def start(self, pool: PoolConfig, capabilities: Capabilities) -> ParallelRunner:
        """Allocate K/V memory in all processes. Raises ModelRefused."""
        started: list[Started] = self._ask("round_start", pool, capabilities, self._enforce_eager)
        told = replace(capabilities, numerics=started[0].numerics)
        return ParallelRunner(self._executor, told, sum(each.memory for each in started))

    def _ask(self, method: str, *arguments: object) -> list[Any]:
        """What each process answers. Raises ModelRefused when one refuses or breaks, and ends them
        all."""
        try:
            answers: list[object] = self._executor.collective_rpc(method, args=arguments)
        except Exception as problem:
            self._executor.shutdown()
            raise ModelRefused(f"the pair's processes: {problem!r}") from problem
        for answer in answers:
            if isinstance(answer, str):
                self._executor.shutdown()
                raise ModelRefused(answer)
        return answers


def _check_ray(device: torch.device) -> None:
    if not current_platform.ray_device_key:
        raise ConfigRefused(
            f"device={device.type}, distributed_executor_backend=ray: vLLM knows no name that "
            "Ray has for it; set distributed_executor_backend=mp"
        )
    if not vllm.envs.VLLM_USE_RAY_V2_EXECUTOR_BACKEND:
        raise ConfigRefused(
            "distributed_executor_backend=ray: vLLM's older Ray executor waits for all ranks; "
            "unset VLLM_USE_RAY_V2_EXECUTOR_BACKEND"
        )


def _share_cores(ranks: int) -> None:
    """Give each rank as many of this process's cores, unless the variable says which. vLLM itself
    takes a NUMA node for each, and ends where there are fewer."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // ranks
    shares = [cores[rank * each : (rank + 1) * each] for rank in range(ranks)]
    binding = "|".join(",".join(map(str, share)) for share in shares) if each else "nobind"
    if not vllm.envs.is_set(_BINDING):
        vllm.envs.environment_variables[_BINDING] = lambda: binding
