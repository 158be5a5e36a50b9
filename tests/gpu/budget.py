"""Keeps a run within its seconds: says what no longer fits, by name. Knows no stage."""

import sys
from collections.abc import Callable


class Budget:
    """`seconds` from its making on. `skipped` are the lines that said what was left out and why."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._end = clock() + seconds
        self.skipped: list[str] = []

    def left(self) -> float:
        """Seconds that are left, at least 0."""
        return max(self._end - self._clock(), 0.0)

    def affords(self, name: str, seconds: float) -> bool:
        """Whether `seconds` are left for `name`; says so when they are not."""
        left = self.left()
        if seconds <= left:
            return True
        self.skip(name, f"needs about {seconds:.0f} s, {left:.0f} s are left")
        return False

    def skip(self, name: str, reason: str) -> None:
        """Note that `name` is left out."""
        line = f"skipped: {name}: {reason}"
        self.skipped.append(line)
        say(line)


def say(text: str) -> None:
    """A line about how far the run is, at once."""
    sys.stderr.write(f"check: {text}\n")
    sys.stderr.flush()
