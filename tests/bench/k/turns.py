"""Lets several engines that share a machine take turns, so that what disturbs it meets all alike.

An engine asks before each round, in its worker thread, and waits while another has the turn. Its
clock stands still meanwhile: it sees a machine of its own. A turn lasts a span of own time, in
whole rounds with all that the engine does between them, and goes on to whoever is least far with
its work. Knows rounds, not what is in them.
"""

import threading
import time
from collections.abc import Callable

from scheduler.plan import RoundPlan, RoundResult
from scheduler.runner import Capabilities, ModelRunner


class Turnstile:
    """Hands the turn from place to place. `span` is in seconds."""

    def __init__(self, span: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._span = span
        self._changed = threading.Condition()
        self._waiting: list[Place] = []
        self._holder: Place | None = None
        self._until = 0.0

    def take(self, place: "Place") -> None:
        """Wait until `place` has the turn, or leaves. One that has had its span waits anew."""
        with self._changed:
            if self._holder is place and self.clock() < self._until:
                return
            self._waiting.append(place)
            if self._holder is place:
                self._holder = None
            self._hand_on()
            self._changed.wait_for(lambda: place not in self._waiting)

    def leave(self, place: "Place") -> None:
        """Wait no more, and hand the turn on if `place` has it."""
        with self._changed:
            if place in self._waiting:
                self._waiting.remove(place)
                self._changed.notify_all()
            if self._holder is place:
                self._holder = None
                self._hand_on()

    def _hand_on(self) -> None:
        if self._holder is None and self._waiting:
            self._holder = min(self._waiting, key=lambda place: (place.progress, place.taken))
            self._waiting.remove(self._holder)
            self._until = self.clock() + self._span
            self._holder.taken += 1
            self._changed.notify_all()


class Place:
    """One engine's place. `progress` is the share of its work that is done, which whoever gives the
    work keeps up to date; `taken` counts turns.

    Out of the row, which is where it begins, it neither waits nor holds anybody up.
    """

    def __init__(self, turnstile: Turnstile) -> None:
        self._turnstile = turnstile
        self._waited = 0.0
        self._in_row = False
        self.progress = 0.0
        self.taken = 0

    def clock(self) -> float:
        """Seconds, without those that were spent waiting."""
        return self._turnstile.clock() - self._waited

    def enter(self) -> None:
        """Stand in the row, with all of the work to do."""
        self._in_row, self.progress, self.taken = True, 0.0, 0

    def leave(self) -> None:
        """Stand in it no more."""
        self._in_row = False
        self._turnstile.leave(self)

    def wait(self) -> None:
        """Return when a round may run."""
        if self._in_row:
            since = self._turnstile.clock()
            self._turnstile.take(self)
            self._waited += self._turnstile.clock() - since


class PatientRunner:
    """A runner that waits for the turn of its place before each round."""

    def __init__(self, runner: ModelRunner, place: Place) -> None:
        self._runner = runner
        self._place = place

    def capabilities(self) -> Capabilities:
        """The runner's."""
        return self._runner.capabilities()

    def run(self, plan: RoundPlan) -> RoundResult:
        """Wait, then execute one round."""
        self._place.wait()
        return self._runner.run(plan)

    def memory_bytes(self) -> int:
        """The runner's."""
        return self._runner.memory_bytes()

    def failure(self) -> str | None:
        """The runner's."""
        return self._runner.failure()
