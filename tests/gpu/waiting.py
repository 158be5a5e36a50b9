"""How often the host waits for the device in some work. Knows nothing of the work."""

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def waits(work: Callable[[], Result]) -> tuple[Result, list[warnings.WarningMessage]]:
    """What `work` gives, and a warning for each time that the host waited for the device meanwhile,
    as far as torch sees it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            result = work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    # Once a process, torch also warns of the mode itself.
    return result, [each for each in caught if "called a synchronizing" in str(each.message)]
