"""What a device can do at best: from its name where it is known, else by a short probe."""

import time
from collections.abc import Callable

import torch

from tests.gpu.figures import Device, Limits

# Datasheets: TB/s of memory, dense bfloat16 TFLOP/s. The first name that fits counts.
KNOWN = (
    ("GH200 144G", 4.9, 989.0),
    ("GH200", 4.0, 989.0),
    ("H200", 4.8, 989.0),
    ("H100 NVL", 3.9, 835.0),
    ("H100 PCIe", 2.0, 756.0),
    ("H100", 3.35, 989.0),
    ("B200", 8.0, 2250.0),
    ("A100-SXM4-80GB", 2.04, 312.0),
    ("A100 80GB PCIe", 1.94, 312.0),
    ("A100", 1.56, 312.0),
    ("L40S", 0.864, 362.0),
    ("L4", 0.3, 121.0),
)
_TURNS = 10
_WARM_UP = 3


def describe_device(device: torch.device) -> Device:
    """The device with its limits; takes about a second."""
    cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if cuda else "CPU"
    measured = _measured(device)
    return Device(name=name, limits=known_limits(name) or measured, measured=measured)


def known_limits(name: str) -> Limits | None:
    """The datasheet's limits of a device of this name, None where it is not known."""
    words = name.replace("-", " ").split()
    for known, terabytes, teraflops in KNOWN:
        if set(known.replace("-", " ").split()) <= set(words):
            return Limits(
                source=f"datasheet of {known}",
                bandwidth=terabytes * 1e12,
                compute=teraflops * 1e12,
            )
    return None


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all that it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _measured(device: torch.device) -> Limits:
    """A copy much larger than any cache, and a product of large square matrices of random values:
    zeros would run faster than data."""
    cuda = device.type == "cuda"
    size, side = (1 << 30, 8192) if cuda else (1 << 25, 512)
    dtype = torch.bfloat16 if cuda else torch.float32
    source = torch.randn(size // dtype.itemsize, device=device, dtype=dtype)
    target = torch.empty_like(source)
    one, other = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    product = torch.empty_like(one)
    return Limits(
        source=f"a copy and a product of {side} x {side} matrices, {dtype}",
        bandwidth=2 * size / _fastest(lambda: target.copy_(source), device),
        compute=2 * side**3 / _fastest(lambda: torch.mm(one, other, out=product), device),
    )


def _fastest(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, the least of several batches of them."""
    times = []
    for turn in range(_WARM_UP + _TURNS):
        synchronise(device)
        started = time.perf_counter()
        work()
        synchronise(device)
        if turn >= _WARM_UP:
            times.append(time.perf_counter() - started)
    return min(times)
