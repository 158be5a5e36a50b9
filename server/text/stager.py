"""Turns staged tokens into text and cuts at stop strings; knows no engine and no HTTP.

Called off the event loop with states it never changes, so that a retry gives the same again.
"""

from dataclasses import dataclass

from scheduler.request import StagedText
from server.text.pieces import Pieces
from server.text.stops import Match, StopMatcher
from server.text.utf8 import decode_more

__all__ = ["Stager", "TextRules", "TextState"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRules:
    """What one request wants of its text.

    A stop string counts from the token after the first `min_tokens` on.
    """

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special: bool = True
    min_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextState:
    """`pending` are bytes of an unfinished character, `progress` the stop automaton's state,
    `tokens` how many were staged."""

    pending: bytes
    progress: tuple[int, ...]
    tokens: int


class Stager:
    """`scheduler.request.TextStager` for one request, shared by its choices."""

    __slots__ = ("_matcher", "_pieces", "_rules")

    def __init__(self, pieces: Pieces, rules: TextRules) -> None:
        self._pieces = pieces
        self._rules = rules
        self._matcher = StopMatcher(rules.stops)

    def start(self) -> TextState:
        """The state before the first output token."""
        return TextState(pending=b"", progress=self._matcher.start(), tokens=0)

    def stage(self, state: object, token_ids: tuple[int, ...], *, final: bool) -> StagedText:
        """Text that `token_ids` add after `state`, cut at the first stop string that counts.

        `final` flushes: an unfinished character becomes U+FFFD and nothing is held back. Raises
        TypeError for a state of another kind.
        """
        if not isinstance(state, TextState):
            raise TypeError(f"not a text state: {type(state).__name__}")
        run = _Run(shown=self._matcher.held(state.progress), state=state)
        for index, token in enumerate(token_ids):
            match = self._take(run, self._bytes(token), 1)
            if match is not None:
                return self._stopped(run, match, index + 1)
        if final:
            match = self._take(run, None, 0)
            if match is not None:
                return self._stopped(run, match, len(token_ids))
        held = 0 if final else len(self._matcher.held(run.state.progress))
        text = run.shown[: len(run.shown) - held]
        return StagedText(state=run.state, text=text, kept=len(token_ids), stop=None)

    def _take(self, run: "_Run", piece: bytes | None, tokens: int) -> Match | None:
        """Add one token's bytes to the run (None: flush); a match's end counts from its start."""
        before = run.state
        text, pending = decode_more(before.pending, piece or b"", final=piece is None)
        count = before.tokens + tokens
        progress, match = self._matcher.feed(
            before.progress, text, counts=count > self._rules.min_tokens
        )
        run.state = TextState(pending=pending, progress=progress, tokens=count)
        start = len(run.shown)
        run.shown += text
        return None if match is None else Match(stop=match.stop, end=start + match.end)

    def _stopped(self, run: "_Run", match: Match, kept: int) -> StagedText:
        cut = match.end if self._rules.include_stop else match.end - len(match.stop)
        return StagedText(state=run.state, text=run.shown[:cut], kept=kept, stop=match.stop)

    def _bytes(self, token: int) -> bytes:
        if self._rules.skip_special and token in self._pieces.special:
            return b""
        return self._pieces.of(token)


@dataclass(slots=True, kw_only=True)
class _Run:
    """One call of `stage` on its way: the text since what was shown last, and the state so far."""

    shown: str
    state: TextState
