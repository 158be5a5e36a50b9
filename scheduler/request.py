"""What a client asked for, parsed once and never changed afterwards."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


class Verifier(Enum):
    """Which exact acceptance rule turns drafts into output (contract section 2)."""

    TOKEN = "token"
    BLOCK = "block"
    SHARED_NOISE = "shared-noise"


class ProposerKind(Enum):
    """Where the drafts of a request come from."""

    DRAFT_MODEL = "draft_model"
    NGRAM = "ngram"
    NONE = "none"


class FinishReason(Enum):
    """Why a request ended, in the words of the OpenAI protocol where it has one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The output law that one request asks for. Ranges are checked at the HTTP edge.

    `top_k` None and `top_p` 1.0 and `min_p` 0.0 switch a filter off. `seed` is the int64 seed
    as a two's complement integer. `logprobs` is the number of alternatives to report for each
    emitted token (0: the token's own only), None for no logprobs at all.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int
    logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        """Temperature 0, or too near to it to divide by (contract section 8)."""
        return self.temperature < 1e-5

    @property
    def penalised(self) -> bool:
        """Whether a row's law depends on the counts of earlier tokens."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How a request is drafted. `k` None leaves the choice to the controller; 0 drafts nothing.

    Drafting ends before a token of which the draft model is less sure than `min_confidence`.
    """

    k: int | None = None
    min_confidence: float = 0.0
    verifier: Verifier = Verifier.TOKEN
    proposer: ProposerKind = ProposerKind.DRAFT_MODEL


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRules:
    """When the output ends. `token_ids` holds the end-of-text ids too, unless they are ignored.

    Until `min_tokens` tokens are out, every id in `token_ids` is masked. `include_stop` keeps the
    text of the stop id that ended the output.
    """

    token_ids: frozenset[int]
    max_tokens: int
    min_tokens: int = 0
    include_stop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedText:
    """Text of one staged run of tokens, with the state that publishing it would install.

    `kept` counts the tokens up to and including the one that completed a stop string (all of
    them when `stop` is None). `text` is what a client may see now.
    """

    state: object
    text: str
    kept: int
    stop: str | None


class TextStager(Protocol):
    """Turns token ids into text and looks for stop strings. Pure: every state is immutable."""

    def start(self) -> object:
        """The state before the first output token."""
        ...

    def stage(self, state: object, token_ids: tuple[int, ...], *, final: bool) -> StagedText:
        """Text that `token_ids` add after `state`; `final` flushes what was held back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One choice of one API call. `request_id` is unique for the life of the engine.

    A lower `priority` is served first; equal priorities in order of arrival. `domain` is a
    label for telemetry from a bounded allow-list. `ttft` is the most seconds that the first token
    may take, `tpot` those of a token after it, None for no such wish. `own_seed` says that the
    client chose the seed. `trace` is the W3C traceparent of the call, which only telemetry reads.
    """

    request_id: int
    choice: int = 0
    prompt: tuple[int, ...]
    sampling: SamplingParams
    speculation: Speculation
    stop: StopRules
    text: TextStager
    arrival: float
    priority: int = 0
    domain: str = "other"
    ttft: float | None = None
    tpot: float | None = None
    own_seed: bool = False
    trace: str | None = None
