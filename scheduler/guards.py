"""Keeps faults of those who only watch or advise away from serving: logged, the first of each kind.

Telemetry is one way, and any K that history chose is exact (contract section 3): who raises here
costs a figure or a draft and no answer.
"""

import logging
from types import TracebackType

from scheduler.controller import Controller, FixedController, LoadView
from scheduler.stats import Decision, FinishedStats, LoadStats, StatsSink, StepStats

logger = logging.getLogger(__name__)


class _Guard:
    """Around calls of one method: ends what they raise, and logs each exception type once, with its
    traceback. `then` says what follows from a failure."""

    def __init__(self, owner: object, method: str, then: str) -> None:
        self._name = f"{type(owner).__name__}.{method}"
        self._then = then
        self._told: set[type[BaseException]] = set()

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        where: TracebackType | None,
    ) -> bool:
        if kind is None or not issubclass(kind, Exception):
            return False
        if kind not in self._told:
            self._told.add(kind)
            text = "%s failed, %s; the next failures of this kind are not logged"
            logger.error(text, self._name, self._then, exc_info=problem)
        return True


class GuardedSink:
    """A `StatsSink` that raises nothing: what `sink` could not take is lost to it."""

    def __init__(self, sink: StatsSink) -> None:
        self._sink = sink
        self._step = _Guard(sink, "step", "it does not know of the round")
        self._load = _Guard(sink, "load", "it does not know the load")
        self._finished = _Guard(sink, "finished", "it does not know of the end")

    def step(self, stats: StepStats) -> None:
        """Pass one round on."""
        with self._step:
            self._sink.step(stats)

    def load(self, load: LoadStats) -> None:
        """Pass the load on."""
        with self._load:
            self._sink.load(load)

    def finished(self, finished: FinishedStats) -> None:
        """Pass the end of a request on."""
        with self._finished:
            self._sink.finished(finished)


class GuardedController:
    """A `Controller` that raises nothing. Where `controller` cannot decide, requests decode plainly
    but for those that fixed their own K; it is asked again the next time."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._plain = FixedController(0)
        self._decide = _Guard(controller, "decide", "the round is not drafted for")
        self._learn = _Guard(controller, "learn", "it goes by what it knew")
        self._forget = _Guard(controller, "forget", "it may keep what it knows of the request")

    def decide(self, view: LoadView) -> Decision:
        """What the controller decides, else no draft that nobody asked for."""
        with self._decide:
            return self._controller.decide(view)
        return self._plain.decide(view)

    def learn(self, stats: StepStats) -> None:
        """Let it learn from a finished round, if it can."""
        with self._learn:
            self._controller.learn(stats)

    def forget(self, request: int) -> None:
        """The request ended."""
        with self._forget:
            self._controller.forget(request)
