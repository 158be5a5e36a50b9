"""The draft loop: proposals of all requests, one packed draft call a step, on the device."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scheduler.plan import DeviceDraft, Group, HostDraft, Role
from scheduler.runtime.draws import RoundDraws, by_noise, planned_depth
from scheduler.runtime.laws import RowLaws
from scheduler.runtime.rows import Segment
from scheduler.runtime.timed import TimedForward
from scheduler.sampling.draw import inverse_cdf, race
from scheduler.sampling.moving import flags, floats, integers
from scheduler.sampling.processors import filtered, greedy_choice, usable
from scheduler.sampling.verify import one_hot_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """Drafts of G emitters: `ids` [G, Kmax] int64, 0 past `k`; `k` [G] int64 is what may be
    verified, `depths` what was planned (k is less where a draft row had no law). `laws`
    [G * Kmax, V] are the q rows, None when all requests are greedy; `rows` counts packed draft
    rows, `steps` draft steps. Where looking costs no transfer, `depths` is no more than `k`.
    `lost` [G] says whose cache saw a row without a law: it may hold rows that are not finite.
    """

    ids: Tensor
    k: Tensor
    depths: tuple[int, ...]
    laws: Tensor | None
    rows: int
    steps: int
    lost: Tensor


@dataclass(frozen=True, slots=True)
class _Proposal:
    """One step: draft `ids` [n], their `laws` [n, V] (None when every row is greedy), which rows
    had one (`sound` [n]), and which were confident enough to draw from (`sure` [n])."""

    ids: Tensor
    laws: Tensor | None
    sound: Tensor
    sure: Tensor


class _Round:
    """What every draft step of one round shares, and what fills up step by step.

    `order` holds the drafting emitters, deepest first: each step works on a prefix of them.
    `ids` is [G, Kmax], `q` [G * Kmax, V] or None; `sound` and `sure` [n, Kmax] follow `order`.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        laws: RowLaws,
        draws: RoundDraws,
        ids: Tensor,
        q: Tensor | None,
    ) -> None:
        self.groups, self.laws, self.draws = groups, laws, draws
        self.ids, self.q = ids, q
        depths = [_device_depth(group) for group in groups]
        self.order = sorted(
            filter(depths.__getitem__, range(len(groups))), key=lambda i: -depths[i]
        )
        self.depths = [depths[index] for index in self.order]
        self.places = integers(self.order, ids.device)
        self.sound = torch.ones(len(self.order), ids.shape[1], dtype=torch.bool, device=ids.device)
        self.sure = torch.ones_like(self.sound)
        least = [_floor(groups[index]) for index in self.order]
        self.floors = floats(least, ids.device)
        self.selective = any(least)

    def active(self, step: int) -> list[int]:
        """The emitters that draft a token in `step`."""
        return self.order[: sum(depth > step for depth in self.depths)]

    def floored(self, active: Sequence[int]) -> tuple[Tensor | None, list[bool]]:
        """The least confidence of the active rows [n] and which of them are greedy; None and
        nothing when nobody asks for any."""
        if not self.selective:
            return None, []
        greedy = [self.groups[index].sampling.greedy for index in active]
        return self.floors[: len(active)], greedy

    def enter(self, step: int, proposal: _Proposal) -> None:
        """Take in one step's tokens and laws."""
        count = len(proposal.ids)
        where = self.places[:count]
        self.ids[where, step] = proposal.ids
        self.sound[:count, step] = proposal.sound
        if self.selective:
            self.sure[:count, step] = proposal.sure
        if self.q is not None and proposal.laws is not None:
            self.q = self.q.to(proposal.laws.dtype)
            self.q[where * self.ids.shape[1] + step] = proposal.laws

    def ended(self, step: int) -> bool:
        """Whether no request that would go on after `step` is still confident."""
        further = len(self.active(step + 1))
        return not bool((self.sure & self.sound)[:further, : step + 1].all(dim=1).any())

    def counts(self, planned: Sequence[int]) -> Tensor:
        """K of every emitter [G]. A row without a law, or one that is not confident, stops its
        request before its token; tokens drawn before it stay (contract section 3)."""
        k = integers(planned, self.ids.device)
        going = (self.sound & self.sure).long().cumprod(dim=1).sum(dim=1)
        k[self.places] = torch.minimum(k[self.places], going)
        return k

    def lost(self) -> Tensor:
        """Whose draft cache met a row without a law: [G] bool."""
        lost = torch.zeros(len(self.groups), dtype=torch.bool, device=self.ids.device)
        lost[self.places] = ~self.sound.all(dim=1)
        return lost


