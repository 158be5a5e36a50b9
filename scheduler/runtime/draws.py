"""The random numbers of one round, all known from the plan before anything of it runs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from scheduler.plan import Group, HostDraft
from scheduler.request import Verifier
from scheduler.sampling.moving import integers, moved
from scheduler.sampling.rng import DrawKey, Randomness, noise_key, round_keys


def planned_depth(group: Group) -> int:
    """Drafts that the plan gives a group: the rows that its share of the target call has."""
    if group.draft is None:
        return 0
    if isinstance(group.draft, HostDraft):
        return len(group.draft.token_ids)
    return group.draft.depth


def by_ratio(group: Group) -> bool:
    """Whether a group is verified by a ratio test (token, block) and not by equality."""
    return not group.sampling.greedy and group.verifier is not Verifier.SHARED_NOISE


def by_noise(group: Group) -> bool:
    """Whether a group draws by the race on shared noise."""
    return not group.sampling.greedy and group.verifier is Verifier.SHARED_NOISE


class RoundDraws:
    """Uniforms of the ratio verifiers and noise of the races, for the emitters of one round.

    `proposal`, `acceptance` [G, Kmax] and `terminal` [G] are float64 on the device, 0 where a
    group uses none; `acceptance_host` is the same on the host, for the log.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        randomness: Randomness,
        vocabulary: int,
        device: torch.device,
    ) -> None:
        depths = [planned_depth(group) for group in groups]
        width = max(depths, default=0)
        table = torch.zeros(len(groups), 2 * width + 1, dtype=torch.float64)
        self._fill(table, groups, depths, randomness)
        self.acceptance_host = table[:, width : 2 * width].tolist()
        on_device = moved(table, device)
        self.proposal = on_device[:, :width]
        self.acceptance = on_device[:, width : 2 * width]
        self.terminal = on_device[:, 2 * width]
        self._first: dict[int, int] = {}
        keys: list[DrawKey] = []
        for index, group in enumerate(groups):
            if by_noise(group):
                self._first[index] = len(keys)
                base = len(group.tokens)
                keys += [
                    noise_key(group.sampling.seed, group.choice, base + offset)
                    for offset in range(depths[index] + 1)
                ]
        self._noise = randomness.gumbel(keys, vocabulary, device) if keys else None

    def noise(self, emitters: Sequence[int], offsets: Sequence[int]) -> Tensor:
        """Gumbel noise [n, V] of the tokens that rows (emitter, offset) score."""
        if self._noise is None:
            raise LookupError("no group of this round draws by noise")
        rows = [self._first[e] + o for e, o in zip(emitters, offsets, strict=True)]
        return self._noise[integers(rows, self._noise.device)]

    @staticmethod
    def _fill(
        table: Tensor, groups: Sequence[Group], depths: Sequence[int], randomness: Randomness
    ) -> None:
        """One call for all keys: proposals and acceptances by column, the terminal last."""
        width = (table.shape[1] - 1) // 2
        keys: list[DrawKey] = []
        cells: list[int] = []
        for index, (group, depth) in enumerate(zip(groups, depths, strict=True)):
            if not by_ratio(group):
                continue
            seed, base = group.sampling.seed, len(group.tokens)
            proposal, acceptance, terminal = round_keys(seed, group.choice, base, depth)
            keys += [*proposal, *acceptance, terminal]
            start = index * table.shape[1]
            cells += [start + column for column in range(depth)]
            cells += [start + width + column for column in range(depth)]
            cells.append(start + 2 * width)
        if keys:
            table.view(-1)[torch.tensor(cells)] = randomness.uniforms(keys)
