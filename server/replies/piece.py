"""What a reply is written from: one choice, whole or in part, and the options of the call."""

from dataclasses import dataclass

from scheduler.events import EmittedToken, Finish

__all__ = ["Envelope", "Piece", "ReplyOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Text and tokens of choice `index`: all of it, or what one event added. `first` says that
    nothing of this choice was written before."""

    index: int
    text: str
    tokens: tuple[EmittedToken, ...]
    finish: Finish | None
    first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOptions:
    """What the call wants to see.

    `choices` is n, so that choice i answers prompt i // n. `own_stops` are the stop ids that the
    client named (an end-of-text id is no stop reason). `echo` holds the prompts' texts.
    """

    prompts: tuple[tuple[int, ...], ...]
    choices: int
    speculated: bool
    logprobs: bool = False
    top_logprobs: int = 0
    skip_special: bool = True
    token_ids: bool = False
    provenance: bool = False
    own_stops: frozenset[int] = frozenset()
    echo: tuple[str, ...] | None = None
    include_usage: bool = False
    continuous_usage: bool = False

    def prompt_of(self, index: int) -> int:
        """The index of the prompt that choice `index` answers."""
        return index // self.choices


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The fields that a body and all chunks of one stream share."""

    id: str
    created: int
    model: str
    fingerprint: str
