"""The bytes that each token id stands for; knows no request and no order of tokens.

A continuation follows a prompt, so no piece loses its leading space (a tokenizer's own decode
strips the first one of a sentencepiece text).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler.errors import ModelRefused

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["Pieces", "byte_alphabet", "read_pieces"]

_WORD_MARK = "\u2581"
_SENTENCEPIECE = frozenset({"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """`table[id]` is the UTF-8 (or a part of a character) of a token; `special` are control ids."""

    table: tuple[bytes, ...]
    special: frozenset[int]

    def of(self, token: int) -> bytes:
        """The bytes of `token`; none for an id in the padded tail of the vocabulary."""
        return self.table[token] if token < len(self.table) else b""

    def join(self, tokens: Iterable[int], *, skip_special: bool) -> str:
        """The text of `tokens`, with U+FFFD for what is no UTF-8."""
        kept = (t for t in tokens if not (skip_special and t in self.special))
        return b"".join(map(self.of, kept)).decode("utf-8", "replace")


def read_pieces(tokenizer: "PreTrainedTokenizerFast") -> Pieces:
    """The table of `tokenizer`. Raises ModelRefused for a decoder that is not known."""
    backend = tokenizer.backend_tokenizer
    kinds = _decoder_kinds(json.loads(backend.decoder.__getstate__()) if backend.decoder else {})
    added = backend.get_added_tokens_decoder()
    names = backend.get_vocab(with_added_tokens=True)
    table = [b""] * (max(names.values(), default=-1) + 1)
    alphabet = _alphabet_of(kinds)
    for name, token in names.items():
        table[token] = _bytes_of(name, alphabet)
    for token, entry in added.items():
        table[token] = entry.content.encode()
    special = frozenset(token for token, entry in added.items() if entry.special)
    return Pieces(table=tuple(table), special=special)


def byte_alphabet() -> dict[str, int]:
    """The printable character that byte-level BPE writes for each byte, inverted.

    The printable bytes of Latin-1 stand for themselves, the others for U+0100 onward in order
    (GPT-2's table).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    named = {chr(byte): byte for byte in printable}
    return named | {chr(0x100 + index): byte for index, byte in enumerate(others)}


def _decoder_kinds(decoder: Mapping[str, object]) -> frozenset[str]:
    inner = decoder.get("decoders")
    if isinstance(inner, list):
        return frozenset().union(*map(_decoder_kinds, inner))
    return frozenset({str(decoder.get("type"))})


def _alphabet_of(kinds: frozenset[str]) -> Mapping[str, int] | None:
    """The byte alphabet, or None for sentencepiece's spelling."""
    if "ByteLevel" in kinds:
        return byte_alphabet()
    if kinds <= _SENTENCEPIECE:
        return None
    raise ModelRefused(f"tokenizer: its decoder ({', '.join(sorted(kinds))}) is not supported")


def _bytes_of(name: str, alphabet: Mapping[str, int] | None) -> bytes:
    if alphabet is None:
        return _sentencepiece_bytes(name)
    if all(char in alphabet for char in name):
        return bytes(alphabet[char] for char in name)
    return name.encode()


def _sentencepiece_bytes(name: str) -> bytes:
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return bytes.fromhex(name[3:5])
    return name.replace(_WORD_MARK, " ").encode()
