"""Accept or reject: from target logits and drafts to one verdict a request, still on the device."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from scheduler.plan import Group
from scheduler.request import Verifier
from scheduler.runtime.drafting import Drafted
from scheduler.runtime.draws import RoundDraws, by_noise, by_ratio
from scheduler.runtime.laws import RowLaws
from scheduler.sampling.draw import race
from scheduler.sampling.moving import flags, integers
from scheduler.sampling.processors import filtered, greedy_choice, usable
from scheduler.sampling.verify import (
    DraftBatch,
    Verdict,
    verify_block,
    verify_match,
    verify_token,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Target rows of the emitters: row m scores token T + `offsets[m]` of emitter
    `emitters[m]`; `first[g]` is the first row of emitter g, which has depth + 1 of them."""

    emitters: tuple[int, ...]
    offsets: tuple[int, ...]
    first: tuple[int, ...]


def target_rows(depths: Sequence[int]) -> Rows:
    """The rows of emitters with the given planned depths, in order."""
    emitters: list[int] = []
    offsets: list[int] = []
    first: list[int] = []
    for index, depth in enumerate(depths):
        first.append(len(emitters))
        emitters += [index] * (depth + 1)
        offsets += range(depth + 1)
    return Rows(emitters=tuple(emitters), offsets=tuple(offsets), first=tuple(first))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A verdict for all G emitters in one table. `sound` [G]: whether each one's rows had a law,
    up to the terminal's; `good` [M]: which rows had. Rows after the terminal's were never used, but
    theirs are K/V rows too."""

    verdict: Verdict
    sound: Tensor
    good: Tensor


def decide(
    groups: Sequence[Group],
    rows: Rows,
    logits: Tensor,
    drafted: Drafted,
    laws: RowLaws,
    draws: RoundDraws,
) -> Decided:
    """Verify every emitter by its own rule. `logits` [M, V] are the raw target rows."""
    processed = laws.processed(logits, rows.emitters, rows.offsets, drafted.ids)
    batch = _batch(rows, drafted, logits.device)
    greedy = all(group.sampling.greedy for group in groups)
    if greedy:
        verdict = verify_match(batch, greedy_choice(processed))
        return _decided(verdict, batch, usable(processed))
    kept = filtered(processed, laws.settings(rows.emitters))
    good = usable(kept)
    p = laws.to_law(kept)
    q = p.new_zeros(0, p.shape[1]) if drafted.laws is None else drafted.laws.to(p.dtype)
    families = _families(groups)
    parts = []
    for family, members in families.items():
        where = integers(members, logits.device)
        part = _select(batch, where)
        if family is Verifier.SHARED_NOISE:
            verdict = _by_match(groups, rows, kept, part, draws)
            verdict = _with_laws(groups, members, verdict, part, p, q)
        else:
            verify = verify_token
            if family is Verifier.BLOCK:
                verify, part = verify_block, _with_laws_only(part, good)
            verdict = verify(part, p, q, draws.acceptance[where], draws.terminal[where])
        parts.append((where, verdict))
    verdict = parts[0][1] if len(parts) == 1 else _joined(parts, len(groups))
    return _decided(verdict, batch, good)


def _batch(rows: Rows, drafted: Drafted, device: torch.device) -> DraftBatch:
    width = drafted.ids.shape[1]
    count = len(rows.first)
    return DraftBatch(
        drafts=drafted.ids,
        k=drafted.k,
        target_row=integers(rows.first, device),
        draft_row=torch.arange(count, device=device) * width,
    )


def _families(groups: Sequence[Group]) -> dict[Verifier, list[int]]:
    """Members of each rule; greedy requests are verified by equality, like shared noise."""
    families: dict[Verifier, list[int]] = {}
    for index, group in enumerate(groups):
        family = group.verifier if by_ratio(group) else Verifier.SHARED_NOISE
        families.setdefault(family, []).append(index)
    return families


def _select(batch: DraftBatch, where: Tensor) -> DraftBatch:
    return DraftBatch(
        drafts=batch.drafts[where],
        k=batch.k[where],
        target_row=batch.target_row[where],
        draft_row=batch.draft_row[where],
    )


def _by_match(
    groups: Sequence[Group], rows: Rows, kept: Tensor, part: DraftBatch, draws: RoundDraws
) -> Verdict:
    """The target's own choice at every row: the race on shared noise, or the argmax."""
    choices = greedy_choice(kept)
    racing = [row for row, index in enumerate(rows.emitters) if by_noise(groups[index])]
    if racing:
        at = integers(racing, kept.device)
        emitters = [rows.emitters[row] for row in racing]
        noise = draws.noise(emitters, [rows.offsets[row] for row in racing])
        choices[at] = race(kept[at], noise)
    return verify_match(part, choices)


