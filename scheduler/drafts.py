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
from scheduler.sharing import Turns
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
        self._turns = Turns()

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
        """What each request drafts. Where rows are short all get as equally much as there is."""
        if any(share.entry.retry is not None for share in shares):
            return self._again(shares)
        emitters = [share for share in shares if share.emits]
        decision = self._controller.decide(self._view(shares, emitters))
        if emitters:
            self._wanted = decision
        said = self._said(emitters, decision)
        wanted = {
            share.request: _depth(said[share.request])
            if share.request in said
            else min(decision.k(share.request), self._room(share))
            for share in emitters
        }
        spare = self._config.max_batched_tokens - sum(share.rows for share in shares)
        granted = self._turns.share(wanted, spare)
        draft_rows = self._config.max_batched_tokens
        drafts: dict[int, HostDraft | DeviceDraft] = {}
        cut: dict[int, Choice] = {}
        # Those first whose cache lags least: who has much to catch up must not take the draft rows
        # of its neighbours.
        for share in sorted(emitters, key=_lag):
            each = share.request
            draft, short = self._draft(share, granted[each], said.get(each), draft_rows)
            if draft is not None:
                drafts[each] = draft
                draft_rows -= draft.catch_up if isinstance(draft, DeviceDraft) else 0
            if short and _depth(draft) < (wanted[each] if each in said else decision.k(each)):
                cut[each] = _at(decision, each, _depth(draft), short)
        self.decision = decision
        if cut:  # then the round is not the one that was forecast
            choices = {**decision.choices, **cut}
            self.decision = replace(decision, choices=choices, forecast=None)
        return drafts

    def _again(self, shares: Sequence[Share]) -> dict[int, HostDraft | DeviceDraft]:
        """The drafts of a round that broke: whether it broke may depend on them, so another K would
        be a biased choice (contract section 3). Nobody is asked, and no wish is forgotten."""
        drafts, choices = {}, {}
        for share in shares:
            draft = None if share.entry.retry is None else share.entry.retry.draft
            if draft is not None:
                drafts[share.request] = draft
            if share.emits:
                choices[share.request] = _at(
                    self._wanted, share.request, _depth(draft), Reason.KEPT
                )
        self.decision = Decision(choices=choices)
        return drafts

    def _view(self, shares: Sequence[Share], emitters: Sequence[Share]) -> LoadView:
        rows = sum(share.rows for share in shares)
        prefill_rows = sum(map(_prefill_rows, shares))
        return LoadView(
            requests=tuple(self._request(share) for share in emitters),
            rows=rows,
            prefill_rows=prefill_rows,
            spare=self._config.max_batched_tokens - rows + prefill_rows,
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
        if fresh or not share.emits or request.speculation.proposer not in self._proposers:
            return 0  # the first token waits for nothing: drafts start with the second
        room = min(self._config.k_max, request.stop.max_tokens - share.state.emitted - 1)
        if request.speculation.proposer is ProposerKind.DRAFT_MODEL:
            room = min(room, self._config.draft_max_len - len(share.state.tokens) + 1)
        return max(room, 0)

    def _said(
        self, emitters: Sequence[Share], decision: Decision
    ) -> dict[int, HostDraft | DeviceDraft | None]:
        """What drafters on the host say, by request: often less than they may, and what they leave
        of the rows is for others."""
        said = {}
        for share in emitters:
            k = min(decision.k(share.request), self._room(share))
            if share.entry.request.speculation.proposer is not ProposerKind.DRAFT_MODEL:
                said[share.request] = self._propose(share, k, 0)
        return said

    def _propose(self, share: Share, k: int, draft_rows: int) -> HostDraft | DeviceDraft | None:
        speculation = share.entry.request.speculation
        if k <= 0:
            return None
        view = RequestView(
            request=share.request,
            tokens=share.state.tokens,
            draft_rows=share.entry.draft_rows,
            row_budget=draft_rows,
            min_confidence=speculation.min_confidence,
        )
        return self._proposers[speculation.proposer].propose(view, k)

    def _draft(
        self,
        share: Share,
        granted: int,
        said: HostDraft | DeviceDraft | None,
        draft_rows: int,
    ) -> tuple[HostDraft | DeviceDraft | None, Reason | None]:
        """Up to `granted` drafts for which there are blocks; never preempts for them. And for want
        of what there are no more, the last thing that cut them; None where the drafter had less to
        say."""
        entry, length, tables = share.entry, len(share.state.tokens), self._book.tables
        k = min(granted, tables.rows_available(entry, Role.TARGET) - length)
        if k <= 0:
            return None, Reason.MEMORY if granted else Reason.ROWS
        draft = self._propose(share, k, draft_rows) if said is None else _first(said, k)
        if isinstance(draft, DeviceDraft):
            rows = _draft_rows_after(draft, length)
            if not tables.try_grow(entry, Role.DRAFT, rows):
                return None, Reason.MEMORY
        depth = _depth(draft)
        if depth and not tables.try_grow(entry, Role.TARGET, length + depth):
            return None, Reason.MEMORY
        if depth == k:
            return draft, Reason.MEMORY if k < granted else Reason.ROWS
        catches_up = isinstance(draft, DeviceDraft) or (said is None and draft_rows < 1)
        return draft, Reason.ROWS if catches_up else None


def _prefill_rows(share: Share) -> int:
    """Rows besides the frontier's."""
    return share.rows - (share.retains or (share.emits and share.rows > 0))


def _at(decision: Decision, request: int, k: int, reason: Reason) -> Choice:
    """What became of a choice that was not planned as it was."""
    choice = decision.choices.get(request)
    accepted = 0.0 if choice is None else min(choice.accepted, k)
    return Choice(k=k, reason=reason, accepted=accepted)


def _first(draft: HostDraft | DeviceDraft, k: int) -> HostDraft | DeviceDraft:
    if isinstance(draft, HostDraft):
        return replace(draft, token_ids=draft.token_ids[:k])
    return replace(draft, depth=min(draft.depth, k))


def _lag(share: Share) -> int:
    return len(share.state.tokens) - 1 - share.entry.draft_rows


def _depth(draft: HostDraft | DeviceDraft | None) -> int:
    if draft is None:
        return 0
    return len(draft.token_ids) if isinstance(draft, HostDraft) else draft.depth


def _draft_rows_after(draft: DeviceDraft, length: int) -> int:
    """Draft rows that the round writes: the frontier's and those of all drafts but the last."""
    return length + draft.depth - 1 if draft.depth else draft.rows + draft.catch_up
