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
from scheduler.sampling.processors import greedy_choice, law, usable
from scheduler.sampling.verify import one_hot_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """Drafts of G emitters: `ids` [G, Kmax] int64, 0 past `k`; `k` [G] int64 is what may be
    verified, `depths` what was planned (k is less where a draft row had no law). `laws`
    [G * Kmax, V] are the q rows, None when all requests are greedy; `rows` counts packed draft
    rows."""

    ids: Tensor
    k: Tensor
    depths: tuple[int, ...]
    laws: Tensor | None
    rows: int


@dataclass(frozen=True, slots=True)
class _Round:
    """What every draft step of one round shares; `ids` [G, Kmax] fills up step by step.

    `order` holds the drafting emitters, deepest first: each step works on a prefix of them.
    """

    groups: Sequence[Group]
    laws: RowLaws
    draws: RoundDraws
    ids: Tensor
    order: Tensor


class Drafter:
    """Runs the draft model of one round; `forward` is None when there is none."""

    def __init__(self, forward: TimedForward | None, vocabulary: int, device: torch.device) -> None:
        self._forward = forward
        self._vocabulary = vocabulary
        self._device = device

    def draft(self, groups: Sequence[Group], laws: RowLaws, draws: RoundDraws) -> Drafted:
        """All proposals of the round."""
        depths = tuple(planned_depth(group) for group in groups)
        width = max(depths, default=0)
        ids = torch.zeros(len(groups), width, dtype=torch.int64, device=self._device)
        sampled = any(not group.sampling.greedy for group in groups)
        q = self._blank_laws(len(groups), width) if sampled and width else None
        self._host_drafts(groups, ids, q)
        k = torch.tensor(depths, dtype=torch.int64, device=self._device)
        rows = self._catch_up(groups)
        order = sorted(
            (i for i, group in enumerate(groups) if _device_depth(group)),
            key=lambda i: -depths[i],
        )
        places = torch.tensor(order, dtype=torch.int64, device=self._device)
        shared = _Round(groups, laws, draws, ids, places)
        lawful = torch.ones(len(order), width, dtype=torch.int64, device=self._device)
        chosen: Tensor | None = None
        for step in range(depths[order[0]] if order else 0):
            active = [index for index in order if depths[index] > step]
            hidden, count = self._step(groups, active, step, chosen)
            rows += count
            chosen, law_rows, sound = _propose(shared, active, step, self._logits(hidden))
            where = places[: len(active)]
            ids[where, step] = chosen
            lawful[: len(active), step] = sound
            if q is not None and law_rows is not None:
                q = q.to(law_rows.dtype)
                q[where * width + step] = law_rows
        # A row without a law stops its request; tokens drawn before it stay (section 3).
        k[places] = torch.minimum(k[places], lawful.cumprod(dim=1).sum(dim=1))
        return Drafted(ids=ids, k=k, depths=depths, laws=q, rows=rows)

    def _blank_laws(self, emitters: int, width: int) -> Tensor:
        return torch.zeros(emitters * width, self._vocabulary, device=self._device)

    def _host_drafts(self, groups: Sequence[Group], ids: Tensor, q: Tensor | None) -> None:
        """Enter the drafts that the host knew, with one-hot laws."""
        for index, group in enumerate(groups):
            if not isinstance(group.draft, HostDraft):
                continue
            tokens = torch.tensor(group.draft.token_ids, device=self._device)
            ids[index, : len(tokens)] = tokens
            if q is not None:
                first = index * ids.shape[1]
                rows = one_hot_rows(tokens, self._vocabulary, q.dtype)
                q[first : first + len(tokens)] = rows

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
        self._required().hidden(torch.tensor(tokens, device=self._device), segments)
        return len(tokens)

    def _step(
        self, groups: Sequence[Group], active: Sequence[int], step: int, drawn: Tensor | None
    ) -> tuple[Tensor, int]:
        """Hidden states [n, H] of the rows that score draft `step`, and the packed row count.

        `drawn` are the drafts of the step before, None in the first.
        """
        if drawn is not None:
            last_rows = [_next_row(groups[i], step) for i in active]
            return self._required().hidden(drawn[: len(active)], last_rows), len(active)
        segments: list[Segment] = []
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
        hidden = self._required().hidden(torch.tensor(tokens, device=self._device), segments)
        return hidden[torch.tensor(last, device=self._device)], len(tokens)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self._required().logits(hidden)[:, : self._vocabulary]

    def _required(self) -> TimedForward:
        if self._forward is None:
            raise LookupError("the plan asks for draft steps, but no draft model is loaded")
        return self._forward


def _propose(
    shared: _Round, active: Sequence[int], step: int, logits: Tensor
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Draft ids [n], their laws [n, V] (None when every row is greedy), and which rows had one."""
    groups, draws = shared.groups, shared.draws
    offsets = [step] * len(active)
    if all(groups[index].sampling.greedy for index in active):
        processed = shared.laws.processed(logits, active, offsets, shared.ids)
        return greedy_choice(processed), None, usable(processed)
    kept = shared.laws.kept(logits, active, offsets, shared.ids)
    rows = law(kept)
    where = shared.order[: len(active)]
    chosen = inverse_cdf(rows, draws.proposal[where, step])
    racing = [row for row, index in enumerate(active) if by_noise(groups[index])]
    if racing:
        noise = draws.noise([active[row] for row in racing], [step] * len(racing))
        at = torch.tensor(racing, device=logits.device)
        chosen[at] = race(kept[at], noise)
    return chosen, rows, usable(kept)


def _next_row(group: Group, step: int) -> Segment:
    """The row of the draft that step `step` - 1 drew."""
    start = len(group.tokens) + step - 1
    return Segment(start=start, rows=1, blocks=group.blocks[Role.DRAFT])


def _device_depth(group: Group) -> int:
    return group.draft.depth if isinstance(group.draft, DeviceDraft) else 0
