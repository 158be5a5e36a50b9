"""The two state machines of the engine, as tables. Everything that moves a status is here.

A request waits, runs and finishes; a preempted one waits again. A round of one request goes
through the phases of a transaction: staging takes it to STAGED, the ledger of states to one of its
two ends. Of a request that is gone the ledger keeps no round. An illegal move raises and changes
nothing.
"""

from enum import Enum, auto

from scheduler.errors import IllegalTransition


class Status(Enum):
    """Where a request stands."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Event(Enum):
    """What can happen to a request."""

    ADMIT = auto()
    PREEMPT = auto()
    FINISH = auto()


TRANSITIONS: dict[tuple[Status, Event], Status] = {
    (Status.WAITING, Event.ADMIT): Status.RUNNING,
    (Status.WAITING, Event.FINISH): Status.FINISHED,
    (Status.RUNNING, Event.PREEMPT): Status.WAITING,
    (Status.RUNNING, Event.FINISH): Status.FINISHED,
}


class Phase(Enum):
    """Where one request's round stands (contract section 6)."""

    READY = auto()
    VERIFIED = auto()
    DECIDED = auto()
    STAGED = auto()
    PUBLISHED = auto()
    ABORTED = auto()


PHASES: dict[Phase, frozenset[Phase]] = {
    Phase.READY: frozenset({Phase.VERIFIED, Phase.ABORTED}),
    Phase.VERIFIED: frozenset({Phase.DECIDED, Phase.ABORTED}),
    Phase.DECIDED: frozenset({Phase.STAGED, Phase.ABORTED}),
    Phase.STAGED: frozenset({Phase.PUBLISHED, Phase.ABORTED}),
    Phase.PUBLISHED: frozenset(),
    Phase.ABORTED: frozenset(),
}


def after(status: Status, event: Event) -> Status:
    """The status that `event` leads to. Raises IllegalTransition."""
    try:
        return TRANSITIONS[status, event]
    except KeyError:
        raise IllegalTransition(f"a {status.name} request cannot {event.name}") from None


def advance(phase: Phase, to: Phase) -> Phase:
    """`to`, if a round may go there from `phase`. Raises IllegalTransition."""
    if to not in PHASES[phase]:
        raise IllegalTransition(f"a round cannot go from {phase.name} to {to.name}")
    return to
