"""The processed row laws of one round: processors of a row see its own prefix (contract section 8).

A row is named by (emitter, offset): it scores the token that would stand `offset` places after
the published ones, so its prefix is O and the first `offset` drafts. Target and draft rows are
processed alike.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scheduler.plan import Group
from scheduler.sampling.moving import floats, integers, moved
from scheduler.sampling.processors import (
    RowSettings,
    ToLaw,
    add_bias,
    forbid,
    law,
    penalise,
    row_settings,
)

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


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
        self._biases: dict[int, tuple[Integers, Floats]] = {}
        self._stop_ids: dict[int, Integers] = {}
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
        rows, ids = self._cells([(row, ids) for row, ids, _ in chosen])
        values = np.concatenate([values for _, _, values in chosen])
        return add_bias(logits, rows, ids, moved(torch.from_numpy(values), self._device))

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
        return forbid(logits, *self._cells(chosen))

    def _cells(self, chosen: Sequence[tuple[int, Integers]]) -> tuple[Tensor, Tensor]:
        """(rows, ids) [n] on the device of host ids by row: two copies, however many rows."""
        counts = [len(ids) for _, ids in chosen]
        rows = np.repeat(np.array([row for row, _ in chosen], dtype=np.int64), counts)
        ids = np.concatenate([ids for _, ids in chosen])
        return (
            moved(torch.from_numpy(rows), self._device),
            moved(torch.from_numpy(ids), self._device),
        )

    def _bias(self, index: int) -> tuple[Integers, Floats]:
        """(ids, values) of a group's bias on the host, made once a round."""
        if index not in self._biases:
            bias = self._groups[index].sampling.logit_bias
            ids = np.fromiter(bias.keys(), dtype=np.int64, count=len(bias))
            values = np.fromiter(bias.values(), dtype=np.float64, count=len(bias))
            self._biases[index] = (ids, values)
        return self._biases[index]

    def _stops(self, index: int) -> Integers:
        """A group's stop ids on the host, made once a round."""
        if index not in self._stop_ids:
            stops = sorted(self._groups[index].stop.token_ids)
            self._stop_ids[index] = np.array(stops, dtype=np.int64)
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
        rows, indices, own = (
            integers(column, self._device) for column in zip(*chosen, strict=True)
        )
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
            floats([each.repetition_penalty for each in sampling], self._device),
            floats([each.presence_penalty for each in sampling], self._device),
            floats([each.frequency_penalty for each in sampling], self._device),
        )
        return logits.index_copy(0, rows, penalised)

    def _base(self, index: int) -> tuple[Tensor, Tensor]:
        """(prompt tokens seen [V] bool, output counts [V]) of the published tokens."""
        if index not in self._counts:
            group = self._groups[index]
            prompt = integers(group.tokens[: group.prompt_length], self._device)
            output = integers(group.tokens[group.prompt_length :], self._device)
            # bincount would have the host wait for the largest id.
            counts = torch.zeros(self._vocabulary, device=self._device)
            counts.index_add_(0, output, counts.new_ones(len(output)))
            seen = torch.zeros_like(counts, dtype=torch.bool).index_fill_(0, prompt, value=True)
            self._counts[index] = (seen, counts)
        return self._counts[index]


def _guarded(group: Group, offset: int) -> bool:
    """Whether min_tokens forbids the stop ids at this row's own count."""
    emitted = len(group.tokens) - group.prompt_length + offset
    return emitted < group.stop.min_tokens
