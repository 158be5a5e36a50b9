"""What an enumeration is told: requests, how they are drafted, verified and keyed."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from scheduler.sampling.rng import DrawKey, Stream, round_keys
from scheduler.sampling.verify import verify_block, verify_token
from tests.oracles.rows import Table

Tokens = tuple[int, ...]
Trace = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One draft token with the law it was drawn from, as a policy may see it."""

    token: int
    row: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How many drafts are verified.

    `length(request, tokens, trace)` plans from history; `trace` holds (k, accepted) of the last
    `memory` rounds. With `coin`, which gives a law over lengths instead, the length is drawn by the
    first value of the stream `tossed`. `goes_on(row)` sees a draft law before its token is drawn.
    `trim(drafts)` sees the drawn tokens of every request and gives how many of each are verified.
    """

    length: Callable[[int, Tokens, Trace], int]
    goes_on: Callable[[np.ndarray], bool] = lambda _row: True
    trim: Callable[[list[list[Drawn]]], list[int]] = lambda drafts: [len(d) for d in drafts]
    memory: int = 0
    coin: Callable[[int, Tokens, Trace], np.ndarray] | None = None
    tossed: Stream = Stream.POLICY


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request. `claimed` is the draft law that verification is told, when not the true one."""

    target: Table
    draft: Table
    prompt: Tokens = (0,)
    seed: int = 7
    choice: int = 0
    stop: frozenset[int] = field(default_factory=frozenset)
    claimed: Table | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Requests that share rounds, and how they are drafted and verified.

    Output is compared up to `horizon` tokens a request; longer runs are cut there, and shorter
    ones after `rounds` rounds are completed by target transitions. With `forget`, keys may only
    be those of the current T, which is checked, and no branch remembers earlier ones. `at` says
    where in its interval each draw lies.
    """

    cases: tuple[Case, ...]
    rule: str
    policy: Policy
    rounds: int
    horizon: int
    keys: Callable[[int, int, int, int], tuple[tuple[DrawKey, ...], tuple[DrawKey, ...], DrawKey]]
    verify: Callable
    forget: bool
    at: float = 0.5


def scenario(*cases, rule, policy, rounds=2, horizon=4, keys=None, verify=None, at=0.5):
    """A scenario of the product's own verifier and keys, unless others are given.

    The rule "shared-noise" has neither: `noise.NoiseEnumeration` knows how its races are keyed.
    """
    return Scenario(
        cases=cases,
        rule=rule,
        policy=policy,
        rounds=rounds,
        horizon=horizon,
        keys=keys or round_keys,
        verify=verify or {"token": verify_token, "block": verify_block}.get(rule),
        forget=keys is None,
        at=at,
    )
