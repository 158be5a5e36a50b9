"""How many requests may share a round, once rounds of many broke that ran well one by one.

What breaks by its size, such as a device without the memory for a round of all, would break again
and again: each request succeeds alone, and the full round is tried anew. Counts requests; knows
nothing of who they are.
"""

from dataclasses import dataclass, replace

_SOUND_ROUNDS = 64
"""Sound rounds after which a break that did not come again was chance, and after which more
requests than the limit are tried."""
_MOST_SOUND_ROUNDS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bound:
    """`suspicion` is the number of rounds for which one break is remembered, `patience` that of
    sound rounds until the limit is doubled, `sound` those so far."""

    limit: int | None = None
    suspicion: int = 0
    patience: int = _SOUND_ROUNDS
    sound: int = 0


class Company:
    """A second break soon after a first one halves what may share a round; sound rounds double it,
    after twice as many each time that more proves too much. `most` requests run at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bound = self._before = _Bound()

    @property
    def limit(self) -> int | None:
        """Requests that may share the next round; None for any number."""
        return self._bound.limit

    def broke(self, requests: int) -> None:
        """A round of so many, two or more, broke; nothing says for whose sake."""
        bound = self._before = self._bound
        if bound.limit is None and not bound.suspicion:
            self._bound = replace(bound, suspicion=_SOUND_ROUNDS)
            return
        patience = _SOUND_ROUNDS
        if bound.limit is not None:
            patience = min(2 * bound.patience, _MOST_SOUND_ROUNDS)
        self._bound = _Bound(limit=requests // 2, patience=patience)

    def explained(self) -> None:
        """The last break was for the sake of one request, which broke alone too and has ended."""
        self._bound = self._before

    def ran(self, requests: int) -> None:
        """A round of so many came back. Those of half the limit or less tell nothing of it."""
        bound = self._bound
        if bound.limit is None:
            if requests > 1 and bound.suspicion:
                self._bound = replace(bound, suspicion=bound.suspicion - 1)
        elif 2 * requests > bound.limit:
            self._bound = self._widened(replace(bound, sound=bound.sound + 1))
        if requests > 1:
            self._before = self._bound

    def _widened(self, bound: _Bound) -> _Bound:
        if bound.limit is None or bound.sound < bound.patience:
            return bound
        if bound.limit >= self._most:
            return _Bound()
        return replace(bound, limit=2 * bound.limit, sound=0)
