"""Times the parts of one round, also on a device that runs behind the host.

It knows clocks and CUDA's events. It knows nothing of drafts, laws or what a part does.
"""

from collections.abc import Callable

import torch

from scheduler.plan import RoundTimings

Mark = float | torch.cuda.Event


class RoundWatch:
    """Made when a round begins; told when its drafts and its verification are launched; read once
    the host has what the round gave.

    On a CUDA device the marks are events of its stream: no launch waits for them, and the round's
    transfer has passed them.
    """

    def __init__(self, device: torch.device, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._behind = device.type == "cuda"
        self._began = clock()
        self._marks = [self._mark()]

    def part_ended(self) -> None:
        """Call it where drafting has ended, and where verification has."""
        self._marks.append(self._mark())

    def timings(self, inside: float) -> RoundTimings:
        """Seconds by part. `inside` are those that the host spent inside forwards; on a device
        that runs behind it they are launches, and both parts as a whole count instead."""
        whole = self._clock() - self._began
        draft, verify = map(_seconds, self._marks[:-1], self._marks[1:])
        return RoundTimings(
            draft=draft,
            verify=verify,
            decide=whole - draft - verify,
            forward=draft + verify if self._behind else inside,
        )

    def _mark(self) -> Mark:
        if not self._behind:
            return self._clock()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _seconds(first: Mark, second: Mark) -> float:
    if isinstance(first, float) and isinstance(second, float):
        return second - first
    if isinstance(first, float) or isinstance(second, float):
        raise TypeError("marks of one round are of one kind")
    return float(first.elapsed_time(second)) / 1e3
