"""Logit rows that outlive their round: p_1 of the retained layout (contract section 4).

A row belongs to one generation of one request. It knows nothing of laws or of blocks.
"""

from collections.abc import Collection

from torch import Tensor

from scheduler.errors import CommitRejected
from scheduler.plan import Group


class RetainedRows:
    """At most one raw logit row [V] a request."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, Tensor]] = {}

    def keep_only(self, requests: Collection[int]) -> None:
        """Drop the rows of all other requests."""
        self._rows = {r: row for r, row in self._rows.items() if r in requests}

    def hold(self, group: Group, row: Tensor) -> None:
        """Keep `row` [V] for the generation that publishing this group's append begins."""
        # A view would keep the logits of the whole call.
        self._rows[group.request] = (group.generation + 1, row.clone())

    def row(self, group: Group) -> Tensor:
        """The raw p_1 [V] of `group`. Raises CommitRejected when another generation's row, or
        none, is held."""
        generation, row = self._rows.get(group.request, (None, None))
        if row is None or generation != group.generation:
            raise CommitRejected(
                f"stale start: request {group.request}: retained row of generation {generation}, "
                f"expected {group.generation}"
            )
        return row
