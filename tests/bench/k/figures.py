"""The records that the benchmark of dynamic K reports. Knows no way to measure or to print them.

Rates are committed tokens per second, prefill included; seconds are those of the wall clock.
"""

from dataclasses import dataclass

from tests.bench.figures import Machine, Spread, Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What was asked for.

    A run at concurrency N ends with the round by which max(`least`, `per_client` * N) tokens were
    committed; a step of a ramp with the one by which it had `least`. `tokens` are those of one
    request, `profile_seconds` the limit of the start-up profile that auto has, `turn` the seconds
    after which another way has its turn.
    """

    ks: tuple[int, ...]
    k_max: int
    concurrency: tuple[int, ...]
    rounds: int
    ramps: int
    tokens: int
    prompt_tokens: int
    per_client: int
    least: int
    temperature: float
    verifier: str
    threads: int
    seed: int
    profile_seconds: float
    turn: float
    layout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The pair under test."""

    name: str
    target: str
    draft: str
    dtype: str
    parameters: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Rounds in which nothing was to be drafted: how many, the seconds of their draft part (its
    fixed bookkeeping included), and the rows that the draft model saw in them."""

    rounds: int
    draft_seconds: float
    draft_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to choose K at one concurrency, over all rounds. `k` is None for auto.

    `mean_k` is over requests and rounds in which a draft was possible: a request that has its
    first or its last token next drafts nothing. None where there were none of these.
    """

    name: str
    k: int | None
    tokens: int
    steps: int
    rate: Spread
    mean_k: float | None
    idle: Idle


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """All arms at one concurrency; ratios pair runs of the same round.

    `best` is the fixed K with the highest median rate. Picking it by the very runs that it is
    compared in flatters it: `over_best_held_out` picks it by the other rounds, and is None where
    there are none.
    """

    concurrency: int
    window: int
    arms: tuple[Arm, ...]
    best: int
    over_best: Spread
    over_best_held_out: Spread | None
    over_plain: Spread
    plain_over_no_draft: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class RampStep:
    """One step of the trace over all ramps; `mean_k` as in `Arm`."""

    concurrency: int
    rate: Spread
    mean_k: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RampArm:
    """One way to choose K over whole traces.

    `switches` are turns between drafting and not, each second, in rounds in which a draft was
    possible; `lasting_switches` those of them that neither a probe nor a look at plain decoding
    made.
    """

    name: str
    k: int | None
    rate: Spread
    steps: tuple[RampStep, ...]
    switches: float
    lasting_switches: float
    idle: Idle


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """A load that rises and falls while requests run on; `best` as in `Level`."""

    trace: tuple[int, ...]
    window: int
    arms: tuple[RampArm, ...]
    best: int
    over_best: Spread
    over_plain: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run of the benchmark. `date` is ISO 8601 in UTC, `profile_took` seconds."""

    date: str
    machine: Machine
    versions: Versions
    settings: Settings
    models: Models
    profile_took: float
    levels: tuple[Level, ...]
    ramp: Ramp | None
