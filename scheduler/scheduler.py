"""Plans rounds: who runs, with how many rows, blocks and drafts. No clock, no I/O, no torch.

`land` (in `landing.py`) takes the round's results in; both work on the same `Book` of requests.
"""

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from scheduler.admission import BlockTables, victim
from scheduler.commit import Ledger
from scheduler.config import EngineConfig
from scheduler.controller import Controller, DraftView, LoadView
from scheduler.coordinate import round_coordinate, settings_manifest
from scheduler.entry import Counters, Entry, policy_of
from scheduler.errors import ContextOverflow, EngineBusy, RequestRefused
from scheduler.lifecycle import Event, Status
from scheduler.plan import DeviceDraft, Group, HostDraft, Layout, Role, RoundPlan
from scheduler.proposal import Proposer, RequestView
from scheduler.request import ProposerKind, Request
from scheduler.state import RequestState, RngState, initial_state, preempted
from scheduler.stats import LoadStats


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


class Book:
    """Every live request, in order, with its state and its blocks. One owner: the event loop."""

    def __init__(self, config: EngineConfig, ledger: Ledger) -> None:
        self.config = config
        self.ledger = ledger
        self.tables = BlockTables(config)
        self.entries: dict[int, Entry] = {}
        self.waiting: list[Entry] = []
        self.running: list[Entry] = []
        self.preemptions = 0

    def state(self, entry: Entry) -> RequestState:
        """The published state of a live request."""
        return self.ledger.states[entry.request.request_id]

    def open(self, request: Request) -> None:
        """Put a new request in the queue."""
        entry = Entry(
            request=request,
            counters=Counters(histogram=[0] * (self.config.k_max + 1)),
            settings=settings_manifest(request.sampling, request.stop),
        )
        rng = RngState(seed=request.sampling.seed, choice=request.choice)
        start = initial_state(request.prompt, rng, request.text.start())
        self.ledger.open(request.request_id, start)
        self.entries[request.request_id] = entry
        insort(self.waiting, entry, key=lambda each: each.order)

    def admit(self, entry: Entry, now: float) -> None:
        """Move a request from the queue to those that run."""
        entry.move(Event.ADMIT)
        self.waiting.remove(entry)
        insort(self.running, entry, key=lambda each: each.order)
        if entry.counters.admitted is None:
            entry.counters.admitted = now

    def preempt(self, entry: Entry) -> None:
        """Take all blocks of a request; it will compute its rows again, with the same draws."""
        self.ledger.replace(entry.request.request_id, preempted(self.state(entry)))
        entry.move(Event.PREEMPT)
        self.tables.release(entry)
        self.running.remove(entry)
        insort(self.waiting, entry, key=lambda each: each.order)
        self.preemptions += 1

    def close(self, entry: Entry) -> None:
        """End a request and forget it. Its blocks stay held until `tables.release`."""
        (self.waiting if entry.status is Status.WAITING else self.running).remove(entry)
        entry.move(Event.FINISH)
        self.ledger.close(entry.request.request_id)
        del self.entries[entry.request.request_id]

    def load(self) -> LoadStats:
        """The load at this moment."""
        target = self.tables.pool(Role.TARGET)
        draft = self.tables.pool(Role.DRAFT)
        if target is None:
            raise KeyError(Role.TARGET)
        return LoadStats(
            running=len(self.running),
            waiting=len(self.waiting),
            target_pool=target.stats(),
            draft_pool=None if draft is None else draft.stats(),
        )


