"""The processed row laws of one round: processors of a row see its own prefix (contract section 8).

A row is named by (emitter, offset): it scores the token that would stand `offset` places after
the published ones, so its prefix is O and the first `offset` drafts. Target and draft rows are
processed alike.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from scheduler.plan import Group
from scheduler.sampling.processors import (
    RowSettings,
    ToLaw,
    add_bias,
    forbid,
    law,
    penalise,
    row_settings,
)


class RowLaws:
    """Processors of the emitting groups of one round. Counts of O are made once, lazily.

    `to_law` turns rows that `processors.filtered` gave into probabilities.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        vocabulary: int,
        device: torch.device,
        to_law: ToLaw = law,
    ) -> None:
        self.to_law = to_law
        self._groups = groups
        self._vocabulary = vocabulary
        self._device = device
        self._biased = any(group.sampling.logit_bias for group in groups)
        self._penalised = any(group.sampling.penalised for group in groups)
        self._guarded = any(_guarded(group, 0) for group in groups)
        self._counts: dict[int, tuple[Tensor, Tensor]] = {}
        self._biases: dict[int, tuple[Tensor, Tensor]] = {}
        self._stop_ids: dict[int, Tensor] = {}
        self._settings: dict[tuple[int, ...], RowSettings] = {}

    def settings(self, emitters: Sequence[int]) -> RowSettings:
        """Filters of one row for each index in `emitters`."""
        # Every draft step asks for the same rows' filters again.
        asked = tuple(emitters)
        if asked not in self._settings:
            self._settings[asked] = self._gathered(asked)
        return self._settings[asked]

    def _gathered(self, emitters: Sequence[int]) -> RowSettings:
        sampling = [self._groups[index].sampling for index in emitters]
        return row_settings(
            temperature=[each.temperature for each in sampling],
            top_k=[each.top_k for each in sampling],
            top_p=[each.top_p for each in sampling],
            min_p=[each.min_p for each in sampling],
            vocabulary=self._vocabulary,
            device=self._device,
        )

    def processed(
        self, logits: Tensor, emitters: Sequence[int], offsets: Sequence[int], drafts: Tensor
    ) -> Tensor:
        """Bias, penalties and masks for rows [M, V]; `drafts` [G, Kmax] are the ids so far."""
        if self._biased:
            logits = self._with_bias(logits, emitters)
        if self._penalised:
            logits = self._with_penalties(logits, emitters, offsets, drafts)
        if self._guarded:
            logits = self._with_guard(logits, emitters, offsets)
        return logits

    def _with_bias(self, logits: Tensor, emitters: Sequence[int]) -> Tensor:
        chosen = [
            (row, *self._bias(index))
            for row, index in enumerate(emitters)
            if self._groups[index].sampling.logit_bias
        ]
        if not chosen:
            return logits
        rows = torch.cat([torch.full_like(ids, row) for row, ids, _ in chosen])
        ids = torch.cat([ids for _, ids, _ in chosen])
        return add_bias(logits, rows, ids, torch.cat([values for _, _, values in chosen]))

    def _with_guard(
        self, logits: Tensor, emitters: Sequence[int], offsets: Sequence[int]
    ) -> Tensor:
        chosen = [
            (row, self._stops(index))
            for row, (index, offset) in enumerate(zip(emitters, offsets, strict=True))
            if _guarded(self._groups[index], offset)
        ]
        if not chosen:
            return logits
        rows = torch.cat([torch.full_like(ids, row) for row, ids in chosen])
        return forbid(logits, rows, torch.cat([ids for _, ids in chosen]))

    def _bias(self, index: int) -> tuple[Tensor, Tensor]:
        """(ids, values) of a group's bias, made once a round."""
        if index not in self._biases:
            bias = self._groups[index].sampling.logit_bias
            self._biases[index] = (self._ids(list(bias)), self._floats(list(bias.values())))
        return self._biases[index]

    def _stops(self, index: int) -> Tensor:
        """A group's stop ids, made once a round."""
        if index not in self._stop_ids:
            self._stop_ids[index] = self._ids(sorted(self._groups[index].stop.token_ids))
        return self._stop_ids[index]

    def _with_penalties(
        self, logits: Tensor, emitters: Sequence[int], offsets: Sequence[int], drafts: Tensor
    ) -> Tensor:
        chosen = [
            (row, index, offset)
            for row, (index, offset) in enumerate(zip(emitters, offsets, strict=True))
            if self._groups[index].sampling.penalised
        ]
        if not chosen:
            return logits
        rows, indices, own = (self._ids(column) for column in zip(*chosen, strict=True))
        bases = [self._base(index) for _, index, _ in chosen]
        counts = torch.stack([count for _, count in bases])
        places = torch.arange(drafts.shape[1], device=self._device)
        before = (places < own[:, None]).to(counts.dtype)
        counts = counts.scatter_add(1, drafts[indices], before)
        sampling = [self._groups[index].sampling for _, index, _ in chosen]
        penalised = penalise(
            logits[rows],
            torch.stack([seen for seen, _ in bases]),
            counts,
            self._floats([each.repetition_penalty for each in sampling]),
            self._floats([each.presence_penalty for each in sampling]),
            self._floats([each.frequency_penalty for each in sampling]),
        )
        return logits.index_copy(0, rows, penalised)

    def _base(self, index: int) -> tuple[Tensor, Tensor]:
        """(prompt tokens seen [V] bool, output counts [V]) of the published tokens."""
        if index not in self._counts:
            group = self._groups[index]
            prompt = self._ids(group.tokens[: group.prompt_length])
            output = self._ids(group.tokens[group.prompt_length :])
            counts = torch.bincount(output, minlength=self._vocabulary)
            seen = torch.bincount(prompt, minlength=self._vocabulary) > 0
            self._counts[index] = (seen, counts.to(torch.float32))
        return self._counts[index]

    def _ids(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

    def _floats(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self._device)


def _guarded(group: Group, offset: int) -> bool:
    """Whether min_tokens forbids the stop ids at this row's own count."""
    emitted = len(group.tokens) - group.prompt_length + offset
    return emitted < group.stop.min_tokens
