"""Context-dependent laws: every prefix has a row of logits that request settings turn into a law.

`Table.rows` goes through the product, `Table.expected` through plain Python over NumPy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch

from scheduler.sampling.processors import (
    add_bias,
    filtered,
    forbid,
    law,
    penalise,
    row_settings,
)

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Processing:
    """Settings of one request. `late` ids are forbidden in the first `min_tokens` outputs."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)
    late: tuple[int, ...] = ()
    min_tokens: int = 0


def random_logits(seed, vocabulary, scale=1.5):
    """A table of normal logits, one row a prefix."""

    @cache
    def of_length(length):
        shape = (vocabulary,) * (length + 1)
        return np.random.default_rng([seed, length]).normal(size=shape) * scale

    return lambda prefix: of_length(len(prefix))[prefix]


def constant_logits(*probabilities):
    """The same law at every prefix."""
    with np.errstate(divide="ignore"):
        row = np.log(np.array(probabilities))
    return lambda _prefix: row


def processed(logits, prefix, prompt_length, settings):
    """The law of one prefix, the plain way."""
    row = [float(value) + settings.bias.get(i, 0.0) for i, value in enumerate(logits)]
    output = prefix[prompt_length:]
    for token in set(prefix):
        factor = settings.repetition
        row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
    for token in output:
        row[token] -= settings.frequency
    for token in set(output):
        row[token] -= settings.presence
    if len(output) < settings.min_tokens:
        for token in settings.late:
            row[token] = -np.inf
    return survivors(np.array(row), settings)


def survivors(row, settings):
    """Temperature and filters on one row of logits, the plain way."""
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    law_row = np.zeros(len(row))
    if settings.temperature < 1e-5:
        law_row[order[0]] = 1.0
        return law_row
    weight = np.exp((row - row.max()) / settings.temperature)
    order = order[: settings.top_k or len(row)]
    total = sum(weight[i] for i in order)
    if settings.top_p < 1.0:
        mass, kept = 0.0, []
        for i in order:
            kept.append(i)
            mass += weight[i] / total
            if mass >= settings.top_p:
                break
        order = kept
    order = [i for i in order if weight[i] >= settings.min_p * weight[order[0]]]
    for i in order:
        law_row[i] = weight[i]
    return law_row / law_row.sum()


class Table:
    """The law of every prefix of one request, cached."""

    def __init__(
        self,
        logits: Callable[[tuple[int, ...]], np.ndarray],
        *,
        prompt_length: int = 1,
        settings: Processing | None = None,
    ):
        self._logits = logits
        self._prompt_length = prompt_length
        self._settings = settings or Processing()
        self._expected = {}
        self._places = {}
        self._rows = None

    def expected(self, prefix):
        """The oracle's law [V] after `prefix`."""
        if prefix not in self._expected:
            self._expected[prefix] = processed(
                self._logits(prefix), prefix, self._prompt_length, self._settings
            )
        return self._expected[prefix]

    def rows(self, prefixes):
        """The product's laws [n, V] after `prefixes`, float64."""
        new = [prefix for prefix in dict.fromkeys(prefixes) if prefix not in self._places]
        if new:
            self._add(new)
        return self._rows[[self._places[prefix] for prefix in prefixes]]

    def _add(self, prefixes):
        rows = self._law(prefixes)
        self._rows = rows if self._rows is None else torch.cat([self._rows, rows])
        for prefix in prefixes:
            self._places[prefix] = len(self._places)

    def _law(self, prefixes):
        logits = torch.from_numpy(np.stack([self._logits(prefix) for prefix in prefixes]))
        logits = self._masked(self._penalised(self._biased(logits), prefixes), prefixes)
        n, vocabulary = logits.shape
        chosen = self._settings
        return law(
            filtered(
                logits,
                row_settings(
                    temperature=[chosen.temperature] * n,
                    top_k=[chosen.top_k] * n,
                    top_p=[chosen.top_p] * n,
                    min_p=[chosen.min_p] * n,
                    vocabulary=vocabulary,
                    device=CPU,
                ),
            )
        )

    def _biased(self, logits):
        ids = list(self._settings.bias)
        n = len(logits)
        return add_bias(
            logits,
            torch.arange(n).repeat_interleave(len(ids)),
            torch.tensor(ids * n, dtype=torch.int64),
            torch.tensor(list(self._settings.bias.values()) * n, dtype=torch.float64),
        )

    def _penalised(self, logits, prefixes):
        n, vocabulary = logits.shape
        cut = self._prompt_length
        prompts = [np.bincount(prefix[:cut], minlength=vocabulary) for prefix in prefixes]
        outputs = [
            np.bincount(np.array(prefix[cut:], dtype=int), minlength=vocabulary)
            for prefix in prefixes
        ]
        return penalise(
            logits,
            torch.from_numpy(np.stack(prompts)),
            torch.from_numpy(np.stack(outputs)),
            torch.full((n,), self._settings.repetition, dtype=torch.float64),
            torch.full((n,), self._settings.presence, dtype=torch.float64),
            torch.full((n,), self._settings.frequency, dtype=torch.float64),
        )

    def _masked(self, logits, prefixes):
        early = self._prompt_length + self._settings.min_tokens
        marks = [
            (row, token)
            for row, prefix in enumerate(prefixes)
            if len(prefix) < early
            for token in self._settings.late
        ]
        rows = torch.tensor([row for row, _ in marks], dtype=torch.int64)
        return forbid(logits, rows, torch.tensor([t for _, t in marks], dtype=torch.int64))
