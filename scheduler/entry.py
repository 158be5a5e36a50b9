"""What the scheduler keeps beside a request's authoritative state: status, blocks, counters."""

from dataclasses import dataclass, field

from scheduler.events import RequestStats
from scheduler.lifecycle import Event, Status, after
from scheduler.plan import DeviceDraft, HostDraft, Role
from scheduler.request import Request, Verifier
from scheduler.stats import Policy


@dataclass(slots=True, kw_only=True)
class Counters:
    """Per-request telemetry; never read by a decision."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    histogram: list[int]
    rounds: int = 0
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """A request's share of a round that broke, to be run again as it was: the blocks are held, and
    another K would be a choice that may depend on the drafts (contract section 3)."""

    rows: int
    draft: HostDraft | DeviceDraft | None


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """One live request. Owned by the scheduler; `status` moves by `move` only.

    `settings` is what never changes about the request in the round coordinate, as canonical JSON;
    `tables` are the digests by which `blocks` stand in it, renewed with them.
    `draft_rows` is the draft ledger: rows in the draft's cache that are, by identity, a prefix of
    the published tokens. `failures` counts rounds that broke while this request was in them,
    `retry` is its share of the last of those. `shares_draws`: a request that lived beside this one
    has or had the same draws at the same length.
    """

    request: Request
    counters: Counters
    status: Status = Status.WAITING
    blocks: dict[Role, tuple[int, ...]] = field(default_factory=dict)
    tables: dict[Role, str] = field(default_factory=dict)
    draft_rows: int = 0
    failures: int = 0
    shares_draws: bool = False
    retry: Retry | None = None
    settings: str = ""

    @property
    def order(self) -> tuple[int, float, int]:
        """First come, first served within a priority."""
        return (self.request.priority, self.request.arrival, self.request.request_id)

    def move(self, event: Event) -> None:
        """Raises IllegalTransition, and changes nothing, for a move the table does not have."""
        self.status = after(self.status, event)

    def summary(self, completion_tokens: int, finished: float) -> RequestStats:
        """The frozen record of the whole request."""
        counters = self.counters
        return RequestStats(
            steps=counters.steps,
            drafted=counters.drafted,
            accepted=counters.accepted,
            histogram=tuple(counters.histogram),
            rounds=counters.rounds,
            completion_tokens=completion_tokens,
            cached_tokens=0,
            arrival=self.request.arrival,
            admitted=counters.admitted,
            first_token=counters.first_token,
            finished=finished,
        )


def draws(request: Request) -> tuple[int, int] | None:
    """What names the draws that decide what is accepted of a request, besides its length. None
    where no draw does: there any choice of K is exact (contract section 3)."""
    if policy_of(request) not in _BY_DRAW:
        return None
    return request.sampling.seed, request.choice


def policy_of(request: Request) -> Policy:
    """The acceptance rule that the request's rounds follow."""
    if request.sampling.greedy:
        return Policy.GREEDY
    return _POLICIES[request.speculation.verifier]


_BY_DRAW = frozenset({Policy.TOKEN, Policy.BLOCK})
_POLICIES = {
    Verifier.TOKEN: Policy.TOKEN,
    Verifier.BLOCK: Policy.BLOCK,
    Verifier.SHARED_NOISE: Policy.SHARED_NOISE,
}
