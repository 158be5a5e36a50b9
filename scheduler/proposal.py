"""Where drafts come from, as the scheduler sees it: from published history only."""

from dataclasses import dataclass
from typing import Protocol

from scheduler.plan import DeviceDraft, HostDraft
from scheduler.request import ProposerKind
from scheduler.tokens import TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """Published facts that a proposer may use. `draft_rows` is the draft's cache ledger: rows that
    are, by identity, a prefix of `tokens`. `row_budget` bounds the draft rows of this round.
    `min_confidence` is for the proposer to pass on, if its drafts are not made yet."""

    request: int
    tokens: TokenIds
    draft_rows: int
    row_budget: int
    min_confidence: float = 0.0


class Proposer(Protocol):
    """One source of drafts, in ids of the target's event space.

    A drafter of another vocabulary translates by text before it answers: what it then proposes are
    `HostDraft`s, certain of their tokens, so that no row of its own space meets a target row
    (contract section 9).
    """

    kind: ProposerKind

    def propose(self, view: RequestView, k: int) -> HostDraft | DeviceDraft | None:
        """Up to `k` drafts for the next round, or how to make them; None for none."""
        ...

    def release(self, request: int) -> None:
        """Forget the request."""
        ...