class Scheduler:
    """Turns the book into round plans.

    `engine` is the text of `coordinate.engine_manifest`. Rounds are numbered from 1.
    """

    def __init__(
        self,
        book: Book,
        controller: Controller,
        proposers: Mapping[ProposerKind, Proposer],
        engine: str,
    ) -> None:
        self.book = book
        self._config = book.config
        self._controller = controller
        self._proposers = proposers
        self._engine = engine
        self._rounds = 0

    def check(self, requests: Iterable[Request]) -> None:
        """Raise RequestRefused, ContextOverflow or EngineBusy when they cannot all be queued;
        changes nothing."""
        incoming = list(requests)
        for request in incoming:
            _check_request(request, self._config.max_model_len)
        places = max(0, self._config.max_requests - len(self.book.running))
        if len(self.book.waiting) + len(incoming) > self._config.max_waiting + places:
            raise EngineBusy(
                f"{len(self.book.waiting)} requests wait and {len(self.book.running)} run already"
            )

    def add(self, request: Request) -> None:
        """Queue one request; its budget is cut to the context."""
        room = self._config.max_model_len - len(request.prompt)
        if request.stop.max_tokens > room:
            request = replace(request, stop=replace(request.stop, max_tokens=room))
        self.book.open(request)

    def forget(self, request_id: int) -> None:
        """Drop what proposers keep about a request that ended."""
        for proposer in self._proposers.values():
            proposer.release(request_id)

    def plan(self, now: float) -> RoundPlan | None:
        """The next round; None when nothing can run. Admits and preempts as blocks allow."""
        shares = self._shares(now)
        if not shares:
            return None
        drafts = self._drafts(shares)
        groups = tuple(self._group(share, drafts.get(_id(share.entry))) for share in shares)
        self._rounds += 1
        parts = [
            (group, share.state, share.entry.settings)
            for group, share in zip(groups, shares, strict=True)
        ]
        layout = self._config.layout
        return RoundPlan(
            round_id=self._rounds,
            layout=layout,
            groups=groups,
            coordinate=round_coordinate(self._engine, self._rounds, layout, parts),
            held=frozenset(_id(e) for e in self.book.running if self.book.state(e).retained),
        )

    def _shares(self, now: float) -> list[Share]:
        """Rows for running requests (decoding ones first), then for new ones."""
        for entry in self.book.running:
            if entry.retry is not None:  # alone, and with the blocks that it holds already
                return [self._share(entry, self.book.state(entry), entry.retry.rows)]
        before = self.book.preemptions
        decoding = [e for e in self.book.running if self.book.state(e).prefilled]
        shares = self._grant(decoding, self._config.max_batched_tokens)
        spare = self._config.max_batched_tokens - sum(share.rows for share in shares)
        # Drafts yield to prefill before prefill starves: at least half of what is left is for it.
        budget = max(spare - sum(self._wanted(share) for share in shares), spare // 2)
        prefilling = [e for e in self.book.running if not self.book.state(e).prefilled]
        shares += self._grant(prefilling, budget)
        budget -= sum(share.rows for share in shares if share.entry in prefilling)
        if self.book.preemptions == before:
            shares += self._admit(budget, now)
        alive = self.book.running
        return [share for share in shares if share.entry in alive]

    def _share(self, entry: Entry, state: RequestState, rows: int) -> Share:
        reaches = state.kv_rows + rows == len(state.tokens)
        retains = reaches and rows > 0 and self._config.layout is Layout.RETAINED_FRONTIER
        return Share(entry, state, rows, emits=reaches and not retains, retains=retains)

    def _wanted(self, share: Share) -> int:
        asked = share.entry.request.speculation.k
        return min(self._config.k if asked is None else asked, self._room(share))

    def _grant(self, entries: Iterable[Entry], budget: int) -> list[Share]:
        """Rows within `budget`, each with its blocks; preempts those served last for blocks."""
        shares: list[Share] = []
        for entry in list(entries):
            if entry.status is not Status.RUNNING:
                continue
            state = self.book.state(entry)
            rows = min(len(state.tokens) - state.kv_rows, budget)
            if rows <= 0 and not state.retained:
                break
            if self._make_room(entry, state.kv_rows + rows):
                shares.append(self._share(entry, state, rows))
                budget -= rows
        return shares

    def _make_room(self, entry: Entry, rows: int) -> bool:
        """Grow the target's table, preempting; False when the request itself had to yield."""
        while not self.book.tables.try_grow(entry, Role.TARGET, rows):
            last = victim(self.book.running)
            self.book.preempt(last)
            if last is entry:
                return False
        return True

    def _admit(self, budget: int, now: float) -> list[Share]:
        """Start waiting requests in order while rows, places and blocks last."""
        shares: list[Share] = []
        for entry in list(self.book.waiting):
            state = self.book.state(entry)
            full = len(self.book.running) >= self._config.max_requests
            roomy = self.book.tables.has_room(Role.TARGET, len(state.tokens) + 1)
            if budget <= 0 or full or not roomy:
                break
            self.book.admit(entry, now)
            granted = self._grant([entry], budget)
            budget -= sum(share.rows for share in granted)
            shares += granted
        return shares

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

    def _drafts(self, shares: list[Share]) -> dict[int, HostDraft | DeviceDraft]:
        """What each request drafts, chosen from history alone, within the row budget."""
        emitters = [share for share in shares if share.emits]
        views = tuple(self._view(share) for share in emitters)
        chunks = [share for share in shares if not (share.emits or share.state.decoding)]
        prefill = sum(share.rows for share in chunks)
        load = LoadView(requests=views, prefill_rows=prefill, load=self.book.load())
        chosen = self._controller.decide(load)
        budget = self._config.max_batched_tokens - sum(share.rows for share in shares)
        draft_budget = self._config.max_batched_tokens
        drafts: dict[int, HostDraft | DeviceDraft] = {}
        for share in emitters:
            k = min(chosen.get(_id(share.entry), 0), self._room(share), budget)
            draft = self._propose(share, k, draft_budget)
            if draft is not None:
                drafts[_id(share.entry)] = draft
                budget -= _depth(draft)
                draft_budget -= draft.catch_up if isinstance(draft, DeviceDraft) else 0
        return drafts

    def _view(self, share: Share) -> DraftView:
        return DraftView(
            request=_id(share.entry),
            asked=share.entry.request.speculation.k,
            room=self._room(share),
            policy=policy_of(share.entry.request),
            lag=len(share.state.tokens) - 1 - share.entry.draft_rows,
        )

    def _propose(self, share: Share, k: int, draft_budget: int) -> HostDraft | DeviceDraft | None:
        """Drafts of the request's proposer for which there are blocks; never preempts for them.

        A round that broke is tried again with the same drafts: whether it broke may depend on
        them, so another K would be a biased choice (contract section 3).
        """
        if share.entry.retry is not None:
            return share.entry.retry.draft
        entry, tokens = share.entry, share.state.tokens
        proposer = self._proposers.get(entry.request.speculation.proposer)
        spare = self.book.tables.rows_available(entry, Role.TARGET) - len(tokens)
        k = min(k, spare)
        if proposer is None or k <= 0:
            return None
        view = RequestView(
            request=_id(entry),
            tokens=tokens,
            draft_rows=entry.draft_rows,
            row_budget=draft_budget,
            min_confidence=entry.request.speculation.min_confidence,
        )
        draft = proposer.propose(view, k)
        if isinstance(draft, DeviceDraft):
            rows = _draft_rows_after(draft, len(tokens))
            if not self.book.tables.try_grow(entry, Role.DRAFT, rows):
                return None
        depth = _depth(draft)
        if depth and not self.book.tables.try_grow(entry, Role.TARGET, len(tokens) + depth):
            return None
        return draft

    def _group(self, share: Share, draft: HostDraft | DeviceDraft | None) -> Group:
        request, state = share.entry.request, share.state
        return Group(
            request=request.request_id,
            generation=state.generation,
            tokens=state.tokens,
            prompt_length=state.prompt_length,
            start=state.kv_rows,
            rows=share.rows,
            emits=share.emits,
            retains=share.retains,
            max_emit=request.stop.max_tokens - state.emitted,
            draft=draft,
            blocks=dict(share.entry.blocks),
            sampling=request.sampling,
            verifier=request.speculation.verifier,
            stop=request.stop,
            choice=request.choice,
        )


def _check_request(request: Request, limit: int) -> None:
    if not request.prompt:
        raise RequestRefused("prompt", "The prompt is empty; it needs at least one token.")
    if request.stop.max_tokens < 1:
        raise RequestRefused("max_tokens", f"{request.stop.max_tokens} tokens are less than 1.")
    if len(request.prompt) >= limit:
        raise ContextOverflow(
            "prompt",
            f"This model's maximum context length is {limit} tokens; the prompt has "
            f"{len(request.prompt)} and at least one is needed for the output.",
        )


def _id(entry: Entry) -> int:
    return entry.request.request_id


def _depth(draft: HostDraft | DeviceDraft | None) -> int:
    if draft is None:
        return 0
    return len(draft.token_ids) if isinstance(draft, HostDraft) else draft.depth


def _draft_rows_after(draft: DeviceDraft, length: int) -> int:
    """Draft rows that the round writes: the frontier's and those of all drafts but the last."""
    return length + draft.depth - 1 if draft.depth else draft.rows + draft.catch_up