class Drafter:
    """Runs the draft model of one round; `forward` is None when there is none."""

    def __init__(self, forward: TimedForward | None, vocabulary: int, device: torch.device) -> None:
        self._forward = forward
        self._vocabulary = vocabulary
        self._device = device
        self._looks_are_free = device.type == "cpu"

    def draft(self, groups: Sequence[Group], laws: RowLaws, draws: RoundDraws) -> Drafted:
        """All proposals of the round."""
        depths = tuple(planned_depth(group) for group in groups)
        width = max(depths, default=0)
        ids = torch.zeros(len(groups), width, dtype=torch.int64, device=self._device)
        sampled = any(not group.sampling.greedy for group in groups)
        q = self._blank_laws(len(groups), width) if sampled and width else None
        self._host_drafts(groups, ids, q)
        shared = _Round(groups, laws, draws, ids, q)
        rows, steps = self._catch_up(groups), 0
        chosen: Tensor | None = None
        while active := shared.active(steps):
            hidden, count = self._step(groups, active, steps, chosen)
            proposal = _propose(shared, active, steps, self._logits(hidden))
            shared.enter(steps, proposal)
            chosen, rows, steps = proposal.ids, rows + count, steps + 1
            if shared.selective and self._looks_are_free and shared.ended(steps - 1):
                break
        k = shared.counts(depths)
        if shared.selective and self._looks_are_free:
            depths = tuple(k.tolist())  # what was not drafted needs no target row
        return Drafted(
            ids=ids,
            k=k,
            depths=depths,
            laws=shared.q,
            rows=rows,
            steps=steps,
            lost=shared.lost(),
        )

    def _blank_laws(self, emitters: int, width: int) -> Tensor:
        return torch.zeros(emitters * width, self._vocabulary, device=self._device)

    def _host_drafts(self, groups: Sequence[Group], ids: Tensor, q: Tensor | None) -> None:
        """Enter the drafts that the host knew, with one-hot laws."""
        cells: list[int] = []
        known: list[int] = []
        for index, group in enumerate(groups):
            if isinstance(group.draft, HostDraft):
                first = index * ids.shape[1]
                cells += range(first, first + len(group.draft.token_ids))
                known += group.draft.token_ids
        if not cells:
            return
        at, tokens = integers(cells, self._device), integers(known, self._device)
        ids.view(-1)[at] = tokens
        if q is not None:
            q[at] = one_hot_rows(tokens, self._vocabulary, q.dtype)

    def _catch_up(self, groups: Sequence[Group]) -> int:
        """Rows of requests whose draft cache lags too far to draft this round."""
        lagging = [
            (group, group.draft)
            for group in groups
            if isinstance(group.draft, DeviceDraft) and not group.draft.depth
        ]
        if not lagging:
            return 0
        segments = [
            Segment(start=draft.rows, rows=draft.catch_up, blocks=group.blocks[Role.DRAFT])
            for group, draft in lagging
        ]
        tokens = [
            token
            for group, draft in lagging
            for token in group.tokens[draft.rows : draft.rows + draft.catch_up]
        ]
        self._required().hidden(integers(tokens, self._device), segments, ())
        return len(tokens)

    def _step(
        self, groups: Sequence[Group], active: Sequence[int], step: int, drawn: Tensor | None
    ) -> tuple[Tensor, int]:
        """Hidden states [n, H] of the rows that score draft `step`, and the packed row count.

        `drawn` are the drafts of the step before, None in the first.
        """
        if drawn is not None:
            count = len(active)
            segments = [_next_row(groups[i], step) for i in active]
            return self._required().hidden(drawn[:count], segments, range(count)), count
        segments = []
        tokens: list[int] = []
        last: list[int] = []
        for index in active:
            group = groups[index]
            start = group.draft.rows if isinstance(group.draft, DeviceDraft) else 0
            pending = group.tokens[start:]
            segments.append(
                Segment(start=start, rows=len(pending), blocks=group.blocks[Role.DRAFT])
            )
            tokens += pending
            last.append(len(tokens) - 1)
        return self._required().hidden(integers(tokens, self._device), segments, last), len(tokens)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self._required().logits(hidden)[:, : self._vocabulary]

    def _required(self) -> TimedForward:
        if self._forward is None:
            raise LookupError("the plan asks for draft steps, but no draft model is loaded")
        return self._forward


def _propose(shared: _Round, active: Sequence[int], step: int, logits: Tensor) -> _Proposal:
    """Draw the drafts of one step. Whether a row is confident is settled before its draw."""
    groups, draws, laws = shared.groups, shared.draws, shared.laws
    processed = laws.processed(logits, active, [step] * len(active), shared.ids)
    if all(groups[index].sampling.greedy for index in active):
        sure = _sure(processed, None, *shared.floored(active))
        ids = greedy_choice(processed)
        return _Proposal(ids=ids, laws=None, sound=usable(processed), sure=sure)
    kept = filtered(processed, laws.settings(active))
    rows = laws.to_law(kept)
    sure = _sure(processed, rows, *shared.floored(active))
    chosen = inverse_cdf(rows, draws.proposal[shared.places[: len(active)], step])
    racing = [row for row, index in enumerate(active) if by_noise(groups[index])]
    if racing:
        noise = draws.noise([active[row] for row in racing], [step] * len(racing))
        at = integers(racing, logits.device)
        chosen[at] = race(kept[at], noise)
    return _Proposal(ids=chosen, laws=rows, sound=usable(kept), sure=sure)


def _sure(
    processed: Tensor, rows: Tensor | None, floors: Tensor | None, greedy: Sequence[bool]
) -> Tensor:
    """Which rows give some token the confidence that its request asks for: [n] bool.

    By the law `rows` [n, V] that will be drawn from; a `greedy` request's by its softmax, which
    says more than the one-hot law. `floors` [n] None asks for nothing. It is given no draw.
    """
    if floors is None:
        return processed.new_ones(processed.shape[0], dtype=torch.bool)
    peak = processed.double().softmax(dim=-1).amax(dim=-1)
    if rows is not None:
        where = flags(greedy, processed.device)
        peak = torch.where(where, peak, rows.amax(dim=-1).double())
    return ~(peak < floors)


def _next_row(group: Group, step: int) -> Segment:
    """The row of the draft that step `step` - 1 drew."""
    start = len(group.tokens) + step - 1
    return Segment(start=start, rows=1, blocks=group.blocks[Role.DRAFT])


def _device_depth(group: Group) -> int:
    return group.draft.depth if isinstance(group.draft, DeviceDraft) else 0


def _floor(group: Group) -> float:
    return group.draft.min_confidence if isinstance(group.draft, DeviceDraft) else 0.0
