"""Keeps a log in a bounded number of files of bounded size; knows nothing of what is in them."""

import errno
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path

__all__ = ["RotatingFile"]


class RotatingFile:
    """Appends blocks of whole lines to `path`; `path.1` is the file before it, and so on.

    A file ends before the block that would make it longer than `limit` bytes, and `kept` files
    remain, the open one included. So the log takes `limit * kept` bytes at most, unless a block
    and the header are longer than `limit` by themselves. `header` gives the first bytes of file
    number n, counted from 0. A file that is there already is the first to be moved aside. Every
    method but `close` raises OSError when the disk refuses.
    """

    def __init__(
        self, path: Path, *, limit: int, kept: int, header: Callable[[int], bytes]
    ) -> None:
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        self._path = path
        self._limit = limit
        self._kept = kept
        self._header = header
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
        file = FileIO(self._path, "w")
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
        extra = self._kept
        while self._older(extra).exists():
            self._older(extra).unlink()
            extra += 1
        for number in range(self._kept - 2, -1, -1):
            if self._older(number).exists():
                self._older(number).replace(self._older(number + 1))

    def _older(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path
