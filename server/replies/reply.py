"""One call's answer: the whole body, or the bytes of its stream."""

from collections.abc import AsyncGenerator
from typing import Any

from pydantic_core import to_json

from scheduler.events import EmittedToken, Finish, OutputEvent, RequestStats
from server.errors import ApiError, envelope
from server.flow import Flow
from server.replies.piece import Envelope, Piece, ReplyOptions
from server.replies.usage import metrics_block, running_usage, usage_block
from server.replies.writers import Writer

__all__ = ["DONE", "Reply"]

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"


class Reply:
    """Reads a flow and writes it in one endpoint's form. Used once, by `body` or `stream`."""

    def __init__(
        self, flow: Flow, writer: Writer, options: ReplyOptions, head: Envelope, k_max: int
    ) -> None:
        self._flow = flow
        self._writer = writer
        self._options = options
        self._head = head
        self._k_max = k_max
        self._stats: dict[int, RequestStats] = {}
        self._started: set[int] = set()
        self._published = 0

    async def body(self) -> bytes:
        """The whole answer as JSON. Raises ApiError if any choice fails."""
        choices: dict[int, _Whole] = {}
        while (found := await self._flow.next()) is not None:
            index, event = found
            choices.setdefault(index, _Whole()).add(event)
            self._note(index, event)
        whole = [choices[index].piece(index) for index in sorted(choices)]
        return to_json(
            self._headed(self._writer.kind)
            | {"choices": [self._writer.whole(piece) for piece in whole]}
            | {"usage": usage_block(self._in_order(), self._options)}
            | self._writer.shared(self._options)
            | self._metrics()
        )

    async def first(self) -> bytes:
        """The first chunk, once a token exists. Raises ApiError if there never is one."""
        return b"".join(await self._next_chunks() or ())

    async def stream(self) -> AsyncGenerator[bytes]:
        """What follows the first chunk, to the end mark. An error becomes an event."""
        try:
            while (chunks := await self._next_chunks()) is not None:
                for chunk in chunks:
                    yield chunk
            if self._options.include_usage:
                yield self._usage_chunk()
        except ApiError as problem:
            yield b"data: " + to_json(envelope(problem.problem)) + b"\n\n"
        yield DONE

    async def _next_chunks(self) -> list[bytes] | None:
        """The chunks of the next event: none when it has nothing to show; None at the end."""
        found = await self._flow.next()
        if found is None:
            return None
        index, event = found
        first = index not in self._started
        self._started.add(index)
        self._note(index, event)
        piece = Piece(
            index=index, text=event.text, tokens=event.tokens, finish=event.finish, first=first
        )
        return [self._chunk(piece)] if self._shows(piece) else []

    def _shows(self, piece: Piece) -> bool:
        options = self._options
        details = options.logprobs or options.token_ids or options.provenance
        return bool(piece.first or piece.text or piece.finish or (details and piece.tokens))

    def _chunk(self, piece: Piece) -> bytes:
        options = self._options
        chunk = self._headed(self._writer.chunk_kind) | {"choices": [self._writer.part(piece)]}
        if options.continuous_usage:
            chunk["usage"] = running_usage(options, self._published)
        elif options.include_usage:
            chunk["usage"] = None
        if piece.first:
            chunk |= self._writer.shared(options)
        if piece.finish is not None and self._finished and not options.include_usage:
            chunk |= self._metrics()
        return b"data: " + to_json(chunk) + b"\n\n"

    def _usage_chunk(self) -> bytes:
        usage = usage_block(self._in_order(), self._options)
        chunk = self._headed(self._writer.chunk_kind) | {"choices": [], "usage": usage}
        return b"data: " + to_json(chunk | self._metrics()) + b"\n\n"

    def _headed(self, kind: str) -> Json:
        head = self._head
        return {
            "id": head.id,
            "object": kind,
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
        }

    def _note(self, index: int, event: OutputEvent) -> None:
        self._published += len(event.tokens)
        if event.finish is not None:
            self._stats[index] = event.finish.stats

    @property
    def _finished(self) -> bool:
        return len(self._stats) == len(self._options.prompts) * self._options.choices

    def _in_order(self) -> list[RequestStats]:
        return [self._stats[index] for index in sorted(self._stats)]

    def _metrics(self) -> Json:
        return {"metrics": metrics_block(self._in_order(), self._options, self._k_max)}


class _Whole:
    """One choice as it is put together."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._tokens: list[EmittedToken] = []
        self._finish: Finish | None = None

    def add(self, event: OutputEvent) -> None:
        self._texts.append(event.text)
        self._tokens.extend(event.tokens)
        self._finish = event.finish

    def piece(self, index: int) -> Piece:
        return Piece(
            index=index,
            text="".join(self._texts),
            tokens=tuple(self._tokens),
            finish=self._finish,
            first=True,
        )
