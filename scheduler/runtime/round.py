"""One round above `Forward`: draft loop, one packed target call, verification, one transfer back.

Written once for every device and model runtime. Knows plans, rows and laws; nothing of requests'
lives, stop rules or text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scheduler.plan import (
    DeviceDraft,
    DraftOutcome,
    Group,
    GroupResult,
    Role,
    RoundPlan,
    RoundResult,
    RoundTimings,
    TerminalKind,
    TokenLogprobs,
)
from scheduler.runtime.deciding import Decided, Rows, decide, target_rows
from scheduler.runtime.drafting import Drafted, Drafter
from scheduler.runtime.draws import RoundDraws, by_ratio, planned_depth
from scheduler.runtime.laws import RowLaws
from scheduler.runtime.rows import Segment
from scheduler.runtime.timed import TimedForward
from scheduler.sampling.rng import Randomness

_NO_LAW = "no token is left to choose from, or the model gave a row that is not finite"


@dataclass(frozen=True, slots=True)
class _Transfer:
    """The whole verdict on the host: one row an emitter."""

    accepted: list[int]
    terminal: list[int]
    k: list[int]
    sound: list[bool]
    fallbacks: int
    drafts: list[list[int]]
    p: list[list[float]]
    q: list[list[float]]
    mass: list[list[float]]
    base: list[list[float]]
    chunks: list[bool]


class RoundExecutor:
    """Executes frozen plans over a target and perhaps a draft.

    `vocabulary` is the shared event space: logits past it (a padded table) are cut off.
    """

    def __init__(
        self,
        *,
        target: TimedForward,
        draft: TimedForward | None,
        vocabulary: int,
        randomness: Randomness,
        clock: Callable[[], float],
    ) -> None:
        self._target = target
        self._draft = draft
        self._vocabulary = vocabulary
        self._randomness = randomness
        self._clock = clock
        self._drafter = Drafter(draft, vocabulary, target.device)

    @torch.inference_mode()
    def run(self, plan: RoundPlan) -> RoundResult:
        """Draft, verify and decide `plan`."""
        inside, started = self._inside(), self._clock()
        emitters = [group for group in plan.groups if group.emits]
        laws = RowLaws(emitters, self._vocabulary, self._target.device)
        draws = RoundDraws(emitters, self._randomness, self._vocabulary, self._target.device)
        drafted = self._drafter.draft(emitters, laws, draws)
        verifying = self._clock()
        rows = target_rows(drafted.depths)
        logits, finite = self._verify(plan.groups, rows, drafted)
        deciding = self._clock()
        results: dict[int, GroupResult] = {}
        transfer = None
        if emitters:
            decided = decide(emitters, rows, logits, drafted, laws, draws)
            transfer = _transfer(decided, drafted, finite)
            self._clear(emitters, transfer)
            logprobs = _logprobs(emitters, rows, logits, transfer)
            results = _results(emitters, transfer, logprobs, draws.acceptance_host)
        chunks = [group for group in plan.groups if not group.emits]
        sound = transfer.chunks if transfer else [bool(value) for value in finite.tolist()]
        results |= self._prefilled(chunks, sound)
        ended = self._clock()
        return RoundResult(
            round_id=plan.round_id,
            digest=plan.digest,
            groups=tuple(results[group.request] for group in plan.groups),
            timings=RoundTimings(
                draft=verifying - started,
                verify=deciding - verifying,
                decide=ended - deciding,
                forward=self._inside() - inside,
            ),
            target_rows=sum(g.rows + planned_depth(g) for g in plan.groups),
            draft_rows=drafted.rows,
            logit_rows=len(rows.emitters),
            host_syncs=_host_syncs(emitters),
            residual_fallbacks=transfer.fallbacks if transfer else 0,
        )

    def _inside(self) -> float:
        """Seconds spent inside forwards so far."""
        return self._target.seconds + (self._draft.seconds if self._draft else 0.0)

    def _verify(
        self, groups: Sequence[Group], rows: Rows, drafted: Drafted
    ) -> tuple[Tensor, Tensor]:
        """Raw target logits [M, V] of the emitters' rows, and for each other group whether its
        rows came out finite (its last one saw them all). K/V rows of all groups are written."""
        segments: list[Segment] = []
        tokens: list[int] = []
        slots: list[int] = []
        cells: list[int] = []
        wanted: list[int] = []
        lasts: list[int] = []
        emitter = 0
        for group in groups:
            depth = planned_depth(group)
            blocks = group.blocks[Role.TARGET]
            segments.append(Segment(start=group.start, rows=group.rows + depth, blocks=blocks))
            tokens += group.tokens[group.start : group.start + group.rows]
            if group.emits:
                wanted += range(len(tokens) - 1, len(tokens) + depth)
                slots += range(len(tokens), len(tokens) + depth)
                cells += [emitter * drafted.ids.shape[1] + place for place in range(depth)]
                emitter += 1
            else:
                lasts.append(len(tokens) - 1)
            tokens += [0] * depth
        device = self._target.device
        ids = torch.tensor(tokens, dtype=torch.int64, device=device)
        if slots:
            at = torch.tensor(cells, device=device)
            ids[torch.tensor(slots, device=device)] = drafted.ids.view(-1)[at]
        hidden = self._target.hidden(ids, segments)
        finite = hidden[_indices(lasts, device)].isfinite().all(dim=1)
        if not rows.emitters:
            return hidden.new_zeros(0, self._vocabulary), finite
        chosen = hidden[_indices(wanted, device)]
        return self._target.logits(chosen)[:, : self._vocabulary], finite

    def _clear(self, emitters: Sequence[Group], transfer: _Transfer) -> None:
        """A row without a law may stand on K/V rows that are not finite. Masked ones count too
        (0 * NaN), so they must not outlive their request."""
        for group, sound, k in zip(emitters, transfer.sound, transfer.k, strict=True):
            if not sound:
                self._target.clear_blocks(group.blocks[Role.TARGET])
            if self._draft is not None and (not sound or k < planned_depth(group)):
                self._draft.clear_blocks(group.blocks.get(Role.DRAFT, ()))

    def _prefilled(self, groups: Sequence[Group], sound: Sequence[bool]) -> dict[int, GroupResult]:
        """Results of the chunks that do not reach the frontier."""
        for group, good in zip(groups, sound, strict=True):
            if not good:
                self._target.clear_blocks(group.blocks[Role.TARGET])
        pairs = zip(groups, sound, strict=True)
        return {group.request: _prefilled(group, sound=good) for group, good in pairs}


def _indices(rows: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64, device=device)


def _host_syncs(emitters: Sequence[Group]) -> int:
    """The verdict's transfer, and one for logprobs if anyone asked."""
    return 2 if any(group.sampling.logprobs is not None for group in emitters) else 1


