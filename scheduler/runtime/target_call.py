"""Lays out one round's packed target call: inputs, segments, and which rows' logits are needed.

It knows groups and drafts. It runs nothing and knows no laws.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scheduler.plan import Group, Role
from scheduler.runtime.drafting import Drafted
from scheduler.runtime.rows import Segment
from scheduler.sampling.moving import integers


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCall:
    """The call of all groups that have rows, in the plan's order.

    `token_ids` int64 [N]. `scored` are the rows that score drafts and terminals, emitter after
    emitter; the first row of the emitters numbered in `started` is not among them: it is retained
    from an earlier round. `lasts` is the last row of each group that emits nothing.
    """

    segments: tuple[Segment, ...]
    token_ids: Tensor
    scored: tuple[int, ...]
    started: tuple[int, ...]
    lasts: tuple[int, ...]


def target_call(groups: Sequence[Group], drafted: Drafted, device: torch.device) -> TargetCall:
    """Lay out the rows of `groups`; drafts are copied from `drafted` on the device."""
    segments: list[Segment] = []
    tokens: list[int] = []
    scored: list[int] = []
    started: list[int] = []
    lasts: list[int] = []
    slots: list[int] = []
    cells: list[int] = []
    emitter = 0
    for group in groups:
        depth = drafted.depths[emitter] if group.emits else 0
        if group.rows + depth:
            blocks = group.blocks[Role.TARGET]
            segments.append(Segment(start=group.start, rows=group.rows + depth, blocks=blocks))
        tokens += group.tokens[group.start : group.start + group.rows]
        if group.emits:
            if not group.rows:
                started.append(emitter)
            scored += range(len(tokens) - min(group.rows, 1), len(tokens) + depth)
            slots += range(len(tokens), len(tokens) + depth)
            cells += [emitter * drafted.ids.shape[1] + place for place in range(depth)]
            emitter += 1
        else:
            lasts.append(len(tokens) - 1)
        tokens += [0] * depth
    ids = integers(tokens, device)
    if slots:
        ids[integers(slots, device)] = drafted.ids.view(-1)[integers(cells, device)]
    return TargetCall(
        segments=tuple(segments),
        token_ids=ids,
        scored=tuple(scored),
        started=tuple(started),
        lasts=tuple(lasts),
    )
