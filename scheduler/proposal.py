"""Where drafts come from, as the scheduler sees it: from published history only."""

from dataclasses import dataclass
from typing import Protocol

from scheduler.plan import DeviceDraft, HostDraft
from scheduler.request import ProposerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """Published facts that a proposer may use. `draft_rows` is the draft's cache ledger: rows that
    are, by identity, a prefix of `tokens`. `row_budget` bounds the draft rows of this round."""

    request: int
    tokens: tuple[int, ...]
    draft_rows: int
    row_budget: int


class Proposer(Protocol):
    """One source of drafts."""

    kind: ProposerKind

    def propose(self, view: RequestView, k: int) -> HostDraft | DeviceDraft | None:
        """Up to `k` drafts for the next round, or how to make them; None for none."""
        ...

    def release(self, request: int) -> None:
        """Forget the request."""
        ...
