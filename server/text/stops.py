"""Finds stop strings in text that arrives in pieces: one Knuth-Morris-Pratt automaton each.

The whole state is one matched length a stop string, so that it is copied for nothing. Time is
linear in the text, however long the stop strings are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Match", "StopMatcher"]

Progress = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A stop string and the index in the given text just behind it."""

    stop: str
    end: int


class StopMatcher:
    """Looks for the earliest end of any of `stops`; of those that end together, the longest."""

    __slots__ = ("_fallbacks", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are non-empty; equal ones count once."""
        self._stops = tuple(sorted(set(stops), key=len, reverse=True))
        self._fallbacks = tuple(map(_fallback, self._stops))

    def start(self) -> Progress:
        """The state before any text."""
        return (0,) * len(self._stops)

    def feed(self, progress: Progress, text: str, *, counts: bool) -> tuple[Progress, Match | None]:
        """The state after `text`, or after the first match in it. `counts` False only moves on."""
        if not self._stops:
            return progress, None
        for index, char in enumerate(text):
            progress = tuple(
                self._step(which, length, char) for which, length in enumerate(progress)
            )
            found = self._completed(progress) if counts else None
            if found is not None:
                return progress, Match(stop=found, end=index + 1)
        return progress, None

    def held(self, progress: Progress) -> str:
        """The longest end of the text so far that a stop string could still begin with.

        A whole stop string that did not count is text like any other: only its longest proper
        part is held.
        """
        longest = ""
        for which, length in enumerate(progress):
            stop = self._stops[which]
            proper = self._fallbacks[which][-1] if length == len(stop) else length
            if proper > len(longest):
                longest = stop[:proper]
        return longest

    def _step(self, which: int, length: int, char: str) -> int:
        stop, fallback = self._stops[which], self._fallbacks[which]
        if length == len(stop):
            length = fallback[length]
        while length and stop[length] != char:
            length = fallback[length]
        return length + 1 if stop[length] == char else 0

    def _completed(self, progress: Progress) -> str | None:
        for which, length in enumerate(progress):
            if length == len(self._stops[which]):
                return self._stops[which]
        return None


def _fallback(stop: str) -> tuple[int, ...]:
    """`table[n]`: the longest proper end of `stop[:n]` that `stop` begins with."""
    table = [0, 0]
    for char in stop[1:]:
        length = table[-1]
        while length and stop[length] != char:
            length = table[length]
        table.append(length + 1 if stop[length] == char else 0)
    return tuple(table)
