"""Engine settings, resolved: frozen, checked together once, before anything is built."""

from dataclasses import dataclass

from scheduler.errors import ConfigRefused
from scheduler.plan import Layout
from scheduler.request import ProposerKind, Verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """K/V pool of one model: `blocks` blocks of `block_size` token rows each."""

    blocks: int
    block_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All that the engine decides by.

    `max_model_len` and `draft_max_len` are tokens a request may hold in each model;
    `max_batched_tokens` the target rows of one round; `max_requests` those that run at once;
    `max_waiting` the queue. `k` is the fixed draft length used when a request leaves it open,
    `k_max` the longest that a request may ask for.
    """

    max_model_len: int
    draft_max_len: int
    max_batched_tokens: int = 512
    max_requests: int = 64
    max_waiting: int = 1024
    k: int = 4
    k_max: int = 8
    verifier: Verifier = Verifier.TOKEN
    proposer: ProposerKind = ProposerKind.DRAFT_MODEL
    layout: Layout = Layout.REPLAY_FRONTIER
    target_pool: PoolConfig
    draft_pool: PoolConfig | None

    def __post_init__(self) -> None:
        """Refuse combinations that could not serve one request. Raises ConfigRefused."""
        for name in ("max_model_len", "max_batched_tokens", "max_requests", "max_waiting"):
            if getattr(self, name) < 1:
                raise ConfigRefused(f"{name}={getattr(self, name)}: must be at least 1")
        if not 0 <= self.k <= self.k_max:
            raise ConfigRefused(f"k={self.k}: must lie in 0..k_max={self.k_max}")
        if self.k_max + 1 > self.max_batched_tokens:
            raise ConfigRefused(
                f"k_max={self.k_max} needs {self.k_max + 1} verification rows a request, more than "
                f"max_batched_tokens={self.max_batched_tokens}: lower the speculative draft length "
                "or raise the token budget"
            )
        rows = self.target_pool.blocks * self.target_pool.block_size
        if rows < self.max_model_len:
            raise ConfigRefused(
                f"the target K/V pool holds {rows} tokens, less than "
                f"max_model_len={self.max_model_len}: raise it or shorten the context"
            )
