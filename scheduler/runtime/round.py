"""One round above `Forward`: draft loop, one packed target call, verification, one transfer back.

Written once for every device and model runtime. Knows plans, rows and laws; nothing of requests'
lives, stop rules or text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

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
    TerminalKind,
    TokenLogprobs,
)
from scheduler.runtime.deciding import Decided, Rows, decide, target_rows
from scheduler.runtime.drafting import Drafted, Drafter
from scheduler.runtime.draws import RoundDraws, by_ratio
from scheduler.runtime.laws import RowLaws
from scheduler.runtime.retained import RetainedRows
from scheduler.runtime.round_watch import RoundWatch
from scheduler.runtime.spoiled import SpoiledBlocks
from scheduler.runtime.target_call import TargetCall, target_call
from scheduler.runtime.timed import TimedForward
from scheduler.sampling.moving import integers, moved
from scheduler.sampling.processors import ToLaw, law
from scheduler.sampling.rng import Randomness

_NO_LAW = "no token is left to choose from, or the model gave a row that is not finite"


@dataclass(frozen=True, slots=True)
class _Transfer:
    """The whole verdict on the host: one row an emitter."""

    accepted: list[int]
    terminal: list[int]
    k: list[int]
    sound: list[bool]
    whole: list[bool]
    lost: list[bool]
    fell_back: list[bool]
    drafts: list[list[int]]
    p: list[list[float]]
    q: list[list[float]]
    mass: list[list[float]]
    base: list[list[float]]
    bound: list[list[float]]
    choice: list[list[float]]
    chunks: list[bool]


class RoundExecutor:
    """Executes frozen plans over a target and perhaps a draft.

    `vocabulary` is the shared event space: logits past it (a padded table) are cut off. `law` turns
    kept rows into probabilities.
    """

    def __init__(
        self,
        *,
        target: TimedForward,
        draft: TimedForward | None,
        vocabulary: int,
        randomness: Randomness,
        clock: Callable[[], float],
        law: ToLaw = law,
    ) -> None:
        self._target = target
        self._draft = draft
        self._vocabulary = vocabulary
        self._randomness = randomness
        self._clock = clock
        self._law = law
        self._drafter = Drafter(draft, vocabulary, target.device)
        self._retained = RetainedRows()
        self._spoiled = SpoiledBlocks(target, Role.TARGET)
        self._spoiled_drafts = None if draft is None else SpoiledBlocks(draft, Role.DRAFT)

    @torch.inference_mode()
    def run(self, plan: RoundPlan) -> RoundResult:
        """Draft, verify and decide `plan`."""
        for group in plan.groups:
            self._clean(group)
        try:
            return self._run(plan)
        except Exception:
            for group in plan.groups:  # what it wrote, nobody looked at
                self._spoil(group, target=True, draft=True)
            raise

    def _run(self, plan: RoundPlan) -> RoundResult:
        prepared, inside = self._prepared(), self._inside()
        watch = RoundWatch(self._target.device, self._clock)
        emitters = [group for group in plan.groups if group.emits]
        laws = RowLaws(emitters, self._vocabulary, self._target.device, self._law)
        draws = RoundDraws(emitters, self._randomness, self._vocabulary, self._target.device)
        drafted = self._drafter.draft(emitters, laws, draws)
        watch.part_ended()
        rows = target_rows(drafted.depths)
        logits, finite = self._verify(plan, rows, drafted)
        watch.part_ended()
        results: dict[int, GroupResult] = {}
        transfer = None
        if emitters:
            decided = decide(emitters, rows, logits, drafted, laws, draws)
            transfer = _transfer(decided, drafted, finite)
            self._note_spoiled(emitters, transfer)
            logprobs = _logprobs(emitters, rows, logits, transfer)
            results = _results(emitters, transfer, drafted, logprobs, draws.acceptance_host)
        chunks = [group for group in plan.groups if not group.emits]
        sound = transfer.chunks if transfer else [bool(value) for value in finite.tolist()]
        results |= self._prefilled(chunks, sound)
        return RoundResult(
            round_id=plan.round_id,
            coordinate=plan.coordinate,
            groups=tuple(results[group.request] for group in plan.groups),
            timings=watch.timings(self._inside() - inside),
            target_rows=sum(g.rows for g in plan.groups) + sum(drafted.depths),
            draft_rows=drafted.rows,
            logit_rows=len(rows.emitters) + _turned(plan.groups),
            host_syncs=_host_syncs(emitters),
            residual_fallbacks=sum(transfer.fell_back) if transfer else 0,
            prepared=self._prepared() > prepared,
        )

    def _inside(self) -> float:
        """Seconds spent inside forwards so far."""
        return self._target.seconds + (self._draft.seconds if self._draft else 0.0)

    def _prepared(self) -> int:
        """Model calls so far that made something ready for their like."""
        return self._target.prepared + (self._draft.prepared if self._draft else 0)

    def _verify(self, plan: RoundPlan, rows: Rows, drafted: Drafted) -> tuple[Tensor, Tensor]:
        """Raw target logits [M, V] of the emitters' rows, and for each other group whether its
        rows came out finite (its last one saw them all). K/V rows of all groups are written, and
        rows that a later round starts from are kept."""
        self._retained.keep_only(plan.held)
        call = target_call(plan.groups, drafted, self._target.device)
        if not call.segments:
            none = torch.ones(0, dtype=torch.bool, device=self._target.device)
            return self._with_started(plan, rows, call, None), none
        scored = len(call.scored)
        hidden = self._target.hidden(call.token_ids, call.segments, (*call.scored, *call.lasts))
        finite = hidden[scored:].isfinite().all(dim=1)
        silent = [group for group in plan.groups if not group.emits]
        held = [(group, place) for place, group in enumerate(silent, scored) if group.retains]
        needed = integers([*range(scored), *(place for _, place in held)], hidden.device)
        if not len(needed):
            nothing = None if call.started else hidden.new_zeros(0, self._vocabulary)
            return self._with_started(plan, rows, call, nothing), finite
        logits = self._target.logits(hidden[needed])[:, : self._vocabulary]
        for (group, _), row in zip(held, logits[scored:], strict=True):
            self._retained.hold(group, row)
        return self._with_started(plan, rows, call, logits[:scored]), finite

    def _with_started(
        self, plan: RoundPlan, rows: Rows, call: TargetCall, logits: Tensor | None
    ) -> Tensor:
        """The emitters' rows [M, V] in order: those of the call [M', V], and retained ones."""
        emitters = [group for group in plan.groups if group.emits]
        held = [self._retained.row(emitters[number])[None] for number in call.started]
        if logits is not None and not held:
            return logits
        parts = torch.cat([*held, *([] if logits is None else [logits])])
        firsts = [rows.first[number] for number in call.started]
        others = sorted(set(range(len(rows.emitters))) - set(firsts))
        order = torch.empty(len(parts), dtype=torch.int64)
        order[[*firsts, *others]] = torch.arange(len(parts))
        return parts[moved(order, parts.device)]

    def _clean(self, group: Group) -> None:
        """Zero what others left in the blocks of `group`, past its committed rows."""
        self._spoiled.clean(group, group.start)
        if self._spoiled_drafts is not None and isinstance(group.draft, DeviceDraft):
            self._spoiled_drafts.clean(group, group.draft.rows)

    def _spoil(self, group: Group, *, target: bool, draft: bool) -> None:
        if target:
            self._spoiled.note(group)
        if draft and self._spoiled_drafts is not None:
            self._spoiled_drafts.note(group)

    def _note_spoiled(self, emitters: Sequence[Group], transfer: _Transfer) -> None:
        """A row without a law may stand on K/V rows that are not finite, be it one whose draft was
        rejected. Masked rows count too (0 * NaN): nobody else may gather them."""
        flags = zip(emitters, transfer.sound, transfer.whole, transfer.lost, strict=True)
        for group, sound, whole, lost in flags:
            self._spoil(group, target=not whole, draft=lost or not sound)

    def _prefilled(self, groups: Sequence[Group], sound: Sequence[bool]) -> dict[int, GroupResult]:
        """Results of the chunks that do not reach the frontier."""
        for group, good in zip(groups, sound, strict=True):
            self._spoil(group, target=not good, draft=False)
        pairs = zip(groups, sound, strict=True)
        return {group.request: _prefilled(group, sound=good) for group, good in pairs}


def _host_syncs(emitters: Sequence[Group]) -> int:
    """The verdict's transfer, and one for logprobs if anyone asked."""
    return 2 if any(group.sampling.logprobs is not None for group in emitters) else 1


