"""Makes forwards of every runtime, device and type that the contract suite is run on.

Where vLLM is not installed a test skips by name, unless REQUIRE_VLLM=1 is set (CI sets it after
installing vLLM).
"""

import importlib
import os
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import torch

from scheduler.runtime.cuda_graphs import GraphRecorder
from scheduler.runtime.fixed_forward import FixableTransformers
from scheduler.runtime.forward import TransformersForward
from scheduler.runtime.graphs import GraphedForward
from scheduler.runtime.loading import load_model
from scheduler.runtime.vllm_choice import VllmOptions, vllm_version
from tests.oracles.recorded import Recordings

CALLS = {
    ("torch", "cpu"): ("eager", "recorded"),
    ("torch", "cuda"): ("eager", "recorded"),
    ("vllm", "cpu"): ("eager", "ragged", "uniform"),
    ("vllm", "cuda"): ("eager", "recorded"),
}


@dataclass(frozen=True)
class Kind:
    """What runs a model, where, in which type, and how its calls are made: "eager", or "recorded"
    and replayed (on a CPU by `tests.oracles.recorded`). vLLM's kernels for a CPU cannot be
    recorded: there its calls of fixed shapes are launched each time, of "ragged" or "uniform" rows.
    """

    runtime: str
    device: str
    dtype: str
    calls: str = "eager"

    def __str__(self):
        name = f"{self.runtime}-{self.device}-{self.dtype}"
        return name if self.calls == "eager" else f"{name}-{self.calls}"

    @property
    def exact(self):
        """Whether rounding alone is between it and a float32 reference of the same weights."""
        return self.dtype == "float32"


def kinds(runtimes=("torch", "vllm")):
    """All of these runtimes, as parameters of a test; those on a GPU are marked."""
    found = [
        Kind(runtime, device, dtype, calls)
        for device in ("cpu", "cuda")
        for runtime in runtimes
        for calls in CALLS[runtime, device]
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


def recorder(device):
    """What records calls on a device."""
    return GraphRecorder(device) if device.type == "cuda" else Recordings().record


def recorder_of(kind):
    """What records calls of a kind, None for those that are made eagerly."""
    if kind.calls == "eager":
        return None
    return recorder(torch.device(kind.device)) if kind.calls == "recorded" else lambda call: call


@contextmanager
def as_if_recordable(kind):
    """Where a kind's calls are "ragged" or "uniform", have vLLM's kernels for a CPU pass for some
    that can be recorded so."""
    with pytest.MonkeyPatch.context() as patch:
        if kind.calls in {"ragged", "uniform"}:
            forward = importlib.import_module("scheduler.runtime.vllm_forward")
            bind, ragged = forward.bind_kv, kind.calls == "ragged"
            changed = {"ragged": ragged, "widest": None}
            patch.setattr(forward, "bind_kv", lambda *given: replace(bind(*given), **changed))
        yield


def identity_of(forward):
    """The identity of the model that a forward runs, recorded or not."""
    return getattr(forward, "inner", forward).identity


def make_forward(kind, source, pool, **options):
    """A checkpoint over a pool of its own. `options` are vLLM's."""
    need(kind)
    device = torch.device(kind.device)
    if kind.runtime == "torch":
        model = load_model(source, device=device, dtype=kind.dtype)
        if kind.calls == "eager":
            return TransformersForward(model, pool)
        return GraphedForward(FixableTransformers(model, pool), recorder(device))
    with unwarned():
        loading = importlib.import_module("scheduler.runtime.vllm_loading")
        forward = importlib.import_module("scheduler.runtime.vllm_forward")
        options = VllmOptions(dtype=kind.dtype, block_size=pool.block_size, **options)
        model = loading.load_vllm_model(source, device=device, options=options)
        with as_if_recordable(kind):
            return forward.vllm_forward(model, recorder_of(kind), pool)
