"""How long a device is busy with some work, by the profiler's record of its kernels and copies.

Clocks on the host cannot say it where a device runs behind the host. Knows nothing of the work.
"""

from collections.abc import Callable

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from tests.gpu.limits import synchronise

_UNCOUNTED = 3


def busy_seconds(work: Callable[[], object], repeats: int, device) -> float | None:
    """Mean seconds of kernels and copies in one call of `work`, which must put all of them on one
    stream; None on a CPU, where there is no such thing, and where the profiler sees nothing.

    Calls before those are not counted: work that is recorded is met first, recorded when it is met
    again, and does nothing but its own from the third time on.
    """
    if device.type != "cuda":
        return None
    for _ in range(_UNCOUNTED):
        work()
    synchronise(device)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(repeats):
            work()
        synchronise(device)
    spans = [
        event.time_range.elapsed_us()
        for event in seen.events() or ()
        if event.device_type == DeviceType.CUDA
    ]
    return 1e-6 * sum(spans) / repeats if spans else None