def _transfer(decided: Decided, drafted: Drafted, finite: Tensor) -> _Transfer:
    """Everything the host needs in one copy. float64 holds every id and every float32 exactly.

    `finite` [P] rides along: whether the chunks that emit nothing came out finite."""
    verdict, width = decided.verdict, drafted.ids.shape[1]
    scalars = [verdict.accepted, verdict.terminal, drafted.k, decided.sound]
    scalars += [drafted.lost, verdict.fallback]
    tables = [drafted.ids, verdict.p_draft, verdict.q_draft, verdict.mass, verdict.base]
    tables += [verdict.bound, verdict.choice]
    columns = [each.double()[:, None] for each in scalars] + [each.double() for each in tables]
    whole = torch.cat(columns, dim=1)
    flat = torch.cat([whole.flatten(), finite.double(), decided.good.double()]).tolist()
    count, size = whole.shape
    chunks = [bool(value) for value in flat[count * size : count * size + len(finite)]]
    good = iter(flat[count * size + len(finite) :])
    host = [flat[row * size : (row + 1) * size] for row in range(count)]

    def table(number: int) -> list[list[float]]:
        first = len(scalars) + number * width
        return [row[first : first + width] for row in host]

    return _Transfer(
        accepted=[int(row[0]) for row in host],
        terminal=[int(row[1]) for row in host],
        k=[int(row[2]) for row in host],
        sound=[bool(row[3]) for row in host],
        whole=[all(list(islice(good, depth + 1))) for depth in drafted.depths],
        lost=[bool(row[4]) for row in host],
        fell_back=[bool(row[5]) for row in host],
        drafts=[[int(value) for value in row] for row in table(0)],
        p=table(1),
        q=table(2),
        mass=table(3),
        base=table(4),
        bound=table(5),
        choice=table(6),
        chunks=chunks,
    )


