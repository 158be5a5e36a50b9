"""The records that the check reports. Knows no way to measure or to print them."""

from dataclasses import dataclass

from tests.bench.figures import Machine, Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a device can do at best: bytes and floating-point operations a second.

    `source` says where the numbers come from.
    """

    source: str
    bandwidth: float
    compute: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Where the models run. `limits` are what shares are taken of, `measured` what a copy and a
    matrix product reached just before."""

    name: str
    limits: Limits
    measured: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFigures:
    """The random pair. `overlap` is the mean of sum min(p, q) on random ids, `deviation` how far
    the target's packed probe logits are from the unmodified model's; `seconds` to build it."""

    target_parameters: int
    draft_parameters: int
    dtype: str
    factor: float
    overlap: float
    entropy: float
    deviation: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One verify step alone: a packed target call of `rows` rows with all their logits.

    `milliseconds` end when the logits are there. The shares say how much of the device's limits
    that is, for every weight and cached row read once and every product taken once.
    """

    rows: int
    milliseconds: float
    memory_share: float
    compute_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One load at one way to choose K, which is None for auto. `runtime` says who runs the models.

    `rate` are committed tokens a second, prefill included. A decode round is one without prefill
    rows: `round_ms` is the mean of those in which all requests of the load are, of all where there
    is no such. `host_share` is the share of it in which the device had nothing to do, None where
    that was not measured. `acceptance` is accepted over reached drafts.
    Where model calls are recorded and replayed, `eager_ms` are the milliseconds of the same verify
    step launched from the host; None where every call is.
    """

    runtime: str
    requests: int
    k: int | None
    tokens: int
    seconds: float
    rate: float
    round_ms: float
    mean_k: float
    acceptance: float | None
    verify: Step
    eager_ms: float | None
    host_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StockCell:
    """The same load on stock vLLM; `k` is 0 without its own speculation."""

    requests: int
    k: int
    tokens: int
    seconds: float
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Contracts:
    """How the suite ended: pytest's last line, and its exit status."""

    summary: str
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run of the check. `date` is ISO 8601 in UTC; parts that did not run are None or empty,
    and `skipped` and `failed` say why."""

    date: str
    machine: Machine
    versions: Versions
    device: Device
    seconds: float
    settings: dict[str, object]
    contracts: Contracts | None
    pair: PairFigures | None
    cells: tuple[Cell, ...]
    stock: tuple[StockCell, ...]
    skipped: tuple[str, ...]
    failed: tuple[str, ...]
