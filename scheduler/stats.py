"""Frozen records of what happened, for the controller and for telemetry. Nothing is read back."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from scheduler.events import RequestStats
from scheduler.plan import DraftOutcome, RoundTimings, TerminalKind
from scheduler.request import FinishReason, ProposerKind


class Policy(Enum):
    """The acceptance rule as telemetry names it: alpha differs by rule."""

    GREEDY = "greedy"
    TOKEN = "token"
    BLOCK = "block"
    SHARED_NOISE = "shared_noise"


class Reason(Enum):
    """Why a request's K is what it is in one round.

    FIXED: the server's or the request's own K. KEPT: as in the round before. LOAD and ACCEPTANCE:
    another K because other requests run, or because the estimates moved. SLO: a floor for the
    request's time a token. PROBE: drafted to see its acceptance. BASELINE: not drafted, to see what
    plain decoding costs. MEMORY and ROWS: cut for want of K/V blocks or of rows in the round.
    SHARED_SEED: another request has the same draws, so that its history may not choose this K.
    """

    FIXED = "fixed"
    KEPT = "kept"
    LOAD = "load"
    ACCEPTANCE = "acceptance"
    SLO = "slo"
    PROBE = "probe"
    BASELINE = "baseline"
    MEMORY = "memory"
    ROWS = "rows"
    SHARED_SEED = "shared_seed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """K of one request, and why. `accepted` is the number of drafts expected to be accepted."""

    k: int
    reason: Reason
    accepted: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a decision expects of its round: committed tokens and seconds, and those of the same
    round without drafts. `seconds` are those of the cost table times what rounds took of late. In
    the retained layout they hold `append_seconds`, those of the append that follows, where that is
    a round of its own: 0 where the appends of some are in the rounds of others."""

    tokens: float
    seconds: float
    plain_tokens: float
    plain_seconds: float
    append_seconds: float = 0.0

    @property
    def gain(self) -> float:
        """Tokens a second over those of plain decoding."""
        if not (self.seconds > 0 and self.plain_tokens > 0):
            return 1.0
        return self.tokens * self.plain_seconds / (self.seconds * self.plain_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """K of every request that emits in one round. `forecast` is None where nothing was forecast, or
    where rows or blocks left another K than the one that was."""

    choices: Mapping[int, Choice] = field(default_factory=dict)
    forecast: Forecast | None = None

    def k(self, request: int) -> int:
        """K of `request`, 0 when it has none."""
        choice = self.choices.get(request)
        return 0 if choice is None else choice.k


class CommitOutcome(Enum):
    """How a round ended for one request."""

    PUBLISHED = "published"
    STALE = "stale"
    ABORTED = "aborted"
    REPLAYED = "replayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationStats:
    """One request in one round with K >= 1 drafts.

    `accepted` is after the cut at a stop. `reached` counts draft positions tested up to and
    including the first rejection, trimmed at the first stop. `mass` and `base` are the low-variance
    acceptance of contract section 10: sums of the one over sums of the other. They have one entry a
    reached position; by block verification one a draft, for there the estimate holds over all
    rounds with so many drafts, before any cut at a stop.
    """

    k: int
    accepted: int
    reached: int
    mass: tuple[float, ...]
    base: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one request's round was decided by, for the acceptance log.

    `verified` counts the drafts that verification accepted, before any cut. `outcomes` has one
    entry a draft, reached or not. `terminal_token` is None where the cut took it. `fallback`: the
    terminal's residual had no mass, and it was drawn from the target's row.
    """

    generation: int
    verified: int
    outcomes: tuple[DraftOutcome, ...]
    terminal_token: int | None
    fallback: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """One request's share of a round. `speculation` is None where nothing was drafted, `evidence`
    where nothing was decided; a round that was decided but not published has the latter.

    `branch_rows` are the target's K/V rows that were written for drafts, whatever became of them;
    `kept_rows` those of the whole share that publication committed.
    """

    request: int
    outcome: CommitOutcome
    policy: Policy
    proposer: ProposerKind
    domain: str
    position: int
    committed: int
    prefilled: int
    terminal: TerminalKind | None
    speculation: SpeculationStats | None
    evidence: Evidence | None = None
    branch_rows: int = 0
    kept_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedStats:
    """One request that ended, with whether it speculated at all and how long its prompt was.

    `ttft` and `tpot` are its wishes in seconds, None where it had none; `trace` is the W3C
    traceparent that it came with.
    """

    request: int
    reason: FinishReason
    speculated: bool
    prompt_tokens: int
    request_stats: RequestStats
    ttft: float | None = None
    tpot: float | None = None
    trace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """Blocks of one K/V pool by state."""

    used: int
    free: int
    cached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStats:
    """The engine at one moment."""

    running: int
    waiting: int
    target_pool: PoolStats
    draft_pool: PoolStats | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """One round: what it did, what it cost in seconds, and the load after it.

    `round_seconds` spans plan to publication; `commit_seconds` and `schedule_seconds` are the
    engine's own shares of it. `decision` says how K was chosen, cuts included. `itl_seconds` holds
    (seconds a token, tokens) for all published tokens but the first of each request. `prepared`
    says that the round took longer than its like will, as the runner made something ready in it.
    """

    round_id: int
    groups: tuple[GroupStats, ...]
    finished: tuple[FinishedStats, ...]
    timings: RoundTimings
    round_seconds: float
    schedule_seconds: float
    commit_seconds: float
    target_rows: int
    draft_rows: int
    logit_rows: int
    host_syncs: int
    residual_fallbacks: int
    preemptions: int
    load: LoadStats
    itl_seconds: tuple[tuple[float, int], ...] = ()
    decision: Decision | None = None
    prepared: bool = False


def without_evidence(stats: StepStats) -> StepStats:
    """What may be learnt from: counts and costs, no draw (contract section 3)."""
    groups = tuple(_without_evidence(each) for each in stats.groups)
    return replace(stats, groups=groups)


def _without_evidence(stats: GroupStats) -> GroupStats:
    """Written out: `replace` for every request of every round would be felt."""
    return GroupStats(
        request=stats.request,
        outcome=stats.outcome,
        policy=stats.policy,
        proposer=stats.proposer,
        domain=stats.domain,
        position=stats.position,
        committed=stats.committed,
        prefilled=stats.prefilled,
        terminal=stats.terminal,
        speculation=stats.speculation,
        branch_rows=stats.branch_rows,
        kept_rows=stats.kept_rows,
    )


class StatsSink(Protocol):
    """Receives what happened, on the event loop; must not block and is never read back."""

    def step(self, stats: StepStats) -> None:
        """One round was published."""
        ...

    def load(self, load: LoadStats) -> None:
        """The load changed between rounds."""
        ...

    def finished(self, finished: FinishedStats) -> None:
        """A request ended outside a round: a cancel, or an error before its first round."""
        ...
