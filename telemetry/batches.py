"""Keeps a few rounds back and tells a sink of them at once; knows not what it does with them.

A round leaves the processor's caches full of the model, so that the first lines of Python after it
run several times slower than the next: many rounds told at once cost a fraction of each alone.
"""

from scheduler.stats import FinishedStats, LoadStats, StatsSink, StepStats

__all__ = ["SECONDS", "SIZE", "Batches"]

SECONDS = 0.1
"""Time of rounds that is kept back at most: what a person sees as at once."""
SIZE = 32
"""Rounds that are kept back at most, so that telling of them holds up the loop for a moment."""


class Batches:
    """A `StatsSink` for the event loop. `sink` hears everything in its order, rounds a little late:
    whoever reads what it keeps calls `flush` first. Nothing is kept back while nothing runs."""

    def __init__(self, sink: StatsSink) -> None:
        self._sink = sink
        self._rounds: list[StepStats] = []
        self._seconds = 0.0

    def step(self, stats: StepStats) -> None:
        """Keep one round back, or tell of all that are kept."""
        self._rounds.append(stats)
        self._seconds += stats.round_seconds
        full = self._seconds >= SECONDS or len(self._rounds) >= SIZE
        if full or not stats.load.running:
            self.flush()

    def load(self, load: LoadStats) -> None:
        """Tell of the load, after the rounds before it."""
        self.flush()
        self._sink.load(load)

    def finished(self, finished: FinishedStats) -> None:
        """Tell of the end of a request, after the rounds before it."""
        self.flush()
        self._sink.finished(finished)

    def flush(self) -> None:
        """Tell of all rounds that are kept back."""
        rounds, self._rounds, self._seconds = self._rounds, [], 0.0
        for stats in rounds:
            self._sink.step(stats)
