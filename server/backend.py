"""What answers a request: nothing yet while the model loads, then an engine and its tokenizer.

The engine is seen through a protocol of the few calls that HTTP needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from scheduler.config import EngineConfig
from scheduler.events import OutputEvent
from scheduler.request import Request
from scheduler.stats import LoadStats
from server.errors import unavailable
from server.tokenizer import TokenizerService

__all__ = ["Backend", "EnginePort", "EventSource", "HealthReport", "Serving"]


class HealthReport(Protocol):
    """Whether the engine's loop runs; `heartbeat_age` is 0 while it has nothing to do."""

    @property
    def alive(self) -> bool: ...
    @property
    def error(self) -> str | None: ...
    @property
    def heartbeat_age(self) -> float: ...


class EventSource(Protocol):
    """The events of one request; without a finish at its end when it was aborted."""

    @property
    def request_id(self) -> int: ...
    async def __anext__(self) -> OutputEvent: ...


class EnginePort(Protocol):
    """`scheduler.engine.Engine`, as far as HTTP knows it."""

    @property
    def config(self) -> EngineConfig: ...
    @property
    def accepting(self) -> bool: ...
    def submit(self, requests: Sequence[Request]) -> Sequence[EventSource]: ...
    def abort(self, request_id: int) -> None: ...
    def next_request_id(self) -> int: ...
    def health(self) -> HealthReport: ...
    def load(self) -> LoadStats: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A loaded model. `names` are what clients may call it, the first is the default; `root` is
    where it came from, `fingerprint` changes with anything that may change its output."""

    engine: EnginePort
    tokenizer: TokenizerService
    names: tuple[str, ...]
    root: str
    created: int
    vocabulary: int
    fingerprint: str


class Backend:
    """Holds what is served; empty until `install`, and for good after `fail`."""

    def __init__(self, *, heartbeat_seconds: float = 120.0) -> None:
        """`heartbeat_seconds` is how long the engine may work on one round before it hangs."""
        self._heartbeat_seconds = heartbeat_seconds
        self._serving: Serving | None = None
        self._failure: str | None = None

    def install(self, serving: Serving) -> None:
        """Start to answer."""
        self._serving = serving

    def fail(self, reason: str) -> None:
        """Loading ended without a model."""
        self._failure = reason

    @property
    def ready(self) -> bool:
        """Whether a request would be taken now."""
        return self._serving is not None and self._serving.engine.accepting

    @property
    def healthy(self) -> bool:
        """Whether a restart would not help: loading goes on, or the engine's loop comes round."""
        if self._serving is None:
            return self._failure is None
        report = self._serving.engine.health()
        return report.alive and report.heartbeat_age <= self._heartbeat_seconds

    def serving(self) -> Serving:
        """The loaded model. Raises ApiError (503) before it is there."""
        if self._serving is None:
            raise unavailable("The model is still loading.")
        return self._serving
