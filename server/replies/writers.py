"""Writes the choices of both endpoints, whole or as chunks; knows no connection."""

from typing import Any, Protocol

from scheduler.events import EmittedToken, Finish
from scheduler.request import FinishReason
from server.replies.logprobs import chat_logprobs, legacy_logprobs
from server.replies.piece import Piece, ReplyOptions
from server.replies.spelling import OffsetCounter
from server.text.pieces import Pieces

__all__ = ["ChatWriter", "CompletionWriter", "Writer"]

Json = dict[str, Any]
_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


class Writer(Protocol):
    """One endpoint's way to write a reply. `kind` and `chunk_kind` go into the field object."""

    @property
    def prefix(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def chunk_kind(self) -> str: ...
    def whole(self, piece: Piece) -> Json:
        """The choice in a body."""
        ...

    def part(self, piece: Piece) -> Json:
        """The choice in a chunk."""
        ...

    def shared(self, options: ReplyOptions) -> Json:
        """Fields beside the choices that only some calls want: of a body or of a first chunk."""
        ...


class CompletionWriter:
    """Choices of /v1/completions. Pieces of one choice must come in order."""

    prefix = "cmpl"
    kind = chunk_kind = "text_completion"

    def __init__(self, options: ReplyOptions, pieces: Pieces) -> None:
        self._options = options
        self._pieces = pieces
        self._offsets: dict[int, OffsetCounter] = {}

    def whole(self, piece: Piece) -> Json:
        """The choice in a body."""
        return self.part(piece)

    def part(self, piece: Piece) -> Json:
        """The choice in a chunk: the same form, with the echoed prompt before the first text."""
        options = self._options
        prompt = options.prompt_of(piece.index)
        echoed = options.echo[prompt] if options.echo is not None and piece.first else ""
        choice: Json = {"index": piece.index, "text": echoed + piece.text, "logprobs": None}
        if options.logprobs:
            choice["logprobs"] = legacy_logprobs(
                piece.tokens, self._pieces, self._offset(piece.index), options.top_logprobs
            )
        choice |= _ending(piece.finish, options) | _extras(piece.tokens, options)
        if options.token_ids and piece.first:
            choice["prompt_token_ids"] = options.prompts[prompt]
        return choice

    def shared(self, options: ReplyOptions) -> Json:  # noqa: ARG002 - the other endpoint's need
        """Nothing."""
        return {}

    def _offset(self, index: int) -> OffsetCounter:
        if index not in self._offsets:
            skip = self._options.skip_special
            self._offsets[index] = OffsetCounter(self._pieces, 0, skip_special=skip)
        return self._offsets[index]


class ChatWriter:
    """Choices of /v1/chat/completions."""

    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, options: ReplyOptions, pieces: Pieces) -> None:
        self._options = options
        self._pieces = pieces

    def whole(self, piece: Piece) -> Json:
        """The choice in a body."""
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        return self._choice(piece, {"message": message})

    def part(self, piece: Piece) -> Json:
        """The choice in a chunk; its first one names the role."""
        delta = {"role": "assistant"} if piece.first else {}
        return self._choice(piece, {"delta": delta | {"content": piece.text}})

    def shared(self, options: ReplyOptions) -> Json:
        """The prompt's ids."""
        return {"prompt_token_ids": options.prompts[0]} if options.token_ids else {}

    def _choice(self, piece: Piece, content: Json) -> Json:
        options = self._options
        choice = {"index": piece.index, **content, "logprobs": None}
        if options.logprobs:
            choice["logprobs"] = chat_logprobs(piece.tokens, self._pieces, options.top_logprobs)
        return choice | _ending(piece.finish, options) | _extras(piece.tokens, options)


def _ending(finish: Finish | None, options: ReplyOptions) -> Json:
    if finish is None:
        return {"finish_reason": None, "stop_reason": None}
    stop = finish.stop
    shown = stop if isinstance(stop, str) or stop in options.own_stops else None
    return {"finish_reason": _REASONS[finish.reason], "stop_reason": shown}


def _extras(tokens: tuple[EmittedToken, ...], options: ReplyOptions) -> Json:
    extras: Json = {}
    if options.token_ids:
        extras["token_ids"] = [token.token for token in tokens]
    if options.provenance:
        extras["provenance"] = [_provenance(token) for token in tokens]
    return extras


def _provenance(token: EmittedToken) -> Json:
    return {
        "origin": token.origin.value,
        "position": token.position,
        "p": token.target_prob,
        "q": token.draft_prob,
    }
