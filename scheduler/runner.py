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
    adapter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a runner was built with. `draft` is None when no draft model is loaded.

    `event_space` is a digest of what each of the `vocabulary` ids means, `mapping` how draft ids
    become target ids, `numerics` how a row's arithmetic depends on the rows beside it.
    """

    target: ModelIdentity
    draft: ModelIdentity | None
    vocabulary: int
    max_positions: int
    draft_max_positions: int
    device: str
    software: str
    event_space: str = ""
    mapping: str = "identity"
    numerics: str = "plain"


class ModelRunner(Protocol):
    """Executes whole rounds, one at a time, on the one thread that calls it."""

    def capabilities(self) -> Capabilities:
        """What this runner can do; constant for its life."""
        ...

    def run(self, plan: RoundPlan) -> RoundResult:
        """Draft, verify and decide one round. Blocks. An exception means that nothing of the
        round may be published; K/V rows past the committed ones may hold anything."""
        ...

    def failure(self) -> str | None:
        """Why no further round can run; None while one can. Any thread may ask."""
        ...

    def memory_bytes(self) -> int:
        """Bytes that weights, K/V pools and buffers take on the device."""
        ...
