"""Takes what the host knows to a device, in the one way that never waits for the device.

A tensor that is made on a CUDA device from host values, or copied there from memory that is not
pinned, has the host wait for all that was launched before: a draft loop would stop at every step.
Knows host values and devices; nothing of what the values mean.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def integers(values: Sequence[int], device: torch.device) -> Tensor:
    """Host integers as int64 [n] on `device`."""
    return moved(torch.tensor(values, dtype=torch.int64), device)


def floats(values: Sequence[float], device: torch.device) -> Tensor:
    """Host numbers as float64 [n] on `device`."""
    return moved(torch.tensor(values, dtype=torch.float64), device)


def flags(values: Sequence[bool], device: torch.device) -> Tensor:
    """Host truths as bool [n] on `device`."""
    return moved(torch.tensor(values, dtype=torch.bool), device)


def moved(host: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on `device`; on the CPU itself, that very tensor.

    On CUDA it is copied by way of pinned memory, which the allocator keeps until the copy is done.
    """
    if device.type == "cpu":
        return host
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
