"""Counts prompt tokens that cached K/V spared, beside those that it could have spared.

Knows nothing of a cache: what a request was spared stands in its own record.
"""

from prometheus_client import CollectorRegistry

from scheduler.stats import FinishedStats
from telemetry.families import PlainCounter

__all__ = ["PrefixCacheMetrics"]


class PrefixCacheMetrics:
    """Hits over queries is the share of prompts that was spared: none without a cache."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.queries = PlainCounter(
            registry,
            "fencepost_prefix_cache_queries",
            "Prompt tokens of requests that ran and ended: what cached K/V could have spared.",
        )
        self.hits = PlainCounter(
            registry, "fencepost_prefix_cache_hits", "Prompt tokens that cached K/V spared."
        )
        self._queries, self._hits = self.queries.cell(), self.hits.cell()

    def count(self, finished: FinishedStats) -> None:
        """Count one request that ended; one that never ran asked for nothing."""
        if finished.request_stats.admitted is not None:
            self._queries.value += finished.prompt_tokens
            self._hits.value += finished.request_stats.cached_tokens