def _transfer(decided: Decided, drafted: Drafted, finite: Tensor) -> _Transfer:
    """Everything the host needs in one copy. float64 holds every id and every float32 exactly.

    `finite` [P] rides along: whether the chunks that emit nothing came out finite."""
    verdict, width = decided.verdict, drafted.ids.shape[1]
    scalars = [verdict.accepted, verdict.terminal, drafted.k, decided.sound, verdict.fallback]
    tables = [drafted.ids, verdict.p_draft, verdict.q_draft, verdict.mass, verdict.base]
    columns = [each.double()[:, None] for each in scalars] + [each.double() for each in tables]
    whole = torch.cat(columns, dim=1)
    flat = torch.cat([whole.flatten(), finite.double()]).tolist()
    count, size = whole.shape
    host = [flat[row * size : (row + 1) * size] for row in range(count)]

    def table(number: int) -> list[list[float]]:
        first = len(scalars) + number * width
        return [row[first : first + width] for row in host]

    return _Transfer(
        accepted=[int(row[0]) for row in host],
        terminal=[int(row[1]) for row in host],
        k=[int(row[2]) for row in host],
        sound=[bool(row[3]) for row in host],
        fallbacks=sum(int(row[4]) for row in host),
        drafts=[[int(value) for value in row] for row in table(0)],
        p=table(1),
        q=table(2),
        mass=table(3),
        base=table(4),
        chunks=[bool(value) for value in flat[count * size :]],
    )


def _emitted(transfer: _Transfer, index: int) -> tuple[int, ...]:
    accepted = transfer.accepted[index]
    return (*transfer.drafts[index][:accepted], transfer.terminal[index])


