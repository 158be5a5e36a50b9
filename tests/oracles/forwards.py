"""Makes forwards of every runtime, device and type that the contract suite is run on.

Where vLLM is not installed a test skips by name, unless REQUIRE_VLLM=1 is set (CI sets it after
installing vLLM).
"""

import importlib
import os
import warnings
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch

from scheduler.runtime.forward import TransformersForward
from scheduler.runtime.loading import load_model
from scheduler.runtime.vllm_choice import VllmOptions, vllm_version


@dataclass(frozen=True)
class Kind:
    """What runs a model, where, and in which type."""

    runtime: str
    device: str
    dtype: str

    def __str__(self):
        return f"{self.runtime}-{self.device}-{self.dtype}"

    @property
    def exact(self):
        """Whether rounding alone is between it and a float32 reference of the same weights."""
        return self.dtype == "float32"


def kinds(runtimes=("torch", "vllm")):
    """All of these runtimes, as parameters of a test; those on a GPU are marked."""
    found = [
        Kind(runtime, device, dtype)
        for device in ("cpu", "cuda")
        for runtime in runtimes
        for dtype in ("float32", "bfloat16")
    ]
    return [
        pytest.param(kind, id=str(kind), marks=[pytest.mark.gpu] if kind.device == "cuda" else [])
        for kind in found
    ]


def need(kind):
    """Skip or fail where what it takes is not installed."""
    if kind.runtime == "vllm":
        need_vllm()


def need_vllm():
    """Skip or fail where vLLM is not installed."""
    if vllm_version() is not None:
        return
    if os.environ.get("REQUIRE_VLLM") == "1":
        pytest.fail("vLLM is not installed, and REQUIRE_VLLM is set")
    pytest.skip("vLLM is not installed")


@contextmanager
def unwarned():
    """What vLLM imports and loads warns of its own future; what it computes must not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def make_forward(kind, source, pool, **options):
    """A checkpoint over a pool of its own. `options` are vLLM's."""
    need(kind)
    device = torch.device(kind.device)
    if kind.runtime == "torch":
        model = load_model(source, device=device, dtype=kind.dtype)
        return TransformersForward(model, pool)
    with unwarned():
        loading = importlib.import_module("scheduler.runtime.vllm_loading")
        forward = importlib.import_module("scheduler.runtime.vllm_forward")
        options = VllmOptions(dtype=kind.dtype, block_size=pool.block_size, **options)
        model = loading.load_vllm_model(source, device=device, options=options)
        return forward.VllmForward(model, pool)
