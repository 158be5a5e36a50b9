"""Counter randomness: every random number is a pure function of the key that names it.

Knows keys and bits; nothing of laws, rows or what a draw decides.

The generator is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) with the finaliser constants of
Stafford's variant 13, in its published form passing BigCrush. A key's fields are folded through
the same bijective finaliser, one at a time, so two keys that differ in one field never share a
state; other pairs collide with probability 2^-64. The values that a key gives to token ids are
the SplitMix64 sequence that starts at its state. Statistical quality only: not cryptographic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from operator import attrgetter
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scheduler.sampling.moving import moved

GAMMA = 0x9E3779B97F4A7C15
FIRST_MULTIPLIER = 0xBF58476D1CE4E5B9
SECOND_MULTIPLIER = 0x94D049BB133111EB

_WORD = 1 << 64
_KEY_FIELDS = attrgetter("seed", "choice", "stream", "position", "offset")
_GAMMA = np.uint64(GAMMA)
_FIRST = np.uint64(FIRST_MULTIPLIER)
_SECOND = np.uint64(SECOND_MULTIPLIER)
_30 = np.uint64(30)
_27 = np.uint64(27)
_31 = np.uint64(31)
_11 = np.uint64(11)


class Stream(IntEnum):
    """What a draw is for. Streams are independent; only NOISE is keyed by absolute position."""

    PROPOSAL = 0
    ACCEPTANCE = 1
    TERMINAL = 2
    POLICY = 3
    NOISE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawKey:
    """The name of one draw. The same key has the same value, whoever asks and whenever.

    `seed` is an int64 as two's complement. `position` is the published length T at the start of
    the round, and `offset` counts draws inside it; for NOISE `position` is the absolute position
    of the token and `offset` is 0.
    """

    seed: int
    choice: int
    stream: Stream
    position: int
    offset: int


class Randomness(Protocol):
    """A field of random numbers over keys."""

    def uniforms(self, keys: Sequence[DrawKey]) -> Tensor:
        """Uniforms of `keys`: [n] float64 on the CPU, each in [0, 1)."""
        ...

    def gumbel(self, keys: Sequence[DrawKey], vocabulary: int, device: torch.device) -> Tensor:
        """Standard Gumbel noise of every token id: [n, vocabulary] float64 on `device`."""
        ...


class CounterRandomness:
    """SplitMix64 over folded keys. Holds no state: safe to share between threads."""

    def uniforms(self, keys: Sequence[DrawKey]) -> Tensor:
        """Uniforms of `keys`, multiples of 2^-53: [n] float64 on the CPU, each in [0, 1).

        Raises OverflowError for a key with a field outside int64.
        """
        words = _finalised(_states(keys) + _GAMMA)
        return torch.from_numpy((words >> _11).astype(np.float64) * 2.0**-53)

    def gumbel(self, keys: Sequence[DrawKey], vocabulary: int, device: torch.device) -> Tensor:
        """Gumbel noise -ln(-ln U) of every token id: [n, vocabulary] float64 on `device`.

        U comes from the open interval (0, 1). Raises OverflowError for a key with a field
        outside int64.
        """
        uniforms = self.open_uniforms(keys, vocabulary, device)
        return uniforms.log_().neg_().log_().neg_()

    def open_uniforms(
        self, keys: Sequence[DrawKey], vocabulary: int, device: torch.device
    ) -> Tensor:
        """The U under `gumbel`: 52 random bits and a half, so that neither 0 nor 1 can occur.

        Shape [n, vocabulary], float64, each in [2^-53, 1 - 2^-53].
        """
        states = moved(torch.from_numpy(_states(keys).view(np.int64)), device)
        steps = torch.arange(1, vocabulary + 1, dtype=torch.int64, device=device)
        steps.mul_(_signed(GAMMA))
        words = _finalise(states[:, None] + steps[None, :])
        bits = words.bitwise_right_shift_(12).bitwise_and_((1 << 52) - 1)
        return bits.to(torch.float64).add_(0.5).mul_(2.0**-52)


def round_keys(
    seed: int, choice: int, position: int, k: int
) -> tuple[tuple[DrawKey, ...], tuple[DrawKey, ...], DrawKey]:
    """Keys of one request's round with `k` drafts: (k proposal, k acceptance, terminal).

    `position` is T at round start for all of them. It grows with every published round, which
    keeps a draw from being looked at in two rounds; absolute positions would not (contract
    section 7).
    """
    proposal = tuple(_round_key(seed, choice, Stream.PROPOSAL, position, i) for i in range(k))
    acceptance = tuple(_round_key(seed, choice, Stream.ACCEPTANCE, position, i) for i in range(k))
    return proposal, acceptance, _round_key(seed, choice, Stream.TERMINAL, position, 0)


def noise_key(seed: int, choice: int, position: int) -> DrawKey:
    """Key of the shared noise for the token that will stand at absolute `position`."""
    return _round_key(seed, choice, Stream.NOISE, position, 0)


def _round_key(seed: int, choice: int, stream: Stream, position: int, offset: int) -> DrawKey:
    return DrawKey(seed=seed, choice=choice, stream=stream, position=position, offset=offset)


def _states(keys: Sequence[DrawKey]) -> npt.NDArray[np.uint64]:
    flat = np.fromiter(
        chain.from_iterable(map(_KEY_FIELDS, keys)), dtype=np.int64, count=5 * len(keys)
    )
    fields = flat.view(np.uint64).reshape(-1, 5)
    state = np.zeros(len(keys), dtype=np.uint64)
    for column in range(5):
        state = _finalised((state ^ fields[:, column]) + _GAMMA)
    return state


def _finalised(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    words = (words ^ (words >> _30)) * _FIRST
    words = (words ^ (words >> _27)) * _SECOND
    return words ^ (words >> _31)


def _finalise(words: Tensor) -> Tensor:
    """Finalise int64 `words` in place. Tensors have no logical shift, hence the masks."""
    words.bitwise_xor_(_shifted(words, 30)).mul_(_signed(FIRST_MULTIPLIER))
    words.bitwise_xor_(_shifted(words, 27)).mul_(_signed(SECOND_MULTIPLIER))
    return words.bitwise_xor_(_shifted(words, 31))


def _shifted(words: Tensor, count: int) -> Tensor:
    return words.bitwise_right_shift(count).bitwise_and_((1 << (64 - count)) - 1)


def _signed(word: int) -> int:
    return word - _WORD if word >= _WORD // 2 else word
