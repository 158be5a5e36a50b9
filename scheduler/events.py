"""What the engine tells the one who submitted a request."""

from dataclasses import dataclass
from enum import Enum

from scheduler.plan import TokenLogprobs
from scheduler.request import FinishReason


class Origin(Enum):
    """Where a published token came from."""

    DRAFT = "draft"
    CORRECTION = "correction"
    BONUS = "bonus"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmittedToken:
    """One published token. `position` is absolute. `target_prob` and `draft_prob` are the
    processed laws' values for a draft; None for a terminal. `logprobs` only if asked for."""

    token: int
    position: int
    origin: Origin
    target_prob: float | None
    draft_prob: float | None
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStats:
    """Speculation and timing of one finished request.

    `steps` counts rounds with at least one drafted token; `histogram[a]` those of them that
    accepted a drafts. Drafts past a stop count as drafted, not as accepted. Times in seconds on
    the engine's clock; `first_token` is None when none was published.
    """

    steps: int
    drafted: int
    accepted: int
    histogram: tuple[int, ...]
    rounds: int
    completion_tokens: int
    cached_tokens: int
    arrival: float
    admitted: float | None
    first_token: float | None
    finished: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The end of a request. `stop` is the stop string or stop id that ended it, if one did;
    `error` a sentence for the client when the reason is ERROR."""

    reason: FinishReason
    stop: str | int | None
    error: str | None
    stats: RequestStats


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputEvent:
    """One publication: the tokens and the text that it added, and the end if it ended there."""

    request: int
    tokens: tuple[EmittedToken, ...]
    text: str
    finish: Finish | None
