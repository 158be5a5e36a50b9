"""Drafts by the draft model, inside the round: decides only whether its cache catches up first."""

from scheduler.plan import DeviceDraft
from scheduler.proposal import RequestView
from scheduler.request import ProposerKind


class DraftModelProposer:
    """Asks for k draft steps; or, when the cache lags by more than a round may add, for rows."""

    kind = ProposerKind.DRAFT_MODEL

    def propose(self, view: RequestView, k: int) -> DeviceDraft | None:
        """`depth` k, or 0 with as many catch-up rows as the budget allows; None without any."""
        pending = len(view.tokens) - view.draft_rows
        if view.row_budget < 1:
            return None
        if pending > view.row_budget:
            return DeviceDraft(depth=0, rows=view.draft_rows, catch_up=view.row_budget)
        return DeviceDraft(
            depth=k,
            rows=view.draft_rows,
            catch_up=pending,
            min_confidence=view.min_confidence,
        )

    def release(self, request: int) -> None:
        """It keeps nothing about a request: the ledger of draft rows is the scheduler's."""
