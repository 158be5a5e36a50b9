"""How a single token is written in logprobs; knows only its bytes."""

from server.text.pieces import Pieces
from server.text.utf8 import decode_more

__all__ = ["LOWEST_LOGPROB", "OffsetCounter", "finite", "spell"]

# What the protocol writes for a token that the model excludes.
LOWEST_LOGPROB = -9999.0


def spell(piece: bytes) -> str:
    r"""The token's text, or `bytes:\xNN...` where it is a part of a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def finite(logprob: float) -> float:
    """A number that JSON has: no infinity, no NaN."""
    return max(LOWEST_LOGPROB, logprob)


class OffsetCounter:
    """Where in the text of one choice its next token begins, in characters."""

    __slots__ = ("_offset", "_pending", "_pieces", "_skip_special")

    def __init__(self, pieces: Pieces, start: int, *, skip_special: bool) -> None:
        self._pieces = pieces
        self._offset = start
        self._pending = b""
        self._skip_special = skip_special

    def advance(self, token: int) -> int:
        """The offset of `token`; the next call's is behind it."""
        start = self._offset
        if not (self._skip_special and token in self._pieces.special):
            piece = self._pieces.of(token)
            text, self._pending = decode_more(self._pending, piece, final=False)
            self._offset += len(text)
        return start