def _with_laws(
    groups: Sequence[Group],
    members: Sequence[int],
    verdict: Verdict,
    part: DraftBatch,
    p: Tensor,
    q: Tensor,
) -> Verdict:
    """For shared noise, p and q of the drafts come from the laws; greedy ones stay one-hot."""
    width = part.drafts.shape[1]
    noisy = [by_noise(groups[index]) for index in members]
    if not width or not any(noisy):
        return verdict
    raced = flags(noisy, p.device)[:, None]
    places = torch.arange(width, device=p.device)
    inside = places < part.k[:, None]
    p_rows = part.target_row[:, None] + torch.minimum(places, part.k[:, None])
    q_rows = part.draft_row[:, None] + places
    return Verdict(
        accepted=verdict.accepted,
        terminal=verdict.terminal,
        fallback=verdict.fallback,
        bound=verdict.bound,
        p_draft=torch.where(raced, (p[p_rows, part.drafts] * inside).double(), verdict.p_draft),
        q_draft=torch.where(raced, (q[q_rows, part.drafts] * inside).double(), verdict.q_draft),
        mass=verdict.mass,
        base=verdict.base,
        choice=verdict.choice,
    )


def _joined(parts: Sequence[tuple[Tensor, Verdict]], count: int) -> Verdict:
    """Verdicts of disjoint members as one table."""
    where = torch.cat([members for members, _ in parts])
    order = torch.empty_like(where)
    order[where] = torch.arange(count, device=where.device)

    def joined(field: str) -> Tensor:
        columns = [getattr(verdict, field) for _, verdict in parts]
        wide = reduce(torch.promote_types, (column.dtype for column in columns))
        return torch.cat([column.to(wide) for column in columns])[order]

    return Verdict(**{field: joined(field) for field in Verdict.__slots__})


def _with_laws_only(batch: DraftBatch, good: Tensor) -> DraftBatch:
    """The batch without the drafts after a target row that has no law (`good` [M] is false).

    Block verification looks at the rows of all drafts: the test of draft i needs p_{i+1}, and one
    row without a law would decide the tests before it. Where p_{j+1} has none, serial decoding
    ends at d_1 .. d_j and not before. So it is as if j had been drafted: j follows from d_1 .. d_j
    alone, which is no choice by a later draft (contract section 3), and the request ends only if
    all j stand, for then the terminal would have to come from that row.
    """
    width = batch.drafts.shape[1]
    places = torch.arange(width + 1, device=good.device)
    inside = torch.minimum(places, batch.k[:, None])
    leading = good[batch.target_row[:, None] + inside].long().cumprod(dim=1).sum(dim=1)
    return replace(batch, k=torch.minimum(batch.k, leading))


def _decided(verdict: Verdict, batch: DraftBatch, good: Tensor) -> Decided:
    width = batch.drafts.shape[1]
    places = torch.arange(width + 1, device=good.device)
    rows = batch.target_row[:, None] + torch.minimum(places, batch.k[:, None])
    unused = places > verdict.accepted[:, None]
    return Decided(verdict=verdict, sound=(good[rows] | unused).all(dim=1), good=good)
