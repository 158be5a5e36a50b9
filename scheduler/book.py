"""Every live request with its state and its blocks; plans and lands no round."""

from bisect import insort

from scheduler.admission import BlockTables
from scheduler.commit import Ledger
from scheduler.company import Company
from scheduler.config import EngineConfig
from scheduler.coordinate import settings_manifest
from scheduler.entry import Counters, Entry, draws
from scheduler.lifecycle import Event, Status
from scheduler.plan import Role
from scheduler.request import Request
from scheduler.state import RequestState, RngState, initial_state, preempted
from scheduler.stats import LoadStats


class Book:
    """Every live request, in order, with its state and its blocks. One owner: the event loop."""

    def __init__(self, config: EngineConfig, ledger: Ledger) -> None:
        self.config = config
        self.ledger = ledger
        self.tables = BlockTables(config)
        self.company = Company(config.max_requests)
        self.entries: dict[int, Entry] = {}
        self.waiting: list[Entry] = []
        self.running: list[Entry] = []
        self.preemptions = 0
        self._by_draws: dict[tuple[int, int], list[Entry]] = {}

    def state(self, entry: Entry) -> RequestState:
        """The published state of a live request."""
        return self.ledger.states[entry.request.request_id]

    def open(self, request: Request) -> None:
        """Put a new request in the queue."""
        entry = Entry(
            request=request,
            counters=Counters(histogram=[0] * (self.config.k_max + 1)),
            settings=settings_manifest(request.sampling, request.stop),
        )
        rng = RngState(seed=request.sampling.seed, choice=request.choice)
        start = initial_state(request.prompt, rng, request.text.start())
        self.ledger.open(request.request_id, start)
        self.entries[request.request_id] = entry
        self._join_twins(entry)
        insort(self.waiting, entry, key=lambda each: each.order)

    def admit(self, entry: Entry, now: float) -> None:
        """Move a request from the queue to those that run."""
        entry.move(Event.ADMIT)
        self.waiting.remove(entry)
        insort(self.running, entry, key=lambda each: each.order)
        if entry.counters.admitted is None:
            entry.counters.admitted = now

    def preempt(self, entry: Entry) -> None:
        """Take all blocks of a request; it will compute its rows again, with the same draws."""
        self.ledger.replace(entry.request.request_id, preempted(self.state(entry)))
        entry.move(Event.PREEMPT)
        self.tables.release(entry)
        self.running.remove(entry)
        insort(self.waiting, entry, key=lambda each: each.order)
        self.preemptions += 1

    def close(self, entry: Entry) -> None:
        """End a request and forget it. Its blocks stay held until `tables.release`."""
        (self.waiting if entry.status is Status.WAITING else self.running).remove(entry)
        entry.move(Event.FINISH)
        self.ledger.close(entry.request.request_id)
        del self.entries[entry.request.request_id]
        self._leave_twins(entry)

    def _join_twins(self, entry: Entry) -> None:
        """Note who has the same draws at the same length, for good: when a twin ends may follow
        from draws that the other one still has ahead."""
        named = draws(entry.request)
        if named is None:
            return
        twins = self._by_draws.setdefault(named, [])
        twins.append(entry)
        if len(twins) > 1:
            for each in twins:
                each.shares_draws = True

    def _leave_twins(self, entry: Entry) -> None:
        named = draws(entry.request)
        if named is None:
            return
        twins = self._by_draws[named]
        twins.remove(entry)
        if not twins:
            del self._by_draws[named]

    def load(self) -> LoadStats:
        """The load at this moment."""
        target = self.tables.pool(Role.TARGET)
        draft = self.tables.pool(Role.DRAFT)
        if target is None:
            raise KeyError(Role.TARGET)
        return LoadStats(
            running=len(self.running),
            waiting=len(self.waiting),
            target_pool=target.stats(),
            draft_pool=None if draft is None else draft.stats(),
        )
