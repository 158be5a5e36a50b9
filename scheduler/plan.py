"""What crosses the boundary between deciding a round and running it: frozen records of integers.

A runner gets one `RoundPlan` and gives back one `RoundResult`. Rows, positions, block tables,
K and RNG bases are all in the plan; nothing of it changes while the round runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from scheduler.request import SamplingParams, StopRules, Verifier
from scheduler.tokens import TokenIds


class Role(Enum):
    """The two models of a pair, each with a K/V pool and a block size of its own."""

    TARGET = "target"
    DRAFT = "draft"


class Layout(Enum):
    """Where the frontier's K/V row stands between rounds (contract section 4).

    With REPLAY_FRONTIER a round replays the frontier as its first target row. With
    RETAINED_FRONTIER the row is appended by a round of its own, whose last logits the runner keeps
    as the first row of the next verification.
    """

    REPLAY_FRONTIER = "replay_frontier"
    RETAINED_FRONTIER = "retained_frontier"


class TerminalKind(Enum):
    """The one token after the accepted prefix (contract section 1)."""

    CORRECTION = "correction"
    BONUS = "bonus"
    PLAIN = "plain"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDraft:
    """Drafts that the host knew before the round: one-hot proposals (n-gram, prediction)."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDraft:
    """Drafts that the draft model makes inside the round.

    The draft's cache holds rows for the first `rows` tokens of the request; its first step takes
    `len(tokens) - rows` rows (lag + 1). `depth` 0 only catches up, `catch_up` rows at most.
    Drafting ends before the first token whose row gives no token at least `min_confidence`: the
    row is looked at before anything is drawn from it (contract section 3).
    """

    depth: int
    rows: int
    catch_up: int
    min_confidence: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One request's share of the packed target call.

    `tokens` is the whole published sequence O of length T. The target's rows are
    `tokens[start : start + rows]`, then the drafts. `emits` is true when a prefix of the drafts and
    one terminal are to be decided: the rows reach the frontier, or (retained layout, `rows` 0) its
    logits are held by the runner. `retains` is true when the last row's logits are to be held for
    the next generation. RNG draws are keyed by T. `max_emit` is the number of tokens that may
    still come out.
    """

    request: int
    generation: int
    tokens: TokenIds
    prompt_length: int
    start: int
    rows: int
    emits: bool
    retains: bool = False
    max_emit: int
    draft: HostDraft | DeviceDraft | None
    blocks: Mapping[Role, tuple[int, ...]]
    sampling: SamplingParams
    verifier: Verifier
    stop: StopRules
    choice: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinate:
    """The round coordinate (contract section 9): canonical JSON, and its SHA-256."""

    manifest: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """One round of the whole engine. `held` are the requests whose retained row the runner keeps;
    all other rows that it holds may go."""

    round_id: int
    layout: Layout
    groups: tuple[Group, ...]
    coordinate: Coordinate
    held: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Raw-model log-probabilities (temperature 1, before any filter) of one emitted position.

    `top` holds (token id, logprob), best first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOutcome:
    """What verification saw at one draft position, reached or not.

    `uniform` is None for rules that consume none (greedy, shared-noise). `mass` over `base` is
    the low-variance estimate of the reach acceptance of contract section 10. For the acceptance
    log, where the runner can tell: `bound`, the test is uniform < bound (0 or 1 where there is no
    uniform), and `choice`, the target's own token at this place where the rule compares tokens.
    """

    token: int
    target_prob: float
    draft_prob: float
    uniform: float | None
    mass: float
    base: float
    bound: float | None = None
    choice: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """What a round gave one request, before any stop rule is applied.

    `written` are the ids whose K/V rows the target call wrote, from position `start` on.
    `emitted` is the accepted prefix and the terminal. `outcomes` has one entry a drafted token;
    positions 0 .. accepted (the first rejection included) were reached. `draft_written` are the
    ids of the draft's own new rows, from its `rows` on; `draft_lost` says that its cache is to be
    cleared; `fallback` that the terminal's residual had no mass, and it was drawn from the target's
    row. `error` is set when the row law was unusable (NaN, or nothing left to draw): then nothing
    was emitted.
    """

    request: int
    generation: int
    written: tuple[int, ...]
    emitted: tuple[int, ...]
    accepted: int
    terminal: TerminalKind | None
    outcomes: tuple[DraftOutcome, ...]
    draft_written: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    draft_lost: bool = False
    fallback: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimings:
    """Seconds by part, together the runner's whole round. `forward` is the share spent inside model
    forwards (draft and target).

    On a CUDA device `draft` and `verify` are its own time from the first launch of a part to the
    last one's end, `forward` is their sum, and `decide` is the rest, the host's work included.
    """

    draft: float
    verify: float
    decide: float
    forward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What a runner returns for a plan. `target_rows` and `draft_rows` count packed rows.

    `prepared` says that a model call met a shape or had it recorded: the round took longer than its
    like will.
    """

    round_id: int
    coordinate: Coordinate
    groups: tuple[GroupResult, ...]
    timings: RoundTimings
    target_rows: int
    draft_rows: int
    logit_rows: int
    host_syncs: int
    residual_fallbacks: int = 0
    prepared: bool = False


def nothing_run(plan: RoundPlan) -> RoundResult:
    """What is reported for a round that broke: no rows, no time inside the model."""
    return RoundResult(
        round_id=plan.round_id,
        coordinate=plan.coordinate,
        groups=(),
        timings=RoundTimings(draft=0.0, verify=0.0, decide=0.0, forward=0.0),
        target_rows=0,
        draft_rows=0,
        logit_rows=0,
        host_syncs=0,
    )
