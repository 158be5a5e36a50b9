"""The two forms of logprobs: the legacy columns of completions and the rows of chat."""

from collections.abc import Sequence
from typing import Any

from scheduler.events import EmittedToken
from server.replies.spelling import OffsetCounter, finite, spell
from server.text.pieces import Pieces

__all__ = ["chat_logprobs", "legacy_logprobs"]


def legacy_logprobs(
    tokens: Sequence[EmittedToken], pieces: Pieces, offsets: OffsetCounter, wanted: int
) -> dict[str, list[Any]]:
    """Columns with one entry a token; each table holds the `wanted` best and the token itself."""
    columns: dict[str, list[Any]] = {
        "tokens": [],
        "token_logprobs": [],
        "top_logprobs": [],
        "text_offset": [],
    }
    for token in tokens:
        spelled = spell(pieces.of(token.token))
        own = _own(token)
        columns["tokens"].append(spelled)
        columns["token_logprobs"].append(own)
        columns["top_logprobs"].append(_table(token, pieces, wanted) | {spelled: own})
        columns["text_offset"].append(offsets.advance(token.token))
    return columns


def chat_logprobs(tokens: Sequence[EmittedToken], pieces: Pieces, wanted: int) -> dict[str, Any]:
    """One row a token, with its bytes and the `wanted` best alternatives."""
    rows = []
    for token in tokens:
        best = token.logprobs.top[:wanted] if token.logprobs else ()
        row = _row(token.token, _own(token), pieces)
        row["top_logprobs"] = [_row(other, finite(value), pieces) for other, value in best]
        rows.append(row)
    return {"content": rows, "refusal": None}


def _own(token: EmittedToken) -> float:
    return finite(token.logprobs.logprob) if token.logprobs else 0.0


def _table(token: EmittedToken, pieces: Pieces, wanted: int) -> dict[str, float]:
    # Two ids may be spelled alike; the better one, which comes first, keeps the name.
    table: dict[str, float] = {}
    for other, value in token.logprobs.top[:wanted] if token.logprobs else ():
        table.setdefault(spell(pieces.of(other)), finite(value))
    return table


def _row(token: int, logprob: float, pieces: Pieces) -> dict[str, Any]:
    piece = pieces.of(token)
    return {"token": spell(piece), "logprob": logprob, "bytes": list(piece)}
