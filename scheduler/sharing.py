"""Shares rows out where fewer are left than are wanted: all get as equally much as there is.

Whoever is last by some order of its own would be last for good: what it is denied makes it lag.
"""

from collections.abc import Mapping


def level(wanted: Mapping[int, int], rows: int) -> int:
    """The most that each may have of what it wants, so that all get along with `rows`."""
    found, left = 0, rows
    waiting = [k for k in wanted.values() if k > 0]
    while waiting and left >= len(waiting):
        left -= len(waiting)
        found += 1
        waiting = [k for k in waiting if k > found]
    return found


class Turns:
    """Remembers who had the last row that did not go round."""

    def __init__(self) -> None:
        self._last = -1

    def share(self, wanted: Mapping[int, int], rows: int) -> dict[int, int]:
        """Rows by request: what it wants, or as much of it as all can have of theirs.

        The rows that are left over then go one each to those who want more, in turn by number.
        """
        if sum(wanted.values()) <= rows:
            return dict(wanted)
        most = level(wanted, rows)
        given = {each: min(k, most) for each, k in wanted.items()}
        more = sorted(each for each, k in wanted.items() if k > most)
        turn = [each for each in more if each > self._last]
        turn += [each for each in more if each <= self._last]
        for each in turn[: max(rows - sum(given.values()), 0)]:
            given[each] += 1
            self._last = each
        return given