def _results(
    emitters: Sequence[Group],
    transfer: _Transfer,
    logprobs: dict[int, tuple[TokenLogprobs, ...]],
    uniforms: list[list[float]],
) -> dict[int, GroupResult]:
    return {
        group.request: _result(group, index, transfer, uniforms[index], logprobs.get(index, ()))
        for index, group in enumerate(emitters)
    }


def _outcomes(
    group: Group, index: int, transfer: _Transfer, uniforms: list[float]
) -> tuple[DraftOutcome, ...]:
    tested = by_ratio(group)
    return tuple(
        DraftOutcome(
            token=transfer.drafts[index][place],
            target_prob=transfer.p[index][place],
            draft_prob=transfer.q[index][place],
            uniform=uniforms[place] if tested else None,
            mass=transfer.mass[index][place],
            base=transfer.base[index][place],
        )
        for place in range(transfer.k[index])
    )


def _result(
    group: Group,
    index: int,
    transfer: _Transfer,
    uniforms: list[float],
    logprobs: tuple[TokenLogprobs, ...],
) -> GroupResult:
    accepted, k = transfer.accepted[index], transfer.k[index]
    drafts = tuple(transfer.drafts[index][: planned_depth(group)])
    sound = transfer.sound[index]
    kind = TerminalKind.BONUS if accepted == k else TerminalKind.CORRECTION
    return GroupResult(
        request=group.request,
        generation=group.generation,
        written=group.tokens[group.start : group.start + group.rows] + drafts,
        emitted=_emitted(transfer, index) if sound else (),
        accepted=accepted,
        terminal=(kind if k else TerminalKind.PLAIN) if sound else None,
        outcomes=_outcomes(group, index, transfer, uniforms),
        draft_written=_draft_written(group, drafts),
        logprobs=logprobs,
        error=None if sound else _NO_LAW,
    )


def _prefilled(group: Group, *, sound: bool) -> GroupResult:
    """The result of a chunk that does not reach the frontier."""
    return GroupResult(
        request=group.request,
        generation=group.generation,
        written=group.tokens[group.start : group.start + group.rows],
        emitted=(),
        accepted=0,
        terminal=None,
        outcomes=(),
        draft_written=(),
        logprobs=(),
        error=None if sound else _NO_LAW,
    )


def _draft_written(group: Group, drafts: tuple[int, ...]) -> tuple[int, ...]:
    """Ids of the rows that the draft model wrote: pending tokens, then all drafts but the last."""
    if not isinstance(group.draft, DeviceDraft):
        return ()
    if not group.draft.depth:
        return group.tokens[group.draft.rows : group.draft.rows + group.draft.catch_up]
    return group.tokens[group.draft.rows :] + drafts[:-1]


def _logprobs(
    groups: Sequence[Group], rows: Rows, logits: Tensor, transfer: _Transfer
) -> dict[int, tuple[TokenLogprobs, ...]]:
    """Raw-model logprobs of the emitted tokens, for the groups that asked."""
    asking = [
        i
        for i, group in enumerate(groups)
        if group.sampling.logprobs is not None and transfer.sound[i]
    ]
    places = [(i, offset) for i in asking for offset in range(transfer.accepted[i] + 1)]
    if not places:
        return {}
    device = logits.device
    at = torch.tensor([rows.first[i] + offset for i, offset in places], device=device)
    chosen = torch.tensor([_emitted(transfer, i)[offset] for i, offset in places], device=device)
    table = torch.log_softmax(logits[at], dim=-1)
    most = min(max(groups[i].sampling.logprobs or 0 for i in asking), table.shape[1])
    best = table.topk(most, dim=-1)
    columns = [table.gather(1, chosen[:, None]), best.values, best.indices]
    host = torch.cat([column.double() for column in columns], dim=1).tolist()
    found: dict[int, list[TokenLogprobs]] = {i: [] for i in asking}
    for (i, _), (own, *rest) in zip(places, host, strict=True):
        pairs = list(zip(map(int, rest[most:]), rest[:most], strict=True))
        top = tuple(pairs[: groups[i].sampling.logprobs])
        found[i].append(TokenLogprobs(logprob=own, top=top))
    return {i: tuple(entries) for i, entries in found.items()}
