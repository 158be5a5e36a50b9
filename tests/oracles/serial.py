"""The serial reference: one token at a time, one request, numpy only, nothing of the engine.

Temperature 0 and shared noise give one text; other laws give the row of each step.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

Table = Callable[[tuple[int, ...]], Sequence[float]]


def greedy_text(
    table: Table, prompt: Sequence[int], count: int, stop: frozenset[int] = frozenset()
) -> list[int]:
    """Tokens by argmax, lowest id on ties, up to and including a stop id."""
    tokens = list(prompt)
    for _ in range(count):
        row = np.asarray(table(tuple(tokens)), dtype=np.float32)
        tokens.append(int(np.flatnonzero(row == row.max())[0]))
        if tokens[-1] in stop:
            break
    return tokens[len(prompt) :]


def noise_text(
    table: Table,
    prompt: Sequence[int],
    count: int,
    noise: Callable[[int], np.ndarray],
    temperature: float = 1.0,
) -> list[int]:
    """Tokens by the race on `noise(position)`, the Gumbel noise of every id at that position."""
    tokens = list(prompt)
    for _ in range(count):
        row = np.asarray(table(tuple(tokens)), dtype=np.float32) / np.float32(temperature)
        raced = row.astype(np.float64) + noise(len(tokens))
        tokens.append(int(np.flatnonzero(raced == raced.max())[0]))
    return tokens[len(prompt) :]


def softmax(row: Sequence[float], temperature: float = 1.0) -> list[float]:
    """Probabilities in float64, by the math module."""
    peak = max(row)
    weights = [math.exp((value - peak) / temperature) for value in row]
    return [weight / sum(weights) for weight in weights]
