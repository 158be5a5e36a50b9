"""Keeps a log in a bounded number of files of bounded size; knows nothing of what is in them."""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import FileIO
from pathlib import Path

__all__ = ["RotatingFile"]

_LONGEST_LOOK = 1 << 12
_open_private = partial(os.open, mode=0o600)


class RotatingFile:
    """Appends blocks of whole lines to `path`; `path.1` is the file before it, and so on.

    A file ends before the block that would make it longer than `limit` bytes, and `kept` files
    remain, the open one included. So the log takes `limit * kept` bytes at most, unless a block
    and the header are longer than `limit` by themselves. `header` gives the first bytes of file
    number n, counted from 0. A file that is there already counts as the one before, so it is the
    first to be moved aside, and goes at once when only one is kept. `own` says by its first bytes
    whether a file may be moved or go; one that may not, and is not empty, stops everything before
    any file is touched. Only this user may read what is written. Every method but `close` raises
    OSError when the disk refuses or a file is not the log's own.
    """

    def __init__(
        self,
        path: Path,
        *,
        limit: int,
        kept: int,
        header: Callable[[int], bytes],
        own: Callable[[bytes], bool],
    ) -> None:
        self._path = path
        self._limit = limit
        self._kept = kept
        self._header = header
        self._own = own
        self._number = 0
        self._size = 0
        self._file = self._begin()

    def write(self, block: bytes) -> None:
        """Append `block`, all of it to one file."""
        if self._size + len(block) > self._limit:
            self._file.close()
            self._number += 1
            self._file = self._begin()
        self._append(self._file, block)

    def close(self) -> None:
        """Let go of the file. What was written is with the system already."""
        with suppress(OSError):
            self._file.close()

    def _begin(self) -> FileIO:
        self._move_aside()
        file = FileIO(self._path, "x", opener=_open_private)
        self._size = 0
        self._append(file, self._header(self._number))
        return file

    def _append(self, file: FileIO, block: bytes) -> None:
        left = memoryview(block)
        while left:
            left = left[file.write(left) or 0 :]
        self._size += len(block)

    def _move_aside(self) -> None:
        """Number every older file one higher; what would be one too many goes."""
        end = self._kept
        while self._older(end).exists():
            end += 1
        for number in range(end):
            self._check_own(self._older(number))
        for number in range(self._kept, end):
            self._older(number).unlink()
        if self._kept == 1:
            self._path.unlink(missing_ok=True)
        for number in range(self._kept - 2, -1, -1):
            if self._older(number).exists():
                self._older(number).replace(self._older(number + 1))

    def _check_own(self, path: Path) -> None:
        """Raise OSError when what stands at `path` is not for the log to move or to delete."""
        if not path.exists():
            return
        if not path.is_file():
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        with path.open("rb") as file:
            first = file.readline(_LONGEST_LOOK)
        if first and not self._own(first):
            raise OSError(errno.EEXIST, "there already, and no file of this log", str(path))

    def _older(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path
