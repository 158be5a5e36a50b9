"""Decodes UTF-8 that arrives in pieces; keeps at most three bytes back. Pure."""

import codecs

__all__ = ["decode_more"]


def decode_more(pending: bytes, more: bytes, *, final: bool) -> tuple[str, bytes]:
    """The characters that `more` completes after `pending`, and the bytes still incomplete.

    Bytes that cannot become a character give U+FFFD, one a maximal part (Unicode 15, section
    3.9, as in WHATWG's decoder). `final` leaves nothing pending.
    """
    data = pending + more
    if data.isascii():
        return data.decode("ascii"), b""
    text, used = codecs.utf_8_decode(data, "replace", final)
    return text, data[used:]
