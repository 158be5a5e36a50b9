"""Plans rounds: who runs, with how many rows and blocks. No clock, no I/O, no torch.

`land` (in `landing.py`) takes the round's results in; both work on the same `Book` of requests.
What each request drafts is chosen in `drafts.py`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from scheduler.admission import victim
from scheduler.book import Book
from scheduler.controller import Controller
from scheduler.coordinate import round_coordinate
from scheduler.drafts import Drafts, Share
from scheduler.entry import Entry
from scheduler.errors import ContextOverflow, EngineBusy, RequestRefused
from scheduler.lifecycle import Status
from scheduler.plan import DeviceDraft, Group, HostDraft, Layout, Role, RoundPlan
from scheduler.proposal import Proposer
from scheduler.request import ProposerKind, Request
from scheduler.state import RequestState
from scheduler.stats import Decision


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
        self._drafts = Drafts(book, controller, proposers)
        self._engine = engine
        self._rounds = 0
        self._turn = 0

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
        """Drop what controller and proposers keep about a request that ended."""
        self._drafts.forget(request_id)

    @property
    def decision(self) -> Decision:
        """How K was chosen in the last plan."""
        return self._drafts.decision

    def plan(self, now: float) -> RoundPlan | None:
        """The next round; None when nothing can run. Admits and preempts as blocks allow."""
        shares = self._bounded(self._shares(now))
        if not shares:
            return None
        drafts = self._drafts.choose(shares)
        groups = tuple(self._group(share, drafts.get(_id(share.entry))) for share in shares)
        self._rounds += 1
        parts = [
            (group, share.state, share.entry.settings, share.entry.tables)
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
        wanted = sum(self._drafts.wanted(share) for share in shares)
        budget = max(spare - wanted, (spare + 1) // 2)
        prefilling = [e for e in self.book.running if not self.book.state(e).prefilled]
        chunks = self._grant(prefilling, budget)
        if self.book.preemptions == before:
            chunks += self._admit(budget - sum(share.rows for share in chunks), now)
        alive = set(map(_id, self.book.running))  # who was granted rows first may have had to yield
        return [share for share in (*shares, *chunks) if share.request in alive]

    def _bounded(self, shares: list[Share]) -> list[Share]:
        """No more than may share a round. Where not all do they take turns, by id; the others keep
        their blocks."""
        limit = self.book.company.limit
        if limit is None or len(shares) <= limit:
            return shares
        turns = sorted((share.request for share in shares), key=lambda n: (n <= self._turn, n))
        self._turn = turns[limit - 1]
        chosen = frozenset(turns[:limit])
        return [share for share in shares if share.request in chosen]

    def _share(self, entry: Entry, state: RequestState, rows: int) -> Share:
        reaches = state.kv_rows + rows == len(state.tokens)
        retains = reaches and rows > 0 and self._config.layout is Layout.RETAINED_FRONTIER
        return Share(entry, state, rows, emits=reaches and not retains, retains=retains)

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
