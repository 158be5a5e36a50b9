"""Sequences of token ids that grow at their end, round by round, without being copied.

A request's tokens are looked at by state, plan and commit in every round. As tuples they would be
copied and compared whole each time, for contexts of thousands of tokens and a few new ones.
"""

from collections.abc import Iterator
from typing import Protocol, overload


class TokenIds(Protocol):
    """What is read of token ids; a tuple has it too. Slices are tuples."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def __iter__(self) -> Iterator[int]:
        """All of them, in order."""
        ...

    @overload
    def __getitem__(self, index: int, /) -> int: ...

    @overload
    def __getitem__(self, index: slice, /) -> tuple[int, ...]: ...


class Tokens:
    """The first `length` ids of a store that it shares with what it grew from and into.

    Never changes: ids are only ever put behind the last of a store, and no view reaches past its
    own length. Equal to a tuple of the same ids, and pickled as one.
    """

    __slots__ = ("_length", "_store")

    def __init__(self, store: list[int], length: int) -> None:
        self._store = store
        self._length = length

    def __len__(self) -> int:
        """How many there are."""
        return self._length

    @overload
    def __getitem__(self, index: int, /) -> int: ...

    @overload
    def __getitem__(self, index: slice, /) -> tuple[int, ...]: ...

    def __getitem__(self, index: int | slice, /) -> int | tuple[int, ...]:
        """One id, or a tuple of some. Raises IndexError."""
        if isinstance(index, slice):
            first, last, step = index.indices(self._length)
            if step == 1:
                return tuple(self._store[first:last])
            return tuple(self._store[place] for place in range(first, last, step))
        return self._store[range(self._length)[index]]

    def __iter__(self) -> Iterator[int]:
        """All of them, in order."""
        return iter(self[:])

    def __add__(self, other: tuple[int, ...]) -> tuple[int, ...]:
        """A tuple of both, copied; `extended` is what grows them."""
        return self[:] + other

    def __eq__(self, other: object) -> bool:
        """Whether the ids are the same; those of one store are."""
        if isinstance(other, Tokens):
            if self._store is other._store:
                return self._length == other._length
            return self[:] == other[:]
        return self[:] == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        """That of the tuple."""
        return hash(self[:])

    def __repr__(self) -> str:
        """As the tuple."""
        return repr(self[:])

    def __reduce__(self) -> tuple[type, tuple[tuple[int, ...]]]:
        """A copy is a tuple of its own."""
        return tuple, (self[:],)

    def extended(self, token_ids: tuple[int, ...]) -> "Tokens":
        """These, then `token_ids`. In the store itself, unless something else stands there."""
        end = self._length + len(token_ids)
        if len(self._store) == self._length:
            self._store.extend(token_ids)
        elif tuple(self._store[self._length : end]) != token_ids:
            return Tokens([*self._store[: self._length], *token_ids], end)
        return Tokens(self._store, end)

    def stands_in(self, store: list[int]) -> bool:
        """Whether these are ids of that very store."""
        return self._store is store

    def continues(self, start: TokenIds, token_ids: tuple[int, ...]) -> bool:
        """Whether these are `start`, then `token_ids`: every id of both, but those of a store that
        both share are the same ones."""
        shared = isinstance(start, Tokens) and start.stands_in(self._store)
        if len(self) != len(start) + len(token_ids) or self[len(start) :] != token_ids:
            return False
        return shared or self[: len(start)] == start[:]


def tokens_of(token_ids: TokenIds) -> Tokens:
    """The same ids, ready to grow; a tuple is copied."""
    if isinstance(token_ids, Tokens):
        return token_ids
    return Tokens(list(token_ids), len(token_ids))
