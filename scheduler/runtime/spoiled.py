"""Remembers blocks with K/V rows that may not be finite, and zeroes them before others read them.

A masked row is multiplied by zero, which a NaN survives. A round that broke is run again, and must
find the rows that it started from: so it is the next owner's round that zeroes them, or the same
request's next generation, never the round that wrote them. It knows blocks and groups, nothing of
laws.
"""

from scheduler.plan import Group, Role
from scheduler.runtime.timed import TimedForward


class SpoiledBlocks:
    """The blocks of one model, each with the (request, generation) that may have spoiled it."""

    def __init__(self, forward: TimedForward, role: Role) -> None:
        self._forward = forward
        self._role = role
        self._by: dict[int, tuple[int, int]] = {}

    def note(self, group: Group) -> None:
        """Rows that `group` wrote past the committed ones may not be finite."""
        owner = (group.request, group.generation)
        self._by.update(dict.fromkeys(group.blocks.get(self._role, ()), owner))

    def clean(self, group: Group, first: int) -> None:
        """Zero the rows of `group` from `first` on, its first that is not committed, if another
        request or generation spoiled any of its blocks."""
        if not self._by:
            return
        blocks = group.blocks.get(self._role, ())
        owner = (group.request, group.generation)
        if all(self._by.get(block, owner) == owner for block in blocks):
            return
        self._forward.clear_blocks(blocks, first)
        for block in blocks:
            self._by.pop(block, None)
