"""Chooses what each request of a round drafts: the controller's K, cut to rows and blocks.

Everything here is settled from published history before the plan is made (contract section 3).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler.book import Book
from scheduler.controller import Controller, DraftView, LoadView
from scheduler.entry import Entry, draws, policy_of
from scheduler.plan import DeviceDraft, HostDraft, Role
from scheduler.proposal import Proposer, RequestView
from scheduler.request import ProposerKind
from scheduler.state import RequestState
from scheduler.stats import Choice, Decision, Reason


@dataclass(frozen=True, slots=True)
class Share:
    """Target rows given to one request in the coming round, before its drafts are chosen.

    Rows that reach the frontier emit; in the retained layout their logits are retained, and the
    request emits in a round that gives it no rows.
    """

    entry: Entry
    state: RequestState
    rows: int
    emits: bool
    retains: bool

    @property
    def request(self) -> int:
        """The request's id."""
        return self.entry.request.request_id


class Drafts:
    """The drafts of one round after another. `decision` says how the last ones were chosen."""

    def __init__(
        self, book: Book, controller: Controller, proposers: Mapping[ProposerKind, Proposer]
    ) -> None:
        self.decision = Decision()
        self._wanted = self.decision
        self._book = book
        self._config = book.config
        self._controller = controller
        self._proposers = proposers

    def forget(self, request: int) -> None:
        """Drop what controller and proposers keep about a request that ended."""
        self._controller.forget(request)
        for proposer in self._proposers.values():
            proposer.release(request)

    def wanted(self, share: Share) -> int:
        """About how many drafts the request will have in the coming round."""
        asked = share.entry.request.speculation.k
        if asked is None:
            last = self._wanted.choices.get(share.request)
            asked = self._config.k if last is None else last.k
        return min(asked, self._room(share))

    def choose(self, shares: Sequence[Share]) -> dict[int, HostDraft | DeviceDraft]:
        """What each request drafts, within the row budget."""
        emitters = [share for share in shares if share.emits]
        decision = self._controller.decide(self._view(shares, emitters))
        if emitters:
            self._wanted = decision
        budget = self._config.max_batched_tokens - sum(share.rows for share in shares)
        draft_rows = self._config.max_batched_tokens
        drafts: dict[int, HostDraft | DeviceDraft] = {}
        cut: dict[int, Choice] = {}
        # Those first whose cache lags least: who has much to catch up must not take the rows of
        # its neighbours.
        for share in sorted(emitters, key=_lag):
            wanted = decision.k(share.request)
            k = min(wanted, self._room(share), budget)
            draft = self._propose(share, k, draft_rows)
            if draft is not None:
                drafts[share.request] = draft
                budget -= _depth(draft)
                draft_rows -= draft.catch_up if isinstance(draft, DeviceDraft) else 0
            planned = _planned(share, draft, k)
            if planned != wanted:
                cut[share.request] = _cut(share, decision, planned, rows=k < wanted or bool(draft))
        self.decision = decision
        if cut:  # then the round is not the one that was forecast
            choices = {**decision.choices, **cut}
            self.decision = replace(decision, choices=choices, forecast=None)
        return drafts

    def _view(self, shares: Sequence[Share], emitters: Sequence[Share]) -> LoadView:
        return LoadView(
            requests=tuple(self._request(share) for share in emitters),
            rows=sum(share.rows for share in shares),
            prefill_rows=sum(_prefill_rows(share) for share in shares),
            load=self._book.load(),
        )

    def _request(self, share: Share) -> DraftView:
        request, state = share.entry.request, share.state
        return DraftView(
            request=share.request,
            asked=request.speculation.k,
            room=self._room(share),
            policy=policy_of(request),
            proposer=request.speculation.proposer,
            lag=_lag(share),
            context=len(state.tokens),
            emitted=state.emitted,
            left=request.stop.max_tokens - state.emitted,
            tpot=request.tpot,
            own_seed=request.own_seed and draws(request) is not None,
            shared_seed=share.entry.shares_draws,
        )

    def _room(self, share: Share) -> int:
        """The longest draft that is any use: the terminal takes one token of the budget."""
        request = share.entry.request
        fresh = share.rows > 1 or (share.state.retained and not share.state.emitted)
        if fresh or not share.emits:
            return 0  # the first token waits for nothing: drafts start with the second
        room = min(self._config.k_max, request.stop.max_tokens - share.state.emitted - 1)
        if request.speculation.proposer is ProposerKind.DRAFT_MODEL:
            room = min(room, self._config.draft_max_len - len(share.state.tokens) + 1)
        return max(room, 0)

    def _propose(self, share: Share, k: int, draft_rows: int) -> HostDraft | DeviceDraft | None:
        """Drafts of the request's proposer for which there are blocks; never preempts for them.

        A round that broke is tried again with the same drafts: whether it broke may depend on
        them, so another K would be a biased choice (contract section 3).
        """
        if share.entry.retry is not None:
            return share.entry.retry.draft
        entry, tokens, tables = share.entry, share.state.tokens, self._book.tables
        proposer = self._proposers.get(entry.request.speculation.proposer)
        k = min(k, tables.rows_available(entry, Role.TARGET) - len(tokens))
        if proposer is None or k <= 0:
            return None
        view = RequestView(
            request=share.request,
            tokens=tokens,
            draft_rows=entry.draft_rows,
            row_budget=draft_rows,
            min_confidence=entry.request.speculation.min_confidence,
        )
        draft = proposer.propose(view, k)
        if isinstance(draft, DeviceDraft):
            rows = _draft_rows_after(draft, len(tokens))
            if not tables.try_grow(entry, Role.DRAFT, rows):
                return None
        depth = _depth(draft)
        if depth and not tables.try_grow(entry, Role.TARGET, len(tokens) + depth):
            return None
        return draft


def _prefill_rows(share: Share) -> int:
    """Rows besides the frontier's."""
    return share.rows - (share.retains or (share.emits and share.rows > 0))


def _planned(share: Share, draft: HostDraft | DeviceDraft | None, k: int) -> int:
    """The K that was planned. A drafter on the host that has less to say was not cut."""
    modelled = share.entry.request.speculation.proposer is ProposerKind.DRAFT_MODEL
    return _depth(draft) if modelled else k


def _cut(share: Share, decision: Decision, k: int, *, rows: bool) -> Choice:
    """What became of a choice that was not planned as it was: for want of rows or of blocks; or
    because a round that broke is tried again with its own K."""
    choice = decision.choices.get(share.request)
    accepted = 0.0 if choice is None else min(choice.accepted, k)
    reason = Reason.ROWS if rows else Reason.MEMORY
    if share.entry.retry is not None:
        reason = Reason.KEPT
    return Choice(k=k, reason=reason, accepted=accepted)


def _lag(share: Share) -> int:
    return len(share.state.tokens) - 1 - share.entry.draft_rows


def _depth(draft: HostDraft | DeviceDraft | None) -> int:
    if draft is None:
        return 0
    return len(draft.token_ids) if isinstance(draft, HostDraft) else draft.depth


def _draft_rows_after(draft: DeviceDraft, length: int) -> int:
    """Draft rows that the round writes: the frontier's and those of all drafts but the last."""
    return length + draft.depth - 1 if draft.depth else draft.rows + draft.catch_up
