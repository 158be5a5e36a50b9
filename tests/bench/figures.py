"""The records that the benchmark reports: what was measured, on what, and how. Knows no way to
measure or to print them.

Rates are committed tokens per second; every other time is in the unit its name ends with.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One figure over several rounds: the median, and how far the rounds lie apart."""

    median: float
    lowest: float
    highest: float
    values: tuple[float, ...]


def spread(values: Sequence[float]) -> Spread:
    """The spread of at least one value."""
    return Spread(
        median=statistics.median(values),
        lowest=min(values),
        highest=max(values),
        values=tuple(values),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where the figures come from. `load` is the 1-minute load average when the run began."""

    cpu: str
    cores: int
    usable_cores: int
    flags: tuple[str, ...]
    memory_gib: float
    load: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """What ran. `revision` is None outside a git checkout; `changed` counts edited files."""

    fencepost: str
    revision: str | None
    changed: int
    python: str
    torch: str
    transformers: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What was asked for. `threads` are those of one tensor operation."""

    k: int
    temperature: float
    verifier: str
    rounds: int
    tokens: int
    prompt_tokens: int
    repeats: int
    threads: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One draft position, over rounds that reached it.

    `acceptance` is accepted over reached, `mass_acceptance` the low-variance estimate of the same
    (contract section 10): the sum of masses over the sum of bases.
    """

    reached: int
    accepted: int
    acceptance: float
    mass_acceptance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundParts:
    """Mean milliseconds of a decode round by part.

    `draft`, `verify` and `decide` are the worker thread's, forwards included; `forward` is the
    share of them inside the models; `schedule` and `commit` are the event loop's.
    """

    round: float
    schedule: float
    draft: float
    verify: float
    decide: float
    commit: float
    forward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One load at one K. A decode round is one without prefill rows.

    `rate` counts whole runs, prefill included, `decode_rate` what follows the first token.
    `committed_per_round` is a request's mean G over its rounds with exactly `k` drafts, None
    when there were none. `host_share` is 1 - forward / round over decode rounds.
    """

    k: int
    tokens: int
    rounds: int
    rate: Spread
    decode_rate: Spread
    committed_per_round: float | None
    rows_per_call: float
    host_share: float
    parts_ms: RoundParts
    lag_p99_ms: float
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Speculation on and off at one concurrency; the ratios pair runs of the same round."""

    concurrency: int
    on: Arm
    off: Arm
    speedup: Spread
    decode_speedup: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCost:
    """Median time of one forward with logits of `rows` rows of one request."""

    model: str
    rows: int
    milliseconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Forwards timed alone, with `context` tokens cached before the rows.

    `c` is a draft row over a target row, `verify_ratio` a target call of K + 1 rows over one of 1.
    """

    context: int
    costs: tuple[RowCost, ...]
    c: float
    verify_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the ledger promises at concurrency 1, and how much of it the engine reached.

    `flat` is E[G] / (1 + K c) and assumes that K + 1 rows cost what one does; `with_verify` is
    E[G] / (verify_ratio + K c). `expected` is E[G] from the measured reach acceptances.
    """

    expected: float
    flat: float
    with_verify: float
    achieved: float
    achieved_over_flat: float
    achieved_over_with_verify: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerArm:
    """Whole `generate` calls of transformers at concurrency 1. `dtype` is the peer's."""

    mode: str
    dtype: str
    rate: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """transformers beside this engine, whole calls of the same prompts in the same rounds.

    The ratio is taken to the better assisted arm, `best_assisted`.
    """

    ours: Spread
    ours_off: Spread
    arms: tuple[PeerArm, ...]
    best_assisted: str
    best_plain: str
    over_assisted: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """Seconds: the process with its imports, loading the pair, then to the first token."""

    imports: float
    load: float
    first_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """MiB. `peak_rss` is the process's high-water mark before any peer model was loaded."""

    weights: float
    kv: float
    peak_rss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFigures:
    """Everything measured on one pair. `peer` is None when it was skipped."""

    name: str
    target: str
    draft: str
    target_dtype: str
    parameters: tuple[int, int]
    vocabulary: int
    startup: Startup
    memory: Memory
    ledger: Ledger
    prediction: Prediction | None
    levels: tuple[Level, ...]
    peer: Peer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run of the benchmark. `date` is ISO 8601 in UTC."""

    date: str
    machine: Machine
    versions: Versions
    settings: Settings
    pairs: tuple[PairFigures, ...]
