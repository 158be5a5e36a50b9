"""Says when a round needs no thought and has the K of the one before. Knows loads, no costs.

Choosing K takes its share of a small model's round. Where drafts do not pay, choosing none should
cost nothing; where they do, what was settled on is good for a few rounds.
"""

from collections.abc import Mapping

from scheduler.controller import LoadView

_AWAKE_ROUNDS = 8
"""Plain rounds in a row after which only every few rounds are thought about."""
_DOZE_ROUNDS = 3
_FALLEN = 0.875
"""The share of a load that ends that at once when less is left; one of many comes and goes."""
_NAP_ROUNDS = 3
"""Rounds that are drafted as the one before them, when that one was too and nobody came or went."""


class Rest:
    """`last` is always what was settled on in the last round that was thought about: K by request,
    of those whose K is free and that have room for any."""

    def __init__(self) -> None:
        self._plain_rounds = 0
        self._doze = 0
        self._nap = 0

    def lengths(self, view: LoadView, last: Mapping[int, int]) -> Mapping[int, int] | None:
        """K of all requests for a round that needs no thought; None for one that does."""
        if self._dozes(view, last):
            return dict.fromkeys((each.request for each in view.requests), 0)
        if self._naps(view, last):
            return {each.request: min(last[each.request], each.room) for each in view.requests}
        return None

    def settle(self, *, drafts: bool, same: bool) -> None:
        """Somebody `drafts` in the round that was thought about, or nobody does; `same`: it was
        settled on as before. Probes are another matter."""
        self._nap = _NAP_ROUNDS if drafts and same else 0

    def count(self, *, plain: bool) -> None:
        """The round that was thought about is `plain`, or drafts, if only for a probe."""
        self._plain_rounds = self._plain_rounds + 1 if plain else 0
        self._doze = _DOZE_ROUNDS if self._plain_rounds >= _AWAKE_ROUNDS else 0

    def _dozes(self, view: LoadView, last: Mapping[int, int]) -> bool:
        """Plain decoding goes on. Ends at once when the load falls or asks for more."""
        if not self._doze or len(view.requests) < _FALLEN * len(last):
            return False
        self._doze -= 1
        return all(each.asked is None and each.tpot is None for each in view.requests)

    def _naps(self, view: LoadView, last: Mapping[int, int]) -> bool:
        """Drafting goes on. Ends at once when anybody comes, goes or prefills, or must not or will
        not be drafted for freely, and when rows are fewer."""
        if not self._nap or view.prefill_rows or len(view.requests) != len(last):
            return False
        if sum(last.values()) > view.spare:
            return False
        self._nap -= 1
        return all(
            each.request in last
            and each.asked is None
            and each.tpot is None
            and not each.shared_seed
            for each in view.requests
        )