def _emitted(transfer: _Transfer, index: int) -> tuple[int, ...]:
    accepted = transfer.accepted[index]
    return (*transfer.drafts[index][:accepted], transfer.terminal[index])


def _results(
    emitters: Sequence[Group],
    transfer: _Transfer,
    drafted: Drafted,
    logprobs: dict[int, tuple[TokenLogprobs, ...]],
    uniforms: list[list[float]],
) -> dict[int, GroupResult]:
    return {
        group.request: _result(
            (group, index), transfer, drafted, uniforms[index], logprobs.get(index, ())
        )
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
            bound=transfer.bound[index][place],
            choice=None if tested else int(transfer.choice[index][place]),
        )
        for place in range(transfer.k[index])
    )


def _result(
    emitter: tuple[Group, int],
    transfer: _Transfer,
    drafted: Drafted,
    uniforms: list[float],
    logprobs: tuple[TokenLogprobs, ...],
) -> GroupResult:
    group, index = emitter
    accepted, k = transfer.accepted[index], transfer.k[index]
    drafts = tuple(transfer.drafts[index][: drafted.depths[index]])
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
        draft_written=_draft_written(group, transfer.drafts[index][: drafted.steps]),
        logprobs=logprobs,
        draft_lost=transfer.lost[index],
        fallback=transfer.fell_back[index],
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


def _draft_written(group: Group, drafts: Sequence[int]) -> tuple[int, ...]:
    """Ids of the rows that the draft model wrote: pending tokens, then all drafts that were drawn
    but the last."""
    if not isinstance(group.draft, DeviceDraft):
        return ()
    if not group.draft.depth:
        return group.tokens[group.draft.rows : group.draft.rows + group.draft.catch_up]
    return group.tokens[group.draft.rows :] + tuple(drafts[: group.draft.depth][:-1])


def _turned(groups: Sequence[Group]) -> int:
    """Logit rows that the call has more than the emitters use: those retained from it, less those
    that were retained before."""
    return sum(g.retains for g in groups) - sum(g.emits and not g.rows for g in groups)


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
    at = integers([rows.first[i] + offset for i, offset in places], device)
    chosen = integers([_emitted(transfer, i)[offset] for i, offset in places], device)
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
