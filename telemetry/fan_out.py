"""Tells several sinks the same; knows nothing of what they do with it."""

from scheduler.stats import FinishedStats, LoadStats, StatsSink, StepStats

__all__ = ["FanOut"]


class FanOut:
    """A `StatsSink` that passes everything on, in the order of `sinks`."""

    def __init__(self, *sinks: StatsSink) -> None:
        self._sinks = sinks

    def step(self, stats: StepStats) -> None:
        """Pass one round on."""
        for sink in self._sinks:
            sink.step(stats)

    def load(self, load: LoadStats) -> None:
        """Pass the load on."""
        for sink in self._sinks:
            sink.load(load)

    def finished(self, finished: FinishedStats) -> None:
        """Pass the end of a request on."""
        for sink in self._sinks:
            sink.finished(finished)
