"""How many cores this process may keep busy. Knows the kernel's files; nothing of what runs."""

import math
import os
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


def usable_cores(groups: Path = _GROUPS) -> int:
    """Cores that the process may run on, no more than its container's quota pays for (`docker run
    --cpus`, a Kubernetes limit), rounded up: threads past it are only put to sleep in turn.

    `groups` is where control groups are mounted, version 1 or 2; what is not there limits nothing.
    """
    cores = len(os.sched_getaffinity(0))
    quotas = (
        _quota(_words(groups / "cpu.max")),
        _quota(
            _words(groups / "cpu" / "cpu.cfs_quota_us")
            + _words(groups / "cpu" / "cpu.cfs_period_us")
        ),
    )
    return min([cores, *(math.ceil(quota) for quota in quotas if quota is not None)])


def _quota(words: list[str]) -> float | None:
    """Cores from microseconds of a period and its length; "max" and -1 are no limit."""
    try:
        share, period = map(int, words)
    except ValueError:
        return None
    return share / period if share > 0 and period > 0 else None


def _words(file: Path) -> list[str]:
    try:
        return file.read_text("ascii").split()
    except (OSError, ValueError):
        return []
