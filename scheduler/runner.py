"""The engine's only view of model execution."""

from dataclasses import dataclass
from typing import Protocol

from scheduler.plan import RoundPlan, RoundResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """What a model is, for the round coordinate and for people."""

    name: str
    revision: str
    architecture: str
    dtype: str
    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a runner was built with. `draft` is None when no draft model is loaded."""

    target: ModelIdentity
    draft: ModelIdentity | None
    vocabulary: int
    max_positions: int
    draft_max_positions: int
    device: str
    software: str


class ModelRunner(Protocol):
    """Executes whole rounds, one at a time, on the one thread that calls it."""

    def capabilities(self) -> Capabilities:
        """What this runner can do; constant for its life."""
        ...

    def run(self, plan: RoundPlan) -> RoundResult:
        """Draft, verify and decide one round. Blocks. An exception means that nothing of the
        round may be published; K/V rows past the committed ones may hold anything."""
        ...

    def memory_bytes(self) -> int:
        """Bytes that weights, K/V pools and buffers take on the device."""
        ...
