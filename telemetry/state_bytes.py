"""What speculation's state takes beside the committed state, in bytes.

Computed from rows and from the sizes of a row, not measured: an allocator rounds up, and attention
and sampling need room of their own.
"""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Gauge

from scheduler.stats import CommitOutcome, Policy, StepStats
from telemetry.families import PlainCounter

__all__ = ["RowBytes", "StateMetrics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBytes:
    """Bytes of one row: K/V of all layers of the target and of the draft (0 without one), and the
    law of one position over the vocabulary."""

    target: int
    draft: int
    law: int


class StateMetrics:
    """Branch state (K/V and p and q rows) against committed state, and drafts that came too late.

    All bytes are zero until `size` was called: without a model there is no row.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> PlainCounter:
            return PlainCounter(registry, "fencepost_" + name, text)

        self._temporary = counter(
            "kv_temporary_bytes",
            "K/V rows written for the sake of drafts: the target's for draft positions, accepted "
            "or not, and all of the draft model's (computed from row sizes).",
        ).cell()
        self._committed = counter(
            "kv_committed_bytes",
            "Target K/V rows that publications committed, prefill and rows computed again after a "
            "preemption included (computed from row sizes).",
        ).cell()
        self._stale = counter(
            "draft_stale",
            "Draft tokens that were verified in vain: their round ended stale, because the request "
            "was cancelled or had moved on meanwhile.",
        ).cell()
        self._rows = Gauge(
            "fencepost_row_buffer_bytes",
            "Rows of p (a logit row each) and q (a draft each; none where all requests are greedy) "
            "that the last round held (computed from row sizes).",
            registry=registry,
        )
        self._size = RowBytes(target=0, draft=0, law=0)

    def size(self, row: RowBytes) -> None:
        """Say what a row takes. To be told once, when the models are known."""
        self._size = row

    def count(self, stats: StepStats) -> None:
        """Count one round."""
        branch = kept = stale = 0
        for group in stats.groups:
            branch += group.branch_rows
            kept += group.kept_rows
            if group.outcome is CommitOutcome.STALE:
                stale += group.branch_rows
        size = self._size
        self._temporary.value += branch * size.target + stats.draft_rows * size.draft
        self._committed.value += kept * size.target
        self._stale.value += stale
        sampled = any(group.policy is not Policy.GREEDY for group in stats.groups)
        self._rows.set((stats.logit_rows + branch * sampled) * size.law)
